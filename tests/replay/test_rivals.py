"""The rivals do what their authors wrote: each rule on numbers worked out by hand, then in the simulated engine."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.tuner.bandits import EpsilonGreedy, Ucb
from benchmarks.tuner.rival import nearest
from benchmarks.tuner.schedules import DOCUMENTED, PULL_REQUEST, Schedule
from benchmarks.tuner.sglang import SglangEma, Slot
from benchmarks.tuner.turbospec import TurboSpec
from paceline_operator.replay.contest import Pacer, Setup
from paceline_operator.replay.courses import geometric
from paceline_operator.replay.engine import run
from paceline_operator.replay.world import Arm, Run, Scenario, Visit

LADDER = (7, 5, 3, 1, 0)
SETUP = Setup(LADDER, 256, interval_seconds=1.0)


def seconds(load: int, k: int) -> float:
    """Linear, as TurboSpec believes."""
    return 0.01 + 0.0004 * k + 2e-5 * load * (k + 1)


def visit(load: int, acceptance: float, minutes: float = 10) -> Visit:
    """`acceptance`: chance of each next draft."""
    arms = {}
    for k in LADDER:
        survival = tuple(acceptance**i for i in range(1, k + 1))
        arms[k] = Arm(seconds(load, k), 1 + sum(survival), survival)
    return Visit(load, 60 * minutes, arms)


def best(at: Visit) -> int:
    return max(at.rates, key=lambda k: at.rates[k])


def play(pacer: Pacer, *visits: Visit, noise: float = 0.02) -> Run:
    return run(Scenario(SETUP, visits, noise), pacer, np.random.default_rng(1))


def shares(found: Run, last: int) -> dict[int, float]:
    """Time by k in the last windows."""
    spent: dict[int, float] = {}
    for window in found[-last:]:
        for k, time in window.seconds.items():
            spent[k] = spent.get(k, 0.0) + time / last
    return spent


def test_vllms_schedules_row_by_row() -> None:
    assert [Schedule.of(Setup((3, 2, 1, 0), 300), PULL_REQUEST).boot[n] for n in (1, 16, 63, 64, 255, 256)] == [
        3,
        3,
        3,
        2,
        2,
        0,
    ]
    assert [Schedule.of(Setup((3, 2, 1, 0), 300), DOCUMENTED).boot[n] for n in (64, 65, 128, 129)] == [3, 1, 1, 0]
    assert nearest((7, 0), 3) == 0
    assert nearest((5, 3, 1), 2) == 1


@pytest.mark.parametrize(
    ("steps", "ema", "accepted", "then"),
    [
        (3, 2.0, 2.6, 5),  # above 3 - 0.5
        (5, 3.0, 2.2, 3),  # at most 3 - 0.5 - 0.25
        (5, 3.0, 2.4, 5),  # the hysteresis holds it
        (3, 2.0, 0.2, 1),  # at most 1 - 0.5 - 0.25
        (1, 0.0, 0.9, 3),
    ],
)
def test_sglangs_slot_for_small_batches(steps: int, ema: float, accepted: float, then: int) -> None:
    slot = Slot((1, 3, 5, 7), -0.25, steps, ema)
    slot.update(accepted, 100)
    assert slot.steps == then


def test_sglangs_slot_at_zero_tries_one_and_returns() -> None:
    slot = Slot((0, 1), 0.0, 1, 0.0)
    slot.update(0.3, 20)
    assert slot.steps == 0
    slot.update(0.0, 5)
    assert slot.steps == 1
    slot.update(0.3, 5)
    assert slot.steps == 0


def test_sglang_waits_for_its_warm_up() -> None:
    slot = Slot((1, 3, 5, 7), -0.25, 3, 2.0)
    slot.update(3.0, 10)
    assert slot.steps == 3
    slot.update(3.0, 5)
    assert slot.steps == 5


def test_sglang_drafts_nothing_from_64_requests_on() -> None:
    assert SglangEma.of(SETUP).boot[64:] == (0,) * 193
    assert shares(play(SglangEma.of(SETUP), visit(4, 0.95)), 60) == {7: pytest.approx(1.0)}


@pytest.mark.parametrize(("load", "acceptance"), [(1, 0.9), (32, 0.7), (128, 0.7), (256, 0.3)])
def test_turbospec_finds_the_best_k_where_its_model_is_true(load: int, acceptance: float) -> None:
    profile = {(n, k): seconds(n, k) for n in (1, 16, 64, 256) for k in LADDER}
    at = visit(load, acceptance)
    spent = shares(play(TurboSpec.of(SETUP, profile), at), 120)
    assert max(spent, key=lambda k: spent[k]) == best(at)
    assert spent[best(at)] > 0.95


def test_ucb_pulls_every_arm_and_comes_to_the_best() -> None:
    at = visit(64, 0.6)
    found = play(Ucb.of(SETUP, np.random.default_rng(0)), at)
    assert {window.table_k for window in found[:7]} == set(LADDER)
    assert shares(found, 240)[best(at)] > 0.5


def test_epsilon_greedy_explores_its_share_and_bars_what_is_worse_than_nothing() -> None:
    at = visit(256, 0.2)
    assert best(at) == 0
    found = play(EpsilonGreedy.of(SETUP, np.random.default_rng(0)), at)
    spent = shares(found, 300)
    assert spent[0] > 0.97, "k 7 and 5 are below 0.9 of k=0 and barred"
    spent = shares(play(EpsilonGreedy.of(SETUP, np.random.default_rng(0)), visit(4, 0.8)), 300)
    assert 0.05 < 1 - max(spent.values()) < 0.2


def test_epsilon_greedy_starts_anew_where_a_load_becomes_worse() -> None:
    good, bad = visit(4, 0.9), visit(4, 0.05)
    assert best(good) != best(bad)
    spent = shares(play(EpsilonGreedy.of(SETUP, np.random.default_rng(3)), good, bad), 300)
    assert max(spent, key=lambda k: spent[k]) == best(bad)


def test_geometric_survival_is_what_turbospec_assumes() -> None:
    assert geometric(1 + 0.5 + 0.25, 2) == pytest.approx((0.5, 0.25))
