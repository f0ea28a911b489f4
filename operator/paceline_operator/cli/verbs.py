"""Every verb of the command line by name; a verb's module, and all that it needs, is imported when the verb is used.

So `paceline --help` costs no client of a cluster and no arithmetic: what it says of a verb is read from its source.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

PACKAGE = "paceline_operator.cli"
VERBS: Mapping[str, str] = {
    "local": "local",
    "status": "get",
    "top": "get",
    "explain": "explain",
    "preflight": "preflight",
    "history": "get",
    "table": "get",
    "suspend": "change",
    "resume": "change",
    "pin": "change",
    "unpin": "change",
    "rollback": "change",
    "retry": "change",
    "doctor": "doctor",
    "replay": "replay",
    "record": "record",
    "version": "version",
    "experiment": "experiment",
    "profile": "profiles",
    "incidents": "incidents",
}
"""Verb -> module that has it under its own name: a function, or a typer.Typer with verbs of its own."""


class Verbs(TyperGroup):
    """`paceline` itself."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = {name: Verb(name, f"{PACKAGE}.{module}") for name, module in VERBS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        """Names of verbs, which are about to be shown with what they do."""
        for verb in self.commands.values():
            assert isinstance(verb, Verb)
            verb.help = said(verb.module, str(verb.name))
        return list(self.commands)


class Verb(TyperCommand):
    """Stands for a verb until that is used."""

    def __init__(self, name: str, module: str) -> None:
        super().__init__(name)
        self.module = module

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Of the verb itself."""
        found = getattr(importlib.import_module(self.module), str(self.name))
        if isinstance(found, typer.Typer):
            return typer.main.get_group(found).make_context(info_name, args, parent, **extra)
        alone = typer.Typer(add_completion=False)
        alone.command(self.name)(found)
        return typer.main.get_command(alone).make_context(info_name, args, parent, **extra)


def said(module: str, name: str) -> str:
    """The help of `name` in the source of `module`, which is not run. Raises LookupError where it has none."""
    spec = importlib.util.find_spec(module)
    source: str = spec.loader.get_source(module) if spec and spec.loader else ""  # type: ignore[attr-defined]
    for node in ast.parse(source).body:
        match node:
            case ast.FunctionDef(name=found) if found == name:
                return ast.get_docstring(node) or ""
            case ast.Assign(targets=[ast.Name(id=found)], value=ast.Call(keywords=keywords)) if found == name:
                return next(str(ast.literal_eval(one.value)) for one in keywords if one.arg == "help")
    raise LookupError(f"{module} has no {name}")
