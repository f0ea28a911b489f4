"""Declared is what is imported, pinned is what is installed, licences are known, the workflows' actions are pinned."""

from __future__ import annotations

import ast
import re
import sys
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from hack import dependencies

ROOT = Path(__file__).parents[2]
OURS = {"paceline_operator", "paceline_engine", "hack", "tests", "benchmarks"}
OURS |= {path.stem for path in (ROOT / "benchmarks" / "h200").glob("*.py")}
"""Scripts that are copied to the machine with the GPU import each other by their bare names."""
BROUGHT = {"vllm", "torch", "transformers", "numpy", "prometheus-client", "pydantic", "safetensors", "huggingface-hub"}
BROUGHT |= {"certifi", "boto3", "botocore", "cloudpickle"}
"""What only runs where vLLM's own image or environment brings it (boto3: its extra runai)."""
TOOLS = {
    "ruff": "make lint",
    "import-linter": "make lint",
    "pre-commit": "the hook",
    "pytest": "make test",
    "pytest-asyncio": "pyproject.toml: asyncio_mode",
    "pytest-xdist": "make test",
    "types-pyyaml": "mypy",
    "types-jsonschema": "mypy",
    "mkdocs-material": "mkdocs.yml: theme",
    "mypy": "make lint",
    "hatchling": "the build backend",
}
"""Of the extra dev: used without an import."""
TRANSITIVE = {"requests", "urllib3", "pydantic-core", "yarl", "packaging", "click"}
"""Imported though another requirement brings it: a session of requests for prometheus-api-client, errors of urllib3 and
of pydantic's core, addresses of aiohttp, results of click from typer; every tool of dev needs packaging."""


def imported(*folders: str) -> dict[str, str]:
    """Distributions that the modules below `folders` import, each with one of the files."""
    known, found = packages_distributions(), {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                names: list[str] = []
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    names = [node.module or ""]
                for top in {name.split(".")[0] for name in names} - OURS - set(sys.stdlib_module_names):
                    for name in known.get(top, [top]):
                        found[str(canonicalize_name(name))] = str(path.relative_to(ROOT))
    return found


def names(*extras: str) -> set[str]:
    known = dependencies.declared()
    return {str(canonicalize_name(each.name)) for extra in extras for each in known[extra]}


def test_the_operator_and_the_command_import_what_they_declare() -> None:
    found = imported("operator")
    declared = names("", "operator", "cli", "report")
    assert set(found) - TRANSITIVE == declared, found


def test_the_plugin_imports_nothing_that_its_engine_does_not_bring() -> None:
    assert set(imported("engine")) <= BROUGHT


def test_development_declares_what_tests_and_tools_use_and_no_more() -> None:
    found = imported("tests", "hack", "benchmarks")
    declared = names("dev", "bench")
    assert set(found) - BROUGHT - TRANSITIVE <= declared | names("", "operator", "cli", "report"), found
    assert declared - set(found) <= set(TOOLS)


def test_what_is_installed_is_what_is_pinned() -> None:
    pins = [
        Requirement(line)
        for line in dependencies.CONSTRAINTS.read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    wanted = [each for of in dependencies.declared().values() for each in of if each.name != "vllm"]
    brought = dependencies.closure(wanted)
    pinned = {str(canonicalize_name(each.name)): str(each.specifier) for each in pins}
    assert {name: f"=={package.version}" for name, package in brought.items()} == {
        name: pinned.get(name, "not pinned") for name in brought
    }
    assert all(version(name) for name in pinned)


def test_every_licence_is_known_and_permissive_or_weak() -> None:
    accepted = dependencies.PERMISSIVE | dependencies.WEAK
    wanted = [each for extra in ("", *dependencies.EXTRAS) for each in dependencies.declared()[extra]]
    found = {
        name: set(dependencies.parts(dependencies.licence(it))) for name, it in dependencies.closure(wanted).items()
    }
    assert {name: licences - accepted for name, licences in found.items() if licences - accepted} == {}
    assert {name for name, licences in found.items() if licences & dependencies.WEAK} == {"certifi"}


@pytest.mark.parametrize(
    "workflow", sorted((ROOT / ".github" / "workflows").glob("*.yaml")), ids=lambda path: path.name
)
def test_actions_are_pinned_by_commit(workflow: Path) -> None:
    text = workflow.read_text(encoding="utf-8")
    steps = [step for job in yaml.safe_load(text)["jobs"].values() for step in job["steps"]]
    used = [step["uses"] for step in steps if "uses" in step]
    assert used
    assert [action for action in used if not re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40}", action)] == []
    # A person reads the version beside it.
    assert len(re.findall(r"uses: \S+@[0-9a-f]{40}  # v\d+\.\d+\.\d+$", text, re.MULTILINE)) == len(used)
