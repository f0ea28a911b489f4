"""Bursts that are wished for are ones that engines take."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import MAX_PROBE_SHARE, Probe
from paceline_operator.tuning.decide import settings_of
from paceline_operator.tuning.explore import KEEP_ALIVE_SECONDS, RARE_SECONDS, SETTLED_LOSS, Headroom, share_of, wish
from paceline_operator.tuning.look import Look
from tests.unit.simulated import spec

SETTINGS = settings_of(spec())
SIZE = len(SETTINGS.ladder)


@given(
    st.lists(st.floats(-50, 50), min_size=SIZE, max_size=SIZE),
    st.lists(st.floats(0, 1e30), min_size=SIZE, max_size=SIZE),
    st.sets(st.sampled_from(SETTINGS.ladder)),
    st.sampled_from(SETTINGS.ladder),
    st.floats(0, 1e15),
)
def test_whatever_was_measured_bursts_are_legal(
    gains: list[float], slow: list[float], missing: set[int], in_force: int, pace: float
) -> None:
    """A step of nonsense may seem to last a billion others."""
    here = Look(16, in_force, gains, [0.1] * SIZE, [True] * SIZE, slow)
    ages = dict.fromkeys(SETTINGS.ladder, 0.0)
    probe, _ = wish([here], missing, SETTINGS, ages, {}, 1000.0, Headroom(), None, pace=pace)
    assert probe is None or 0 < share_of(probe) <= MAX_PROBE_SHARE


def here(in_force: int, step: float, gains: dict[int, float], slow: float = 1.0) -> Look:
    """A load where gains are known to 1 %; `slow`: how much longer each draft makes a step."""
    return Look(
        load=16,
        in_force=in_force,
        gains=[gains.get(k, -1.0) for k in SETTINGS.ladder],
        errors=[0.01] * SIZE,
        known=[True] * SIZE,
        slow=[1 + slow * max(0, k - in_force) for k in SETTINGS.ladder],
        step=step,
    )


def test_where_steps_are_slow_the_nearest_are_observed_first() -> None:
    ages = dict.fromkeys(SETTINGS.ladder, 0.0)
    fast, slow = (
        wish([here(1, step, {})], SETTINGS.ladder, SETTINGS, ages, {}, 0.0, Headroom(), None)[0]
        for step in (0.005, 0.15)
    )
    assert fast is not None
    assert slow is not None
    assert set(fast.ks) == set(SETTINGS.ladder) - {1}
    assert slow.ks == (0,)


def test_a_bad_k_rests_the_longer_the_more_its_burst_costs() -> None:
    bad = {(16, k): 0.0 for k in SETTINGS.ladder if k > 1}
    ages = dict.fromkeys(SETTINGS.ladder, 2 * KEEP_ALIVE_SECONDS)
    for step, tried in ((0.005, True), (0.3, False)):
        wanted, _ = wish([here(1, step, {1: 0.0})], (), SETTINGS, ages, bad, 2 * KEEP_ALIVE_SECONDS, Headroom(), None)
        assert wanted is not None
        assert (SETTINGS.ladder[1] in wanted.ks) is tried


def test_a_hopeless_k_rests_from_when_it_was_found_so() -> None:
    bad = {(16, k): 1000.0 for k in SETTINGS.ladder if k > 1}
    ages = {k: 0.0 if k < 2 else math.inf for k in SETTINGS.ladder}
    for now, tried in ((1000.0, False), (1000.0 + 1.5 * KEEP_ALIVE_SECONDS, True)):
        wanted, _ = wish([here(1, 0.005, {1: 0.0})], (), SETTINGS, ages, bad, now, Headroom(), None)
        assert wanted is not None
        assert (SETTINGS.ladder[1] in wanted.ks) is tried


def test_other_bursts_are_pushed_at_once_where_a_load_is_new() -> None:
    """Also of the same k, where they were rare before."""
    ages = dict.fromkeys(SETTINGS.ladder, 0.0)
    rare = Probe(ks=(0,), settle_steps=2, burst_steps=8, interval_steps=5000)
    _, pressing = wish([here(1, 0.15, {})], (0,), SETTINGS, ages, {}, 0.0, Headroom(), rare)
    assert pressing


@given(
    ages=st.lists(st.floats(0, 1e5), min_size=SIZE, max_size=SIZE),
    gains=st.lists(st.floats(-1, 0), min_size=SIZE, max_size=SIZE),
    in_force=st.sampled_from(SETTINGS.ladder),
    thin=st.booleans(),
)
def test_whatever_is_due_keeps_no_other_waiting(
    ages: list[float], gains: list[float], in_force: int, thin: bool
) -> None:
    """Every k that has rested for an hour and two, whatever it costs, is among the bursts."""
    at = here(in_force, 0.001, dict(zip(SETTINGS.ladder, gains, strict=True)), slow=0.1)
    found = dict(zip(SETTINGS.ladder, ages, strict=True))
    bad = {(16, k): -1e6 for k, gain in zip(SETTINGS.ladder, gains, strict=True) if gain < -0.3 and k != in_force}
    wanted, _ = wish([at], (), SETTINGS, found, bad, 0.0, Headroom(), None, thin, 1000.0)
    waiting = {k for k, age in found.items() if age > 2 * RARE_SECONDS and k != in_force}
    assert waiting <= set(wanted.ks if wanted else ())


def test_the_baseline_alone_has_few_of_the_turns() -> None:
    """k=2 may be better; k=0 is far below, and costs no more than what it is there for."""
    ages = dict.fromkeys(SETTINGS.ladder, 0.0)
    at = here(1, 0.005, {2: 0.05, 0: -0.6})
    wanted, _ = wish([at], (), SETTINGS, ages, {}, 0.0, Headroom(), None, thin=True)
    assert wanted is not None
    assert set(wanted.ks) == {2, 0}
    assert share_of(wanted) * -math.expm1(-0.6) * wanted.ks.count(0) / len(wanted.ks) <= SETTLED_LOSS
    again, _ = wish([at], (), SETTINGS, ages, {}, 0.0, Headroom(), wanted, thin=True)
    assert again is wanted
