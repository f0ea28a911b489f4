"""How many pods: bounds, order (k first), windows, and a load that wavers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.api.conditions import Reason
from paceline_operator.scaling.replicas import K_FIRST_SECONDS, SETTLE_SECONDS, TOLERANCE, decide
from paceline_operator.scaling.values import Decision, Pace, Past, Sight, Terms

TERMS = Terms(minimum=1, maximum=8, target_requests=10, down_window_seconds=300)
SLOW, FAST = Pace(5, 1000.0, 0.020), Pace(0, 1500.0, 0.012)


def sight(replicas: int, requests: float | None, **more: object) -> Sight:
    """All pods ready and answering, k=5 in force at load 8."""
    there = Sight(replicas, replicas, replicas, replicas, requests, load=8, table={8: 5})
    return dataclasses.replace(there, **more)  # type: ignore[arg-type]


def run(
    terms: Terms, totals: Sequence[float | None], *, replicas: int = 1, seconds: float = 10, **more: object
) -> list[Decision]:
    """Passes over `totals`, each decision carried out at once."""
    past, made = Past(), []
    for index, total in enumerate(totals):
        decision = decide(terms, sight(replicas, total, **more), past, index * seconds)
        past, replicas = decision.past, decision.replicas
        made.append(decision)
    return made


terms = st.builds(
    lambda low, more, target, limit, up, down, steps: Terms(
        minimum=low,
        maximum=low + more,
        target_requests=target,
        token_limit_seconds=limit if target else limit or 0.05,
        up_window_seconds=up,
        down_window_seconds=down,
        up_step=steps[0],
        down_step=steps[1],
    ),
    st.integers(1, 5),
    st.integers(0, 20),
    st.none() | st.integers(1, 200),
    st.none() | st.floats(0.001, 1),
    st.floats(0, 100),
    st.floats(0, 600),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
)
paces = st.lists(
    st.builds(Pace, st.sampled_from([0, 1, 3, 5]), st.floats(1, 1e5), st.floats(1e-4, 1)), unique_by=lambda pace: pace.k
).map(tuple)


@st.composite
def sights(draw: st.DrawFn) -> Sight:
    replicas = draw(st.integers(0, 30))
    ready = draw(st.integers(0, replicas))
    return Sight(
        replicas=replicas,
        pods=draw(st.integers(ready, 40)),
        ready=ready,
        answering=draw(st.integers(0, ready)),
        requests=draw(st.none() | st.floats(0, 1e5)),
        load=draw(st.none() | st.sampled_from([1, 8, 64])),
        table=draw(st.dictionaries(st.sampled_from([1, 8, 64]), st.sampled_from([0, 1, 3, 5]))),
        paces=draw(paces),
        steerable=draw(st.booleans()),
        measuring=draw(st.booleans()),
        token_seconds=draw(st.dictionaries(st.sampled_from([1, 8, 64]), st.floats(1e-4, 1))),
        late_first_tokens=draw(st.booleans()),
        frozen=draw(st.sampled_from(["", "a rollout"])),
    )


@given(terms, st.lists(st.tuples(sights(), st.floats(0, 400)), max_size=12))
def test_bounds_and_steps_are_kept_whatever_is_seen(asked: Terms, seen: list[tuple[Sight, float]]) -> None:
    past, now = Past(), 0.0
    for there, seconds in seen:
        now += seconds
        decision = decide(asked, there, past, now)
        past, at, to = decision.past, there.replicas, decision.replicas
        if at == 0:
            assert to == 0
            continue
        assert asked.minimum <= to <= asked.maximum
        if asked.minimum <= at <= asked.maximum:
            assert -asked.down_step <= to - at <= asked.up_step
            if there.requests is None or there.frozen:
                assert to == at
            assert (to > at) <= (decision.reason is Reason.ABOVE_TARGET)
            assert (to < at) <= (decision.reason is Reason.BELOW_TARGET)
        assert decision.message


@given(terms, sights(), st.lists(st.floats(0, 1e4), max_size=6), st.floats(0, 1e4), st.floats(0, 1e4))
def test_more_requests_never_make_fewer_pods(
    asked: Terms, there: Sight, before: list[float], one: float, other: float
) -> None:
    past, now = Past(), 0.0
    for total in before:
        past = decide(asked, dataclasses.replace(there, requests=total), past, now).past
        now += 30
    few, many = sorted((one, other))
    low = decide(asked, dataclasses.replace(there, requests=few), past, now)
    high = decide(asked, dataclasses.replace(there, requests=many), past, now)
    assert low.replicas <= high.replicas


@settings(max_examples=40)
@given(st.floats(1, 75), st.lists(st.floats(-1, 1), min_size=60, max_size=60))
def test_a_load_that_wavers_within_the_tolerance_changes_nothing_twice(mean: float, noise: list[float]) -> None:
    """It may buy for the highest wave and give back what the highest within the window does not need: then it rests."""
    spread = 0.99 * TOLERANCE / (2 + TOLERANCE)
    made = run(TERMS, [mean * (1 + spread * wave) for wave in noise], replicas=4)
    path = [4, *(decision.replicas for decision in made)]
    steps = [after - before for before, after in pairwise(path) if after != before]
    assert not any(before < 0 < after for before, after in pairwise(steps))


@settings(max_examples=40)
@given(st.integers(0, 80))
def test_a_steady_load_ends_at_the_pods_it_needs(total: int) -> None:
    made = run(TERMS, [float(total)] * 80, replicas=3)
    at, needs = made[-1].replicas, max(1, math.ceil(total / 10))
    assert at == needs or abs(total / (10 * at) - 1) <= TOLERANCE
    assert made[-1].replicas == made[-10].replicas


def test_a_dip_shorter_than_the_window_takes_no_pod_and_a_longer_one_takes_one_at_a_time() -> None:
    busy, quiet = [40.0] * 40, [5.0] * 29
    assert {decision.replicas for decision in run(TERMS, [*busy, *quiet, *busy], replicas=4)} == {4}
    made = run(TERMS, [*busy, *quiet, *[5.0] * 10], replicas=4)
    assert made[60].reason is Reason.STABILIZING
    assert [decision.replicas for decision in made[-10:]] == [4, 3, 2, 1, 1, 1, 1, 1, 1, 1]


def test_a_spike_shorter_than_the_window_upwards_buys_nothing() -> None:
    slow = dataclasses.replace(TERMS, up_window_seconds=60)
    assert {decision.replicas for decision in run(slow, [5.0] * 10 + [90.0] * 6 + [5.0] * 5)} == {1}
    assert run(slow, [5.0] * 10 + [90.0] * 7)[-1].replicas == 5


@settings(max_examples=40)
@given(st.lists(st.integers(0, 90), min_size=1, max_size=80), st.integers(1, 8), st.sampled_from([0, 30, 120]))
def test_a_change_is_what_the_whole_window_wanted(totals: list[int], replicas: int, up: int) -> None:
    asked = dataclasses.replace(TERMS, up_window_seconds=up, down_window_seconds=120)
    at = replicas
    for index, decision in enumerate(run(asked, [float(total) for total in totals], replicas=replicas)):
        window = asked.up_window_seconds if decision.replicas > at else asked.down_window_seconds
        seen = totals[max(0, index - int(window / 10)) : index + 1]
        needs = [at if abs(total / (10 * at) - 1) <= TOLERANCE else math.ceil(total / 10) for total in seen]
        if decision.replicas != at:
            assert 10 * index >= window
        if decision.replicas > at:
            assert at < decision.replicas <= min(needs)
        if decision.replicas < at:
            assert at > decision.replicas >= max(1, max(needs))
        at = decision.replicas


def test_after_a_gap_and_after_a_restart_the_window_downwards_begins_anew() -> None:
    made = run(TERMS, [5.0] * 31, replicas=2)
    assert [decision.replicas for decision in made[-2:]] == [2, 1]
    gap: list[float | None] = [5.0, *[None] * 7]
    made = run(TERMS, [*gap, *[5.0] * 31], replicas=2)
    assert {decision.replicas for decision in made[:-1]} == {2}
    assert made[3].holding
    assert made[3].reason is Reason.NO_PODS
    assert made[-1].replicas == 1


def test_the_step_upwards_is_bounded_and_the_maximum_is_told() -> None:
    made = run(TERMS, [500.0] * 4)
    assert [decision.replicas for decision in made] == [5, 8, 8, 8]
    assert [decision.reason for decision in made] == [Reason.ABOVE_TARGET] * 2 + [Reason.AT_MAXIMUM] * 2


def test_the_minimum_is_told() -> None:
    assert run(TERMS, [0.0] * 40)[-1].reason is Reason.AT_MINIMUM


def test_out_of_bounds_is_put_right_at_once_and_without_numbers() -> None:
    low = decide(dataclasses.replace(TERMS, minimum=3), sight(1, None), Past(), 0)
    high = decide(TERMS, sight(20, None), Past(), 0)
    assert (low.replicas, low.reason) == (3, Reason.AT_MINIMUM)
    assert (high.replicas, high.reason) == (8, Reason.AT_MAXIMUM)


def test_zero_by_hand_stays_zero() -> None:
    decision = decide(TERMS, sight(0, None), Past(), 0)
    assert (decision.replicas, decision.reason) == (0, Reason.SCALED_TO_ZERO)


def test_a_better_k_goes_first_and_for_a_minute_at_most() -> None:
    made = run(TERMS, [50.0] * 8, paces=(SLOW, FAST), steerable=True)
    waits = int(K_FIRST_SECONDS / 10)
    assert {decision.reason for decision in made[:waits]} == {Reason.BETTER_K_FIRST}
    assert "k 0 in place of 5" in made[0].message
    assert made[waits].reason is Reason.ABOVE_TARGET
    assert run(TERMS, [50.0], paces=(SLOW, FAST))[0].replicas == 5, "k cannot be changed"
    assert run(TERMS, [50.0], paces=(FAST,), steerable=True)[0].replicas == 5, "the k in force is not measured"
    near = dataclasses.replace(FAST, goodput=1005.0)
    assert run(TERMS, [50.0], paces=(SLOW, near), steerable=True)[0].replicas == 5, "the tuner does not move for that"


def test_a_load_at_which_ks_are_still_measured_waits_for_them_as_long() -> None:
    made = run(TERMS, [50.0] * 8, paces=(FAST,), steerable=True, measuring=True)
    assert [decision.reason for decision in made[5:7]] == [Reason.BETTER_K_FIRST, Reason.ABOVE_TARGET]


def test_a_lower_k_that_meets_the_limit_goes_first_even_if_it_gives_less() -> None:
    asked = Terms(minimum=1, maximum=8, token_limit_seconds=0.015)
    gentle = Pace(0, 900.0, 0.012)
    load = {8: 0.012}
    made = decide(asked, sight(1, 9.0, paces=(SLOW, gentle), steerable=True, token_seconds=load), Past(), 0)
    assert made.reason is Reason.BETTER_K_FIRST
    stuck = decide(asked, sight(1, 9.0, paces=(SLOW, gentle), token_seconds={8: 0.02, 4: 0.014}), Past(), 0)
    assert (stuck.replicas, stuck.reason) == (3, Reason.ABOVE_TARGET)


def test_a_k_that_changed_since_the_last_look_gets_one_look_before_pods_are_bought() -> None:
    first = decide(TERMS, sight(1, 50.0, paces=(SLOW, FAST), steerable=True), Past(), 0)
    second = decide(TERMS, sight(1, 50.0, paces=(SLOW, FAST), table={8: 0}, steerable=True), first.past, 10)
    third = decide(TERMS, sight(1, 50.0, paces=(SLOW, FAST), table={8: 0}, steerable=True), second.past, 20)
    assert [one.reason for one in (first, second, third)] == [Reason.BETTER_K_FIRST] * 2 + [Reason.ABOVE_TARGET]


def test_what_was_seen_is_counted_in_requests_of_the_present_k() -> None:
    """Under a k that gives half as much again, 30 requests would have been 20: two pods are enough for the window."""
    before = run(TERMS, [30.0] * 31, replicas=3, paces=(SLOW, FAST))[-1].past
    there = sight(3, 20.0, paces=(SLOW, FAST), table={8: 0})
    assert decide(TERMS, there, before, 310).replicas == 2
    assert decide(TERMS, dataclasses.replace(there, table={8: 5}), before, 310).replicas == 3
    elsewhere = dataclasses.replace(there, load=1, table={8: 5, 1: 0})
    assert decide(TERMS, elsewhere, before, 310).replicas == 3, "a k of another load is no other k"


def test_the_limit_scales_by_what_ks_give_and_moves_with_them() -> None:
    asked = Terms(minimum=1, maximum=8, token_limit_seconds=0.03, down_window_seconds=0)
    pace = Pace(5, 1000.0, 0.04)
    above = decide(asked, sight(2, 96.0, paces=(pace,), token_seconds={16: 0.02, 32: 0.029, 48: 0.04}), Past(), 0)
    assert (above.replicas, above.reason) == (3, Reason.ABOVE_TARGET)
    calm = dataclasses.replace(pace, token_seconds=0.01)
    fewer = decide(asked, sight(3, 30.0, paces=(calm,), token_seconds={8: 0.01, 16: 0.02}), Past(), 0)
    assert (fewer.replicas, fewer.reason) == (2, Reason.BELOW_TARGET)
    unknown = decide(asked, sight(3, 300.0, token_seconds={8: 0.01}), Past(), 0)
    assert unknown.replicas == 3, "a load that was never measured is no reason for more"
    worse = decide(asked, sight(1, 8.0, paces=(pace,), token_seconds={8: 0.06}), Past(), 0)
    assert worse.replicas == 2, "no measured load meets the limit: in proportion"


def test_no_more_is_bought_while_pods_come_but_not_for_ever() -> None:
    start = run(TERMS, [50.0])[-1]
    assert start.replicas == 5
    coming = sight(5, 80.0, ready=1, answering=1)
    waits = decide(TERMS, coming, start.past, 10)
    assert (waits.replicas, waits.reason) == (5, Reason.PODS_PENDING)
    assert decide(TERMS, dataclasses.replace(coming, requests=48.0), start.past, 10).reason is Reason.PODS_PENDING
    late = decide(TERMS, coming, waits.past, 10 + TERMS.patience_seconds)
    assert late.reason is Reason.ABOVE_TARGET


def test_pods_that_do_not_answer_are_taken_for_full_ones_when_pods_might_go() -> None:
    past = run(TERMS, [10.0] * 31, replicas=4, answering=1)
    assert past[-1].replicas == 4
    assert run(TERMS, [10.0] * 31, replicas=4, answering=4)[-1].replicas == 3


def test_a_late_first_token_buys_one_pod_and_waits_for_what_it_brings() -> None:
    made = run(TERMS, [5.0] * 40, late_first_tokens=True)
    changes = [index for index in range(1, 40) if made[index].replicas != made[index - 1].replicas]
    assert changes == [12, 25, 38]
    assert changes[1] * 10 - changes[0] * 10 >= SETTLE_SECONDS


@pytest.mark.parametrize("requests", [0.0, 500.0])
def test_a_rollout_freezes_replicas(requests: float) -> None:
    decision = decide(TERMS, sight(3, requests, frozen="a canary is judged"), Past(), 0)
    assert (decision.replicas, decision.reason) == (3, Reason.FROZEN)
    assert "a canary is judged" in decision.message


def test_after_a_rollout_the_windows_begin_anew() -> None:
    past = run(TERMS, [5.0] * 30, replicas=2)[-1].past
    past = decide(TERMS, sight(2, 5.0, frozen="a canary is judged"), past, 300).past
    assert decide(TERMS, sight(2, 5.0), past, 310).replicas == 2
    again = run(TERMS, [5.0] * 32, replicas=2)[-1]
    assert again.replicas == 1
