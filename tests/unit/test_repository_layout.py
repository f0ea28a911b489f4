"""Guards of the repository: source roots that stay no packages, and text that has no place in tracked files."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MACHINE_PATH = re.compile(rb"(?<![\w.~$}/-])/(?:root|home|work|tmp/warm)/[\w.]")
"""A folder of somebody's machine: nothing tracked may depend on one."""
PACKAGE_REGISTRY = re.compile(
    rb"\b(?:pypi|pythonhosted|npmjs|npm\.pkg|crates|golang\.proxy|(?:proxy|sum)\.golang|deb\.debian|maven)\.(?:org|com|io)\b"
)
"""Package registries are reached by their clients' own settings, never by a host name of ours."""


def tracked() -> list[Path]:
    """Files that git knows, without those deleted in the working tree."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    return [path for name in listed.decode().split("\0") if name and (path := ROOT / name).is_file()]


@pytest.mark.parametrize("root", ["operator", "engine"])
def test_source_roots_are_no_packages(root: str) -> None:
    """operator/__init__.py would shadow the standard library's operator and kill the interpreter in this folder."""
    assert not (ROOT / root / "__init__.py").exists()


def test_the_standard_librarys_operator_wins_at_the_root() -> None:
    code = "import operator; assert operator.itemgetter; print(operator.__file__)"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert Path(found.strip()).parent == Path(sys.modules["re"].__file__ or "").parents[1]


@pytest.mark.parametrize(
    ("pattern", "example", "fine"),
    [
        (MACHINE_PATH, b"open('/ro" + b"ot/.cache/x')", b"https://example.org/home/page ~/.cache /var/work/x"),
        (PACKAGE_REGISTRY, b"https://pyp" + b"i.org/simple", b"the PyPI package, docker.io/library"),
    ],
    ids=["machine path", "package registry"],
)
def test_no_place_of_ours_in_tracked_files(pattern: re.Pattern[bytes], example: bytes, fine: bytes) -> None:
    assert pattern.search(example)
    assert not pattern.search(fine)
    found = [
        f"{path.relative_to(ROOT)}: {match.group().decode()}"
        for path in tracked()
        if (match := pattern.search(path.read_bytes()))
    ]
    assert not found


def test_every_module_of_the_engine_but_protocol_and_series_is_forbidden_to_the_operator() -> None:
    """import-linter takes a list: a module that is missing in it would be allowed."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    (contract,) = (c for c in contracts if c["name"].startswith("The operator sees only the protocol"))
    shared = {"__init__", "protocol", "exporter"}
    modules = {path.stem for path in (ROOT / "engine" / "paceline_engine").glob("*.py")} - shared
    assert {f"paceline_engine.{module}" for module in modules} <= set(contract["forbidden_modules"])
