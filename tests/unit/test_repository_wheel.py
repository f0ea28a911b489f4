"""The distribution: one wheel with exactly the two packages, the command and the engine's plugin entry point."""

from __future__ import annotations

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    """The wheel, built by the installed hatchling: no build environment, no network."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return zipfile.Path(zipfile.ZipFile(built))


def test_it_holds_the_two_packages_and_nothing_else(wheel: zipfile.Path) -> None:
    names = {entry.name for entry in wheel.iterdir()}
    (metadata,) = (name for name in names if name.endswith(".dist-info"))
    assert names == {"paceline_operator", "paceline_engine", metadata}
    inside = set(wheel.root.namelist())
    for package in ("operator/paceline_operator", "engine/paceline_engine"):
        files = [path for kind in ("*.py", "*.yaml") for path in (ROOT / package).rglob(kind)]
        sources = {str(path.relative_to((ROOT / package).parent)) for path in files}
        assert sources <= inside


def test_it_names_the_command_and_the_plugin(wheel: zipfile.Path) -> None:
    (path,) = (path for path in wheel.iterdir() if path.name.endswith(".dist-info"))
    points = configparser.ConfigParser()
    points.read_string((path / "entry_points.txt").read_text(encoding="utf-8"))
    assert {section: dict(points[section]) for section in points.sections()} == {
        "console_scripts": dict.fromkeys(("paceline", "kubectl-paceline"), "paceline_operator.cli.app:main"),
        "vllm.general_plugins": {"paceline": "paceline_engine.plugin:register"},
    }


def test_it_carries_the_licence(wheel: zipfile.Path) -> None:
    (path,) = (path for path in wheel.iterdir() if path.name.endswith(".dist-info"))
    assert "Apache License" in (path / "licenses" / "LICENSE").read_text(encoding="utf-8")
