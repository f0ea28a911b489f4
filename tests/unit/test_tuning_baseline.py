"""The two baselines: intervals that hold whenever they are looked at, hold-outs, and what follows from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from paceline_engine.protocol import load_bucket
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status import Tier
from paceline_operator.tuning import baseline, holdout
from paceline_operator.tuning.baseline import Running, added, bounds, ratio
from paceline_operator.tuning.holdout import History
from paceline_operator.tuning.model import Restarts
from tests.unit.simulated import Loop, SimulatedEngine, fixed, goodput, grid, workload

DENSE, EAGLE = grid("h200_dense32b_eagle.csv"), workload("gsm8k")


@pytest.mark.parametrize("deviation", [0.02, 0.1])
def test_the_interval_holds_at_every_look(deviation: float) -> None:
    """300 sequences, looked at after each of 400 windows: few ever leave the truth out."""
    rng = np.random.default_rng(0)
    missed = 0
    for _ in range(300):
        running: Mapping[int, Running] = {}
        ever = False
        for log in rng.normal(-0.03, deviation, 400).tolist():
            running = added(running, 8, 3, log)
            found = bounds(running[8])
            ever |= found is not None and abs(found[0] + 0.03) > found[1]
        missed += ever
    assert missed <= 0.05 * 300


def test_it_narrows_and_tells_a_difference_of_a_few_percent() -> None:
    running: Mapping[int, Running] = {}
    widths = []
    for log in np.random.default_rng(1).normal(-0.05, 0.03, 60).tolist():
        running = added(running, 8, 3, log)
        if found := bounds(running[8]):
            widths.append(found[1])
    assert all(b < 1.5 * a for a, b in pairwise(widths))
    assert widths[-1] < 0.02
    mean, half = bounds(running[8]) or (0.0, 0.0)
    assert mean + half < 0


def test_another_k_in_force_starts_anew() -> None:
    running = added(added({}, 8, 3, 0.5), 8, 2, 0.1)
    assert running[8] == Running(2, 1, 0.1, 0.1 * 0.1)


def test_loads_are_weighted_by_time_and_other_ks_left_out() -> None:
    running: Mapping[int, Running] = {}
    for _ in range(10):
        running = added(added(added(running, 1, 5, math.log(2)), 8, 5, math.log(1.5)), 64, 5, math.log(0.5))
    table = (5,) * 64 + (0,)
    found = ratio(running, table, {1: 1.0, 8: 3.0, 64: 0.0}, one=True)
    assert found is not None
    assert math.log(found.value) == pytest.approx(0.25 * math.log(2) + 0.75 * math.log(1.5))
    assert found.low < found.value < found.high
    off = ratio({}, table, {64: 2.0}, one=True)
    assert off is not None
    assert (off.low, off.value, off.high) == (1.0, 1.0, 1.0), "k=0 is k=0"
    assert ratio({}, table, {64: 2.0}) is None, "but not an engine without a drafter"
    assert ratio({}, table, {1: 1.0}) is None


@bounded(deadline=None)
@given(st.lists(st.floats(allow_nan=False), max_size=40), st.floats(1e-6, 0.5))
def test_any_windows_give_a_finite_interval(logs: list[float], error: float) -> None:
    running: Mapping[int, Running] = {}
    for log in logs:
        running = added(running, 1, 2, log)
    found = bounds(running.get(1), error)
    assert found is None or len(logs) >= baseline.MIN_WINDOWS
    assert found is not None or error < 0.05 or len(logs) < baseline.MIN_WINDOWS
    if found:
        assert math.isfinite(found[0])
        assert found[1] > 0


def test_k_that_bursts_show_to_be_below_k0_is_left_for_a_while() -> None:
    """The model is sure of k=1 from wrong counts of acceptance; the tokens that come out say otherwise."""
    loop = Loop.of(lambda n, k: 0.02 * (1 + 0.3 * k), fixed((0.5, 0.3, 0.2, 0.1, 0.1)), noise=0.01)
    for _ in range(30):
        engine = loop.engines["pod-0"]
        engine.requests = 16
        loop.now += 10
        answer = engine.answer(10.0)
        assert answer.samples
        cells = tuple(cell.model_copy(update={"emitted": cell.request_steps}) for cell in answer.samples.cells)
        step = loop.take([replace(answer, samples=answer.samples.model_copy(update={"cells": cells}))])
    made = [decision for decision in loop.decisions if decision.reason is Reason.BASELINE]
    assert len(made) == 1
    assert made[0].to_k == step.k == 0
    assert "of k=0 in the same engines" in made[0].message


def alone(loop: Loop, cost_factor: float) -> None:
    """Add an engine without a drafter."""
    loop.engines = {
        **loop.engines,
        "holdout": SimulatedEngine(
            lambda n, _: DENSE(n, 0) * cost_factor,
            fixed(()),
            (0,) * 257,
            (0,),
            np.random.default_rng(9),
            0.02,
            live=False,
            max_k=0,
        ),
    }


def test_a_hold_out_gives_the_ratio_and_disturbs_nothing() -> None:
    plain = Loop.of(DENSE, EAGLE, noise=0.02)
    loop = Loop.of(DENSE, EAGLE, noise=0.02)
    alone(loop, 0.95)
    assert plain.run(30, 16).ratio_to_no_drafter is None
    step = loop.run(30, 16)
    assert step.tier is Tier.LIVE
    assert step.tiers["holdout"][0] is Tier.OFF
    assert "holdout" not in step.push_to
    assert step.table == plain.steps[-1].table
    assert step.ratio_to_no_drafter is not None
    assert step.k is not None
    true = goodput(DENSE, EAGLE, 16, step.k) / (16 / (0.95 * DENSE(16, 0)))
    assert step.ratio_to_no_drafter.low <= true <= step.ratio_to_no_drafter.high
    assert step.ratio_to_no_drafter.value == pytest.approx(true, rel=0.03)
    assert step.ratio_to_k0 is not None
    assert step.ratio_to_k0.value > step.ratio_to_no_drafter.value, "another machine"
    assert step.restarts == Restarts()


def test_step_times_of_a_profile_stand_in_for_a_hold_out() -> None:
    loop = Loop.of(DENSE, EAGLE, noise=0.02)
    loop.settings = replace(loop.settings, off_step_seconds={16: DENSE(16, 0)})
    step = loop.run(20, 16)
    assert step.ratio_to_no_drafter is not None
    assert step.ratio_to_no_drafter.value == pytest.approx(goodput(DENSE, EAGLE, 16, 5) * DENSE(16, 0) / 16, rel=0.03)
    assert loop.run(80, 64).ratio_to_no_drafter is None, "unknown at this load"


def test_better_without_a_drafter_for_long_is_a_proposal() -> None:
    loop = Loop.of(DENSE, fixed((0.02,) * 7), noise=0.02)
    alone(loop, 0.9)
    loop.run(100, 64)
    assert loop.steps[-1].restarts == Restarts(), "not for long enough"
    step = loop.run(200, 64)
    found = step.restarts.without_drafter
    assert found is not None
    assert found.low <= found.value <= found.high < 1


def test_k0_for_long_is_a_proposal_that_says_what_is_not_known() -> None:
    loop = Loop.of(lambda n, k: 0.02 * (1 + k), fixed((0.1,) * 7), noise=0.02)
    step = loop.run(260, 16)
    assert step.k == 0
    assert step.ratio_to_no_drafter is None
    assert step.restarts == Restarts(off_for_long=True)


def test_only_engines_without_a_drafter_tune_nothing() -> None:
    loop = Loop.of(DENSE, EAGLE)
    alone(loop, 1.0)
    loop.engines = {"holdout": loop.engines["holdout"]}
    step = loop.run(10, 16)
    assert not step.holding
    assert step.tier is Tier.OFF
    assert step.reason is Reason.RESTART_TIER
    assert step.policy is None


@bounded(deadline=None)
@given(st.lists(st.dictionaries(st.integers(1, 300), st.floats(0, 1e6), max_size=3), max_size=20), st.floats(0, 7200))
def test_history_never_holds_more_off_time_than_time(passes: list[dict[int, float]], seconds: float) -> None:
    found = History()
    for decoded in passes:
        found = holdout.aged(found, {load_bucket(load): spent for load, spent in decoded.items()}, (0,) * 400, seconds)
    assert found.off_seconds <= sum(found.seconds.values()) + len(passes) * 24 + 1e-6 * found.off_seconds
    assert holdout.better_without({}, found) is None
