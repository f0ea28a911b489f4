"""Closed loops whose requests bring prompts, so that many or nearly all steps carry prompt tokens: the tuner observes
such a load in a bounded number of passes, keeps to its budget, and finds the k that is best with the prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import pytest

from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.replay.contest import Setup, Tuner
from paceline_operator.replay.engine import run
from paceline_operator.replay.score import tallies
from paceline_operator.replay.world import Arm, Prompts, Run, Scenario, Visit
from paceline_operator.tuning.explore import OBSERVING_SHARE
from paceline_operator.tuning.state import TunerState
from tests.unit.simulated import GOOD, POOR, grid

SMALL = grid("h200_llama8b_eagle_small.csv")
LADDER = (7, 5, 4, 3, 2, 1, 0)
USUAL = Prompts(tokens=512, reply_tokens=192, step_seconds=0.003, token_seconds=25e-6)
"""Replies of 128 to 256 tokens. An 8B model on an H200 computes some 40,000 prompt tokens a second."""


@dataclass
class Watched:
    """The tuner, and pass by pass which loads it had observed and what share of steps carried prompts."""

    tuner: Tuner
    boot: tuple[int, ...]

    def __post_init__(self) -> None:
        self.observed: list[set[int]] = []
        self.carrying: list[float] = []

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        found = self.tuner.pass_(state, samples, now)
        memory = self.tuner.memory.state
        assert isinstance(memory, TunerState)
        self.observed.append(set(memory.decided))
        steps = sum(cell.steps for cell in samples.cells)
        self.carrying.append(sum(cell.steps for cell in samples.cells if cell.prompt) / steps)
        return found


def played(
    loads: Sequence[int],
    *,
    prompts: Prompts = USUAL,
    survival: Sequence[float] = GOOD,
    seconds: float = 600.0,
    interval: float = 10.0,
    noise: float = 0.02,
    seed: int = 0,
) -> tuple[Scenario, Run, Watched]:
    def arms(load: int) -> dict[int, Arm]:
        return {k: Arm(SMALL(load, k), 1 + sum(survival[:k]), tuple(survival[:k])) for k in LADDER}

    setup = Setup(LADDER, max(loads), interval_seconds=interval)
    scenario = Scenario(setup, tuple(Visit(load, seconds, arms(load), "", prompts) for load in loads), noise)
    pacer = Watched(Tuner.of(setup), setup.boot_table)
    return scenario, run(scenario, pacer, np.random.default_rng(seed)), pacer


def explored(found: Run, start: float, end: float) -> float:
    """Share of time at other ks than the table's."""
    windows = [window for window in found if start <= window.start < end]
    total = sum(sum(window.seconds.values()) for window in windows)
    return 1 - sum(window.seconds.get(window.table_k, 0.0) for window in windows) / total


@pytest.mark.parametrize("survival", [GOOD, POOR], ids=["good", "poor"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_full_engine_whose_steps_nearly_all_carry_prompts_is_tuned(survival: Sequence[float], seed: int) -> None:
    scenario, found, watched = played((128, 256), survival=survival, seed=seed)
    passes = 60
    for number, load in enumerate((128, 256)):
        first = number * passes
        there = next(at for at in range(first, first + passes) if load in watched.observed[at])
        assert there - first <= 5
        assert np.mean(watched.carrying[first : first + passes]) > (0.55 if load == 128 else 0.8)
        assert explored(found, 10.0 * first, 10.0 * (there + 1)) <= 1.2 * OBSERVING_SHARE
        assert explored(found, 10.0 * (there + 2), 10.0 * (first + passes)) <= 0.06
    for load, tally in tallies(scenario, found).items():
        assert tally.steady_got / tally.steady_oracle >= 0.98, load
        assert tally.got / tally.oracle >= 0.97, load


def test_short_visits_are_enough() -> None:
    """As the closed loop on an H200 is driven: half a minute a load at an interval of 2 s."""
    loads = (8, 32, 64, 128, 256)
    _, found, watched = played((*loads, *reversed(loads)), seconds=30.0, interval=2.0)
    for load, end in zip(loads, accumulate([15] * len(loads)), strict=True):
        assert load in watched.observed[end - 1]
    assert explored(found, 150.0, 300.0) <= 0.07


@pytest.mark.parametrize(
    "prompts",
    [
        Prompts(tokens=256, reply_tokens=48, step_seconds=0.003, token_seconds=25e-6),
        Prompts(tokens=512, reply_tokens=192, step_seconds=0.02, token_seconds=25e-6),
        Prompts(tokens=8192, reply_tokens=256, step_seconds=0.003, token_seconds=25e-6),
        Prompts(tokens=512, reply_tokens=192, step_seconds=0.0, token_seconds=1e-7),
        Prompts(tokens=512, reply_tokens=192, step_seconds=0.0, token_seconds=25e-6, least_seconds=0.02),
    ],
    ids=["every step", "another graph", "long prompts", "for nothing", "slow to launch"],
)
def test_whatever_prompts_cost_the_best_k_is_found(prompts: Prompts) -> None:
    """Of long prompts a few in flight are a full engine."""
    loads = (8, 32) if prompts.tokens > 1000 else (64, 128)
    scenario, found, watched = played(loads, prompts=prompts)
    assert set(loads) <= watched.observed[-1]
    for load, tally in tallies(scenario, found).items():
        assert tally.steady_got / tally.steady_oracle >= 0.98, load


def test_prompts_that_come_and_go_do_not_make_k_flap() -> None:
    """The same load with prompts and without by turns of ten minutes: what decode steps cost is the same."""
    setup = Setup(LADDER, 128)
    arms = {k: Arm(SMALL(128, k), 1 + sum(GOOD[:k]), tuple(GOOD[:k])) for k in LADDER}
    visits = tuple(Visit(128, 600.0, arms, "", USUAL if number % 2 else None) for number in range(6))
    scenario = Scenario(setup, visits, 0.02)
    pacer = Tuner.of(setup)
    found = run(scenario, pacer, np.random.default_rng(4))
    late = [decision for at, decision in pacer.decisions if at > 600]
    assert len(late) <= 6
    (tally,) = tallies(scenario, found).values()
    assert tally.got / tally.oracle >= 0.98
