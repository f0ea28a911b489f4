"""The set-up: what is cached is complete or not there, is made by one process at a time, and is named by its inputs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hack.setup import common, engine, environment

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"PACELINE_CACHE": "/a/b"}, "/a/b"),
        ({"PACELINE_CACHE": "/a/b", "XDG_CACHE_HOME": "/c"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/c"}, "/c/paceline"),
        ({"PACELINE_CACHE": "", "XDG_CACHE_HOME": ""}, "/h/.cache/paceline"),
        ({}, "/h/.cache/paceline"),
    ],
)
def test_the_cache_folder_follows_the_environment(
    variables: dict[str, str], folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PACELINE_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", f"{tmp_path}/h")
    for name, value in variables.items():
        monkeypatch.setenv(name, f"{tmp_path}{value}" if value else "")
    assert common.cache_folder() == Path(f"{tmp_path}{folder}")
    assert common.cache_folder().is_dir()


def test_a_cache_folder_of_a_user_who_does_not_exist_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", "~nosuchuser/x")
    with pytest.raises(SystemExit, match="~nosuchuser/x is no folder"):
        common.cache_folder()


def test_a_failed_command_ends_the_setup_with_the_end_of_its_output(capfd: pytest.CaptureFixture[str]) -> None:
    code = "import sys; print('a'); print('the cause', file=sys.stderr); sys.exit(3)"
    with pytest.raises(SystemExit) as ended:
        common.run("step", [sys.executable, "-c", code])
    assert "the cause" in str(ended.value)
    assert "exit status 3" in str(ended.value)
    common.run("step", [sys.executable, "-c", code], check=False)
    assert "step: done" in capfd.readouterr().out


def test_the_lock_is_held_between_processes_and_ends_with_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    code = (
        "import sys; from pathlib import Path; from hack.setup.common import lock\n"
        "with lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout
    assert holder.stdin
    assert holder.stdout.readline() == "held\n"
    waiter = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True
    )
    assert waiter.stdout
    assert waiter.stdout.readline().startswith("waiting")
    holder.kill()
    holder.wait()
    assert waiter.communicate()[0] == "held\n"
    holder.stdin.close()
    holder.stdout.close()


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The engine's set-up in an empty clone and cache, its commands recorded instead of run; returns their titles."""
    titles: list[str] = []

    def run(title: str, command: Sequence[str | Path], **_: object) -> None:
        titles.append(title)
        if title == "engine: virtual environment":
            Path(command[-1], "lib", "python3.11", "site-packages").mkdir(parents=True)

    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("PACELINE_TORCH", raising=False)
    monkeypatch.setattr(engine, "ROOT", tmp_path / "clone")
    monkeypatch.setattr(engine, "require_numa", lambda: None)
    monkeypatch.setattr(engine, "run", run)
    return titles


def test_the_engine_is_built_once_and_linked(built: list[str], tmp_path: Path) -> None:
    (tmp_path / "clone").mkdir()
    engine.main()
    assert len(built) > 2
    target = (tmp_path / "clone" / ".venv" / "engine").readlink()
    assert (target / common.COMPLETE).exists()
    (stub,) = target.rglob("vllm-*.dist-info/METADATA")
    assert "Name: vllm\n" in stub.read_text()
    built.clear()
    (tmp_path / "clone" / ".venv" / "engine").unlink()
    engine.main()
    assert built == []
    assert (tmp_path / "clone" / ".venv" / "engine").readlink() == target


def test_an_interrupted_engine_build_is_not_taken_for_a_finished_one(
    built: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "clone").mkdir()
    with monkeypatch.context() as during:
        during.setattr(engine, "write_stub", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            engine.main()
    assert not (tmp_path / "clone" / ".venv" / "engine").exists()
    (engine.folder() / "left over").touch()
    engine.main()
    assert not (engine.folder() / "left over").exists()
    assert (engine.folder() / common.COMPLETE).exists()


def test_another_pin_or_torch_is_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.delenv("PACELINE_TORCH", raising=False)
    folders = {engine.folder()}
    monkeypatch.setenv("PACELINE_TORCH", "./torch.whl")
    folders.add(engine.folder())
    requirements = tmp_path / "requirements.txt"
    requirements.write_text("numpy==1\n")
    monkeypatch.setattr(engine, "REQUIREMENTS", requirements)
    folders.add(engine.folder())
    assert len(folders) == 3


@pytest.mark.parametrize("file", [engine.REQUIREMENTS, engine.TORCH, environment.CONSTRAINTS], ids=lambda f: f.name)
def test_every_requirement_is_pinned(file: Path) -> None:
    lines = [line for line in file.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    assert lines
    assert [line for line in lines if line.count("==") != 1 or " " in line] == []
