"""The load beside an engine as a process of its own, as an experiment's pod runs it: a stand-in's, and a real one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import pytest

from paceline_engine.trial import making
from paceline_engine.trial.facts import Window
from paceline_engine.trial.visit import Line, Measurement, Visit, read
from paceline_operator.api.experiment import Load
from paceline_operator.experiment import load as loads
from tests.engine.engines import MODEL, ROOT, VLLM, RealEngine, models_folder
from tests.harness.ports import free_ports
from tests.harness.processes import Daemon

pytestmark = pytest.mark.engine

PROFILE = "input_tokens,output_tokens,count\n40,8,1\n300,6,2\n"
BLOCK = 128
"""Tokens of a block of the prefix cache: on CPUs, where it is largest."""
STAND_IN = Path(__file__).with_name("stand_in_trial.py")


def visit(url: str, seconds: float, load: Load, dataset: Path | None = None) -> Visit:
    (at,) = load.concurrency
    return Visit(
        url=url,
        round=1,
        arguments=loads.shared(load, url=url, model=MODEL, tokenizer=str(models_folder() / MODEL), dataset=None),
        dataset=str(dataset or ""),
        making=loads.making(load, 2048),
        seconds=seconds,
        start_seconds=20,
        warm_up=[at],
        measurements=[Measurement(load=at, seed=seed) for seed in (3, 4)],
    )


def said(python: Path, programs: Path, asked: Visit, status: int = 0) -> list[Line]:
    done = subprocess.run(
        [python, "-m", "paceline_engine.trial", "--visit", asked.model_dump_json(by_alias=True)],
        env={
            "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT / "engine"), "HOME": os.environ["HOME"],
            "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_PLUGINS": "", "OMP_NUM_THREADS": "1",
        },
        capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    lines = list(read(done.stdout))
    assert len(lines) == len(done.stdout.splitlines()), "nothing else is on the standard output"
    return lines


def load(at: int, tokens: int, **fields: object) -> Load:
    prompts = {"random": {"inputTokens": 16}}
    return Load.model_validate({"concurrency": [at], "prompts": prompts, "outputTokens": tokens, **fields})


def talks(at: int) -> Load:
    """Of PROFILE."""
    return load(at, 1, prompts={"lengths": {"name": "a", "key": "b"}}, multiTurnPercent=80)


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Where the stand-in is the program `vllm`."""
    program = tmp_path / "bin" / "vllm"
    program.parent.mkdir()
    program.write_text(f"#!{sys.executable}\n{STAND_IN.read_text()}")
    program.chmod(0o755)
    return program.parent


@contextmanager
def serving(programs: Path, folder: Path, **env: str) -> Iterator[str]:
    (port,) = free_ports(1)
    command = [programs / "vllm", "serve", "x", "--host", "127.0.0.1", "--port", str(port)]
    daemon = Daemon("stand-in", command, folder, env=env)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        daemon.stop()


def test_a_stand_in_is_measured(programs: Path, tmp_path: Path) -> None:
    with serving(programs, tmp_path) as url:
        lines = said(Path(sys.executable), programs, visit(url, 1.0, load(2, 8)))
    assert lines[0].ready
    assert lines[0].ready.version == "9.9"
    windows = [line.window for line in lines if line.window]
    assert [(one.load, one.round, one.seed, one.warmed) for one in windows] == [(2, 1, 3, True), (2, 1, 4, True)]
    assert all(one.requests > 4 and not one.errors for one in windows)
    assert lines[-1].done


def check_lengths(windows: list[Window], asked: Visit) -> None:
    for window in windows:
        turns = list(making.turns(asked.making, PROFILE.encode(), window.requests, window.load, Random(window.seed)))
        assert window.input_tokens == sum(one.input_tokens for one in turns)


def test_lengths_are_made_for_each_run(programs: Path, tmp_path: Path) -> None:
    profile = tmp_path / "lengths.csv"
    profile.write_text(PROFILE)
    with serving(programs, tmp_path) as url:
        asked = visit(url, 1.0, talks(2), profile)
        lines = said(Path(sys.executable), programs, asked)
    profile.write_text(PROFILE + "0,0,0\n")
    (failed,) = said(Path(sys.executable), programs, asked, status=1)
    assert lines[0].ready
    assert lines[0].ready.prompts.startswith("sha256:")
    windows = [line.window for line in lines if line.window]
    assert len(windows) == 2
    check_lengths(windows, asked)
    assert failed.failed == "the length profile: line 4: input_tokens is no whole number from 1 to 1048576"


def test_one_that_ends_is_told(programs: Path, tmp_path: Path) -> None:
    with serving(programs, tmp_path, STAND_IN_FAILS='{"0": "serve"}') as url:
        asked = visit(url, 1.0, load(2, 8))
        more = asked.model_copy(update={"measurements": [Measurement(load=2, seed=seed) for seed in range(5)]})
        lines = said(Path(sys.executable), programs, more, status=1)
    assert lines[-1].failed
    windows = [line.window for line in lines if line.window]
    assert [one.fault_seconds is not None for one in windows] == [False, False, True], "the fourth benchmark"
    assert "secret" not in str(lines)


@pytest.mark.long
def test_a_real_engine_is_measured(start_engine: Callable[..., RealEngine], tmp_path: Path) -> None:
    engine = start_engine().wait_ready()
    url = f"http://127.0.0.1:{engine.serving_port}"
    profile = tmp_path / "lengths.csv"
    profile.write_text(PROFILE)
    asked = visit(url, 10.0, talks(2), profile).model_copy(update={"requests": {2: 10}})
    windows = [line.window for line in said(VLLM.with_name("python"), VLLM.parent, asked) if line.window]
    assert len(windows) == 2
    check_lengths(windows, asked)
    for window in windows:
        turns = list(making.turns(asked.making, PROFILE.encode(), window.requests, window.load, Random(window.seed)))
        assert window.tokens == sum(one.output_tokens for one in turns)
        assert window.errors == {}
        before = [
            max((other.input_tokens for other in turns[:at] if other.talk == one.talk), default=0)
            for at, one in enumerate(turns)
        ]
        again = [min(seen, one.input_tokens) for seen, one in zip(before, turns, strict=True)]
        blocks = [min(seen, one.input_tokens - 1) // BLOCK * BLOCK for seen, one in zip(again, turns, strict=True)]
        assert window.prefix_cache_hit_rate is not None
        assert 0.1 < sum(blocks) / window.input_tokens <= window.prefix_cache_hit_rate + 1e-9
        assert window.prefix_cache_hit_rate <= sum(again) / window.input_tokens
    lines = said(VLLM.with_name("python"), VLLM.parent, visit(url, 10.0, load(2, 16)))
    windows = [line.window for line in lines if line.window]
    assert lines[-1].done
    assert len(windows) == 2
    for window in windows:
        assert window.requests >= 4
        assert window.tokens == 16 * window.requests
        assert window.errors == {}
        assert window.server.ttft
        assert window.server.tpot
        assert window.client.tpot
        assert window.prefix_cache_hit_rate is not None
