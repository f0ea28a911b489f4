"""The load beside an engine: what it asks, in which order, and what it says of an engine that fails."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.trial.__main__ import Measurer
from paceline_engine.trial.serve import BenchError
from paceline_engine.trial.visit import Line, Measurement, Visit, read
from paceline_engine.trial.waves import warm_up_seed

Call = tuple[int, int, int]


def visit(**fields: Any) -> Visit:
    measurements = [Measurement(load=1, seed=5), Measurement(load=4, seed=6)]
    given = {"url": "http://engine", "round": 1, "arguments": [], "seconds": 10, "start_seconds": 3, "warm_up": [4, 1]}
    return Visit.model_validate({**given, "measurements": measurements, **fields})


class Engine:
    """Answers until `dies_at` runs were made; `deaf`: it never answers."""

    def __init__(self, *, dies_at: int = 99, deaf: bool = False) -> None:
        self.calls: list[Call] = []
        self.dies_at, self.deaf = dies_at, deaf

    def ask(self, path: str) -> str:
        if self.deaf or len(self.calls) >= self.dies_at:
            raise OSError("refused")
        return {"/version": '{"version": "0.33.0"}'}.get(path, "")

    def run(self, load: int, requests: int, seed: int, seconds: float) -> bytes:
        assert seconds > 300
        if self.deaf or len(self.calls) >= self.dies_at:
            raise BenchError("ended with status 1")
        self.calls.append((load, requests, seed))
        each = {"output_lens": [8], "ttfts": [0.1], "itls": [[0.1]], "latencies": [2.0], "errors": [""]}
        many = {name: value * requests for name, value in each.items()}
        counts = {"completed": requests, "total_input_tokens": 8 * requests, "total_output_tokens": 8 * requests}
        times = {"max_concurrency": load, "duration": 12.0, "start_times": [time.perf_counter()] * requests}
        return json.dumps({**many, **counts, **times, "generated_texts": ["a secret"] * requests}).encode()


def said(engine: Engine, asked: Visit) -> list[Line]:
    return list(Measurer(asked, engine.run, engine.ask, sleep=lambda _: None).lines())


def test_shapes_first_then_windows() -> None:
    engine = Engine()
    lines = said(engine, visit())
    assert engine.calls == [
        (4, 8, warm_up_seed(4)), (1, 2, warm_up_seed(1)), (1, 5, 5), (4, 20, 6),
    ], "ten seconds of requests of two seconds each"  # fmt: skip
    assert [line.warm and (line.warm.load, line.warm.requests) for line in lines[1:3]] == [(4, 20), (1, 5)]
    windows = [line.window for line in lines if line.window]
    assert [(one.load, one.round, one.seed, one.warmed) for one in windows] == [(1, 1, 5, True), (4, 1, 6, True)]
    assert lines[0].ready
    assert lines[0].ready.version == "0.33.0"
    assert lines[-1].done
    text = "\n".join(line.model_dump_json(by_alias=True, exclude_defaults=True) for line in lines)
    assert "secret" not in text
    assert list(read(f"noise\n{text}\n{{")) == lines


def test_what_an_earlier_engine_has_told_holds() -> None:
    engine = Engine()
    said(engine, visit(requests={1: 7, 4: 9}))
    assert [call[:2] for call in engine.calls] == [(4, 4), (1, 1), (1, 7), (4, 9)]


def test_an_engine_that_never_answers() -> None:
    (line,) = said(Engine(deaf=True), visit())
    assert line.failed == "the engine did not answer /health within 3 s"


@pytest.mark.parametrize(("dies_at", "windows"), [(1, 0), (2, 0), (3, 1), (4, 2)])
def test_an_engine_that_ends(dies_at: int, windows: int) -> None:
    lines = said(Engine(dies_at=dies_at), visit())
    assert lines[-1].failed
    assert not any(line.done for line in lines)
    found = [line.window for line in lines if line.window]
    assert len(found) == windows
    assert [one.fault_seconds is not None for one in found] == [False] * (windows - 1) + [True] * bool(windows)


@given(st.text(max_size=200) | st.builds(lambda value: json.dumps(value), st.dictionaries(st.text(), st.integers())))
def test_no_log_can_raise(log: str) -> None:
    list(read(log))
