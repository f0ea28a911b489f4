"""The command line: reads arguments, calls, prints. No logic."""

from __future__ import annotations

from typing import Annotated

import typer

from paceline_operator.cli.verbs import Verbs
from paceline_operator.cli.version import version

app = typer.Typer(cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def paceline(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps speculative decoding at the right pace."""


def main() -> None:
    """Entry point of `paceline`."""
    app()
