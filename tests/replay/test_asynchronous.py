"""The tuner with an engine that launches each step while another runs: prompts lengthen now one, now the other."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from paceline_operator.replay.contest import Tuner
from tests.replay.asynchronous import LADDER, LAUNCH_MS, fixed, serving, setup

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200" / "mixed.json"
INTERVAL, VISIT, NOISE = 2.0, 30.0, 0.02


def after(turns: Sequence[Sequence[float]], lag: int) -> tuple[float, float]:
    """Mean milliseconds of the turns `lag` after one that requests came in, and of the others."""
    came = [False] * lag + [bool(new) for _, _, new in turns]
    sides = [[took for (took, _, _), new in zip(turns, came, strict=False) if new is side] for side in (True, False)]
    return float(np.mean(sides[0])) * 1000, float(np.mean(sides[1])) * 1000


@pytest.mark.parametrize("k", [0, 1, 2, 3])
def test_its_turns_are_those_of_an_h200(k: int) -> None:
    """At k = 0 and 1 those that launch prompts are long; at 2 and 3 those that wait for prompts, a turn later."""
    measured = json.loads(MEASURED.read_text())["by_load"]["256"][str(k)]["steps"]
    turns = [(took / 1e6, tokens, new) for took, tokens, new in measured]
    _, simulated = fixed(256, k, LAUNCH_MS[256])
    assert np.mean([took for took, _, _ in simulated]) == pytest.approx(np.mean([turn[0] for turn in turns]), rel=0.08)
    for lag in (1, 2):
        expected, found = after(turns, lag), after(simulated, lag)
        assert found[0] - found[1] == pytest.approx(expected[0] - expected[1], abs=3.0), lag


@pytest.mark.parametrize("launch_ms", [LAUNCH_MS[256], 32.0])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_k_is_found_wherever_prompts_take_their_time(seed: int, launch_ms: float) -> None:
    """At 256 requests k = 1 is worth less than 2 and 3 where the host is slow, and more where it is fast."""
    tuner = Tuner.of(setup(INTERVAL))
    engine = serving(tuner, np.random.default_rng(seed), launch_ms, NOISE)
    loads = (64, 128, 256)
    spent = [engine.visit(tuner, load, VISIT, INTERVAL) for load in (*loads, *loads[::-1])]
    for load, by_k in zip(loads[::-1], spent[len(loads) :], strict=True):
        rates = {k: fixed(load, k, launch_ms)[0] for k in LADDER}
        got = sum(rates[k] * seconds for k, seconds in by_k.items()) / sum(by_k.values())
        assert got >= 0.97 * max(rates.values()), (load, rates, by_k)
