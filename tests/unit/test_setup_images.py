"""What the images' tests build from: kept by what it was made from, and asked for only where it can be made."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from hack.setup import images


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_other_pins_make_other_wheels_and_the_same_bases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels, bases = images.wheels(), images.bases()
    pins = tmp_path / "constraints.txt"
    pins.write_text("httpx==0.0.1\n")
    monkeypatch.setattr(images, "CONSTRAINTS", pins)
    assert (images.wheels() != wheels, images.bases()) == (True, bases)


def test_another_base_makes_other_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wheels are those of its Python."""
    wheels, bases = images.wheels(), images.bases()
    monkeypatch.setattr(images, "SUITE", "trixie")
    assert images.wheels() != wheels
    assert images.bases() != bases


def test_stores_to_read_are_named_and_nothing_of_the_machine_is_used(tmp_path: Path) -> None:
    env = images.environment(tmp_path / "own", tmp_path / "shared")
    configuration = tomllib.loads(Path(env["CONTAINERS_STORAGE_CONF"]).read_text())["storage"]
    assert configuration["graphroot"] == str(tmp_path / "own" / "store")
    assert configuration["runroot"] == str(tmp_path / "own" / "run")
    assert configuration["options"]["additionalimagestores"] == [str(tmp_path / "shared")]


@pytest.mark.parametrize(
    ("user", "programs", "reason"), [(1000, True, "by root"), (0, False, "not installed: mmdebstrap")]
)
def test_where_they_cannot_be_made_setup_says_why_and_goes_on(
    user: int,
    programs: bool,
    reason: str,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setattr(images.shutil, "which", lambda name: f"/usr/bin/{name}" if programs else None)
    images.main()
    assert reason in capsys.readouterr().out
    assert not cache.exists() or not list(cache.iterdir())
