"""Adaptive verification: tried in short trials, kept where it pays, left where it does not or starves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from paceline_engine.protocol import Verification
from paceline_operator.api.conditions import Reason
from paceline_operator.api.speculation import AdaptiveVerification
from paceline_operator.tuning import verification
from paceline_operator.tuning.arms import Arm, Belief, Trial, Verified
from paceline_operator.tuning.model import Engine, Profile
from paceline_operator.tuning.state import TunerState
from paceline_operator.tuning.verification import Here
from tests.unit.simulated import Adaptive, Loop, grid, workload

DENSE, EAGLE = grid("h200_dense32b_eagle.csv"), workload("gsm8k")


def gaining(gain: Callable[[int], float]) -> Adaptive:
    """AV that gives `gain(requests)` times the goodput of verifying all, with fewer tokens in faster steps."""
    return lambda n, k: (0.8 * DENSE(n, k) / gain(n), 0.8 * (1 + sum(EAGLE(k))))


def loop(adaptive: Adaptive, interval: float = 10.0, fields: Mapping[str, Any] | None = None, count: int = 1) -> Loop:
    found = Loop.of(DENSE, EAGLE, noise=0.02, fields=fields, count=count)
    found.settings = replace(found.settings, interval_seconds=interval)
    found.interval = interval
    for engine in found.engines.values():
        engine.adaptive = adaptive
    return found


def modes(running: Loop) -> list[Verification | None]:
    return [step.verification for step in running.steps]


@pytest.mark.parametrize("interval", [2.0, 10.0])
def test_on_where_it_pays_and_off_where_it_does_not(interval: float) -> None:
    running = loop(gaining(lambda n: 1.15 if n >= 64 else 0.93), interval)
    passes = round(600 / interval)
    for load, wanted in ((128, Verification.ADAPTIVE), (8, Verification.ALL), (32, Verification.ALL)):
        step = running.run(passes, load)
        assert step.verification is wanted, load
    step = running.run(8, 128)
    assert step.verification is Verification.ADAPTIVE, "what was measured is remembered"
    made = [decision for decision in running.decisions if decision.reason is Reason.ADAPTIVE_VERIFICATION]
    assert made[0].verification is Verification.ADAPTIVE
    assert "tok/s against" in made[0].message
    assert len(made) <= 4


def test_what_does_not_pay_costs_little_and_rests() -> None:
    running = loop(gaining(lambda n: 0.8))
    running.run(30, 128)
    engine = running.engines["pod-0"]
    before = engine.tokens
    running.run(120)
    best = 128 * (1 + sum(EAGLE(1))) / DENSE(128, 1)
    assert (engine.tokens - before) / (1200 * best) > 0.985
    tried = sum(mode is not Verification.ALL for mode in modes(running)[30:])
    assert tried <= 8
    assert not [made for made in running.decisions if made.reason is Reason.ADAPTIVE_VERIFICATION]
    assert running.steps[-1].exploration.time_share < 0.08


def test_measured_prices_are_an_arm_of_their_own() -> None:
    """AV priced by the engine's own profile gives nothing here, by measured costs it gives a sixth."""
    running = loop(gaining(lambda n: 0.97))
    engine = running.engines["pod-0"]
    engine.repriceable, engine.priced = True, 1 / 1.2
    for load in (4, 16, 32, 64):
        running.run(12, load)
    running.run(120, 128)
    while running.steps[-1].verification is not Verification.ADAPTIVE and len(running.steps) < 180:
        running.run(1)  # a trial of another way is under way
    assert modes(running)[-20:].count(Verification.ADAPTIVE) >= 15
    policy = engine.policy
    assert policy is not None
    assert policy.adaptive_verification is not None
    verify = policy.adaptive_verification.verify_costs
    assert len(verify) > 2
    assert verify[-1].microseconds > verify[0].microseconds
    made = [decision for decision in running.decisions if decision.reason is Reason.ADAPTIVE_VERIFICATION]
    assert "by measured costs" in made[-1].message


def test_a_starved_estimate_is_left_at_once_and_for_long() -> None:
    """It admits nothing: one token a step, while k drafts are paid for."""
    running = loop(lambda n, k: (DENSE(n, k), 1.0))
    running.engines["pod-0"].requests = 128
    running.run(200, 128)
    found = modes(running)
    assert found.count(Verification.ALL) >= len(found) - 3
    assert all(mode is Verification.ALL for mode in found[60:])


def test_an_estimate_that_starves_after_it_paid() -> None:
    running = loop(gaining(lambda n: 1.2))
    assert running.run(60, 128).verification is Verification.ADAPTIVE
    running.engines["pod-0"].adaptive = lambda n, k: (DENSE(n, k), 1.0)
    step = running.run(4)
    assert step.verification is Verification.ALL
    assert running.decisions[-1].reason is Reason.ADAPTIVE_VERIFICATION
    assert "admits almost nothing" in running.decisions[-1].message


def test_a_trained_head_starts_on_from_48_requests() -> None:
    fields = {"speculation": {"method": "dspark", "draft": {"source": "hf://a/c"}, "maxTokens": 5}}
    running = loop(gaining(lambda n: 1.1), fields=fields)
    running.run(8, 64)
    assert running.steps[-1].verification is Verification.ADAPTIVE
    assert "trained confidence head" in running.decisions[0].message or "trained" in running.decisions[-1].message
    assert running.run(2, 8).verification is Verification.ALL


def test_a_profile_that_measured_it_counts_as_trained() -> None:
    running = loop(gaining(lambda n: 1.1))
    running.settings = replace(running.settings, profile=Profile({}, {}, adaptive_loads=(64,)))
    running.run(8, 64)
    assert running.steps[-1].verification is Verification.ADAPTIVE


def test_disabled_verifies_all() -> None:
    running = loop(gaining(lambda n: 1.2))
    running.settings = replace(running.settings, adaptive_verification=AdaptiveVerification.DISABLED)
    running.run(40, 128)
    assert set(modes(running)) == {Verification.ALL}


def test_an_engine_without_it_is_told_nothing_of_it() -> None:
    running = Loop.of(DENSE, EAGLE, noise=0.02)
    running.run(20, 128)
    assert set(modes(running)) == {None}
    policy = running.engines["pod-0"].policy
    assert policy is not None
    assert policy.adaptive_verification is None


def test_what_cannot_be_switched_off_is_tuned_as_it_is() -> None:
    """Its counts of drafts are of those it picked, so tokens and seconds decide."""
    running = loop(gaining(lambda n: 1.2))
    running.engines["pod-0"].switchable = False
    step = running.run(40, 128)
    assert set(modes(running)) == {None}
    view = next(view for view in step.buckets if view.load == 128)
    assert view.observed
    adaptive = {k: 128 * 0.8 * (1 + sum(EAGLE(k))) / (0.8 * DENSE(128, k) / 1.2) for k in (5, 3, 2, 1)}
    assert step.k == max(adaptive, key=adaptive.__getitem__)
    found = {one.k: one for one in view.candidates}
    assert found[1].goodput.value == pytest.approx(adaptive[1], rel=0.05)
    assert not found[1].acceptance_known
    assert step.ratio_to_k0 is not None


def test_one_engine_without_it_leaves_the_others_as_they_booted() -> None:
    running = loop(gaining(lambda n: 1.2), count=2)
    running.engines["pod-1"].adaptive = None
    running.run(20, 128)
    assert set(modes(running)) == {None}


def test_an_engine_that_offers_it_now_and_then_is_not_told_each_time() -> None:
    running = loop(gaining(lambda _: 1.1))
    running.run(60, 64)
    engine = running.engines["pod-0"]
    told: list[object] = []
    for _ in range(30):
        engine.switchable = not engine.switchable
        running.run(1)
        told.append(engine.policy.adaptive_verification if engine.policy else None)
    assert sum(one != other for one, other in pairwise(told)) <= 1
    engine.switchable = True
    running.run(6)
    assert engine.policy, "it was pushed to"
    assert engine.policy.adaptive_verification, "offered for good, it is told again"


def test_loads_and_ks_that_are_not_the_servings_are_not_judged() -> None:
    """An engine that booted for more requests and other ks waits to be replaced, and answers until then."""
    running = loop(gaining(lambda n: 1.15), count=2)
    running.run(10, 128)
    running.now += running.interval
    kept, old = (engine.answer(running.interval, name) for name, engine in running.engines.items())
    assert old.state is not None
    assert old.samples is not None
    able = old.state.capabilities.model_copy(update={"max_num_seqs": 512})
    cells = [cell.model_copy(update=other) for cell in old.samples.cells for other in ({"load": 384}, {"k_drafted": 7})]
    found = replace(
        old,
        state=old.state.model_copy(update={"capabilities": able, "table": (1,) * 513}),
        samples=old.samples.model_copy(update={"cells": tuple(cells)}),
    )
    step = running.take([kept, found])
    assert {view.load for view in step.verifications} <= {128}
    assert isinstance(step.memory.state, TunerState)
    assert {(load, arm.k) for load, arm in step.memory.state.verified.beliefs} <= {
        (128, k) for k in running.settings.ladder
    }


def test_modes_other_than_auto_leave_it_as_it_booted() -> None:
    fields = {"tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 2}]}}
    running = loop(gaining(lambda n: 1.2), fields=fields)
    running.run(10, 128)
    assert set(modes(running)) == {None}


def test_a_load_that_alternates_does_not_make_it_flap() -> None:
    running = loop(gaining(lambda n: 1.15 if n >= 64 else 0.9))
    running.run(60, 128)
    running.run(60, 8)
    start = len(running.steps)
    for _ in range(60):
        running.run(1, 8)
        running.run(1, 128)
    assert sum(a != b for a, b in zip(modes(running)[start:], modes(running)[start + 1 :], strict=False)) <= 2


@pytest.mark.parametrize("loads", [(8, 16), (8, 128, 16)])
def test_loads_that_take_turns_do_not_keep_in_force_what_pays_at_another(loads: tuple[int, ...]) -> None:
    """None of them is there in two passes in a row."""
    running = loop(gaining(lambda n: 1.15 if n >= 64 else 0.85))
    assert running.run(60, 128).verification is Verification.ADAPTIVE
    start = len(running.steps)
    for _ in range(20):
        for load in loads:
            running.run(1, load)
    assert sum(mode is Verification.ADAPTIVE for mode in modes(running)[start:]) <= 6


def here(**changes: Any) -> Here:
    base = Here(
        load=128,
        k=2,
        observed=True,
        ceilings={5: 12.0, 2: 12.0},
        now=1000.0,
        min_gain=0.01,
        interval=10.0,
        share=0.05,
        probing=True,
        trained=False,
        starved=False,
        capped=True,
    )
    return replace(base, **changes)


def test_arms_that_cannot_win_are_not_tried() -> None:
    """Their drafts alone cost more than what could be accepted is worth."""
    state = Verified(beliefs={(128, Arm(Verification.ALL, 2)): Belief(8.0, 1e-4, 990.0, 5)}, stable=(128, 3))
    assert verification.advance(state, here(ceilings={5: 7.9, 2: 7.9})).trial is None
    tried = verification.advance(state, here(ceilings={5: 8.2, 2: 7.9})).trial
    assert tried is not None
    assert tried.arm == Arm(Verification.CAPPED, 5, 256), "as many as k 2 verifies, the best of k 5"
    assert verification.advance(state, here(load=16)).trial is None, "an estimate that is not trained, at few requests"


arms = st.builds(
    Arm, st.sampled_from([Verification.ALL, Verification.ADAPTIVE]), st.sampled_from([5, 3, 2, 1]), st.none()
)
beliefs = st.builds(Belief, st.floats(-5, 12), st.floats(1e-6, 1), st.floats(0, 2000), st.integers(1, 40))


@bounded(deadline=None)
@given(
    st.dictionaries(st.tuples(st.sampled_from([8, 128]), arms), beliefs, max_size=8),
    st.lists(
        st.tuples(st.sampled_from([8, 128]), st.sampled_from([0, 2, 5]), st.booleans(), st.booleans()),
        min_size=1,
        max_size=30,
    ),
    st.booleans(),
)
def test_whatever_is_believed_a_mode_in_force_has_a_reason(
    found: dict[tuple[int, Arm], Belief], passes: list[tuple[int, int, bool, bool]], trained: bool
) -> None:
    state = Verified(beliefs=found)
    for number, (load, k, observed, starved) in enumerate(passes):
        before = state
        state = verification.advance(
            state, here(load=load, k=k, observed=observed, starved=starved, trained=trained, now=2000.0 + 10 * number)
        )
        if state.arm is not None:
            assert state.arm.mode is not Verification.ALL
            assert (state.arm.cap is not None) == (state.arm.mode is Verification.CAPPED)
            assert state.trial is not None or state.arm in state.chosen.values() or state.arm == before.arm
        if starved and before.arm is not None:
            assert state.arm is None
        if state.trial is not None:
            assert state.trial.load == load
            assert state.trial.left >= 1


@given(st.lists(st.sampled_from([None, 8, 96, 128]), min_size=1, max_size=20), st.integers(1, 4), st.booleans())
def test_without_one_load_a_trial_ends_in_time_and_no_arm_stays_where_it_is_not_chosen(
    loads: list[int | None], left: int, chosen: bool
) -> None:
    """A closed loop of 128 requests is at 96 to 127 and at 128 in every pass; a trial went on there for as long."""
    adaptive = Arm(Verification.ADAPTIVE, 2)
    state = Verified(chosen={128: adaptive} if chosen else {}, arm=adaptive, trial=Trial(128, adaptive, left))
    for number, load in enumerate(loads):
        state = verification.unclear(state, load)
        if number < left - 1:
            assert state.trial is not None
            continue
        assert state.trial is None
        same = number == left - 1 or (load is not None and loads[number - 1] == load)
        if same and load is not None:
            assert state.arm == state.chosen.get(load)


def test_a_load_at_the_edge_of_two_buckets_is_judged_at_one_of_them() -> None:
    """Requests that end and begin: 127 and 128 of them in every pass."""
    running = loop(gaining(lambda n: 1.15 if n >= 64 else 0.9), 2.0)
    running.engines["pod-0"].beside = 127
    running.run(300, 128)
    assert sum(mode is Verification.ADAPTIVE for mode in modes(running)[-50:]) >= 40
    worse = loop(gaining(lambda n: 0.8), 2.0)
    worse.engines["pod-0"].beside = 127
    worse.run(300, 128)
    assert sum(mode is not Verification.ALL for mode in modes(worse)[-100:]) <= 10


def test_what_pays_for_a_quarter_of_the_time_is_left_where_the_rest_is_another_load() -> None:
    running = loop(gaining(lambda n: 1.15 if n >= 64 else 0.85))
    assert running.run(60, 128).verification is Verification.ADAPTIVE
    engine, start = running.engines["pod-0"], len(running.steps)
    for _ in range(40):
        running.now += running.interval
        parts = []
        for requests, share in ((128, 0.25), (8, 0.75)):
            engine.requests = requests
            parts.append(engine.run(share * running.interval))
        first, last = parts
        update = {name: getattr(first, name) + getattr(last, name) for name in ("cells", "acceptance")}
        samples = last.model_copy(update={**update, "from_seconds": first.from_seconds})
        running.take([Engine("pod-0", engine.state(), samples)])
    assert sum(mode is Verification.ADAPTIVE for mode in modes(running)[start:]) <= 4
