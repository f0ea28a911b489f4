"""Engines that tell nothing of drafts; long contexts; the parts of a cost; warm starts; the account of exploration."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as bounded
from hypothesis import strategies as st

from paceline_engine.protocol import CostCell, Verification
from paceline_operator.api.speculation import Method
from paceline_operator.tuning import acceptance, account, correct, cost, direct, parts, warm
from paceline_operator.tuning.account import Account
from paceline_operator.tuning.goodput import board
from paceline_operator.tuning.model import Profile, Step
from paceline_operator.tuning.state import TunerState, fresh
from tests.unit.simulated import GOOD, Loop, fixed, goodput, grid, workload

DENSE, EAGLE = grid("h200_dense32b_eagle.csv"), workload("gsm8k")
LOADS, LADDER = (1, 2, 4, 8, 16, 32, 64), (7, 5, 3, 2, 1, 0)


def state_of(step: Step) -> TunerState:
    assert isinstance(step.memory.state, TunerState)
    return step.memory.state


def untold(loop: Loop, passes: int, requests: int) -> Step:
    """Passes of an engine whose samples have no acceptance."""
    engine = loop.engines["pod-0"]
    engine.requests = requests
    for _ in range(passes):
        loop.now += loop.interval
        answer = engine.answer(loop.interval)
        assert answer.samples
        step = loop.take([replace(answer, samples=answer.samples.model_copy(update={"acceptance": ()}))])
    return step


@pytest.mark.parametrize("load", [1, 16, 128])
def test_the_best_k_is_found_from_tokens_and_seconds_alone(load: int) -> None:
    loop = Loop.of(DENSE, EAGLE, noise=0.05)
    step = untold(loop, 40, load)
    assert step.k is not None
    best = max(goodput(DENSE, EAGLE, load, k) for k in loop.settings.ladder)
    assert goodput(DENSE, EAGLE, load, step.k) > 0.97 * best
    view = next(view for view in step.buckets if view.load == load)
    assert view.observed
    assert [found.acceptance_known for found in view.candidates] == [False] * 4 + [True]
    for found in view.candidates:
        assert found.survival == ()
        assert found.goodput.value == pytest.approx(goodput(DENSE, EAGLE, load, found.k), rel=0.1)


def test_what_is_told_later_counts_from_then_on() -> None:
    loop = Loop.of(DENSE, EAGLE, noise=0.02)
    untold(loop, 10, 16)
    step = loop.run(10, 16)
    told = [found.acceptance_known for found in step.buckets[0].candidates]
    assert told.count(True) >= 3, "all but those that rest"
    assert all(found.survival for found in step.buckets[0].candidates if found.acceptance_known and found.k)


def cell(load: int, k: int, seconds: float, context: int = 0, steps: int = 50, **fields: object) -> CostCell:
    base: dict[str, object] = {
        "load": load,
        "context": context,
        "k_drafted": k,
        "k_verified": k,
        "probe": False,
        "steps": steps,
        "request_steps": steps * load,
        "emitted": steps * load,
        "seconds": steps * seconds,
        "seconds_squared": steps * seconds * seconds * 1.0004,
        "histogram": {},
    }
    return CostCell.model_validate({**base, **fields})


cells = st.lists(
    st.builds(
        cell,
        load=st.sampled_from([1, 3, 8]),
        k=st.sampled_from([0, 1, 4, 7]),
        seconds=st.floats(1e-4, 10),
        steps=st.integers(0, 100),
        emitted=st.integers(0, 10**6),
    ),
    max_size=6,
)


@bounded(deadline=None)
@given(st.lists(st.tuples(cells, st.floats(0, 5000)), max_size=6))
def test_any_cells_give_finite_lengths(windows: list[tuple[list[CostCell], float]]) -> None:
    found = direct.empty(LOADS, LADDER)
    for window, seconds in windows:
        found = direct.learn(found, window, [], seconds)
    log, variance, known = direct.lengths(found)
    assert np.isfinite(log).all()
    assert (variance > 0).all()
    assert not known[:, -1].any(), "of k=0 all is known"


def long(load: int, k: int) -> float:
    """A context of 8k costs more with more requests, and more for verifying more."""
    return DENSE(load, k) * math.exp(0.1 + 0.05 * math.log2(load) + 0.01 * k)


def learnt_context(share: float, seed: int = 0) -> cost.Cost:
    """Short and long contexts side by side, the long ones at k=3 and k=0 only."""
    rng = np.random.default_rng(seed)
    found = cost.empty(LOADS, LADDER)
    for number in range(30):
        window = []
        for load in (4, 16, 64):
            window += [cell(load, k, DENSE(load, k) * math.exp(rng.normal(0, 0.02)), steps=20) for k in LADDER]
            window += [
                cell(load, k, long(load, k) * math.exp(rng.normal(0, 0.02)), 8192, round(100 * share)) for k in (3, 0)
            ]
        found = correct.learn(found, {"pod": window}, 10.0, 10.0 * number)
    return found


def test_a_long_context_has_an_effect_of_its_own() -> None:
    found = learnt_context(1.0)
    size = len(LOADS) * len(LADDER)
    level, doubling, k = found.mean[size : size + 3]
    assert level == pytest.approx(0.1, abs=0.05)
    assert doubling == pytest.approx(0.05, abs=0.02)
    assert k == pytest.approx(0.01, abs=0.01)
    for load in (4, 16, 64):
        place = LOADS.index(load) * len(LADDER)
        for column, one in enumerate(LADDER):
            assert found.mean[place + column] == pytest.approx(math.log(DENSE(load, one)), abs=0.03)


def test_scores_are_for_the_contexts_that_are_there() -> None:
    found = learnt_context(1.0)
    shares = cost.contexts(found)
    assert shares.sum() == pytest.approx(1)
    assert 0.5 < shares[1] < 0.9
    lengths = acceptance.lengths(acceptance.empty(LADDER, Method.EAGLE))
    at = board(lengths, found, direct.empty(LOADS, LADDER), (64,)).at(64)
    low, high = math.log(DENSE(64, 3)), math.log(long(64, 3))
    step = float(at.log_step[LADDER.index(3)])
    assert step == pytest.approx(low + shares[1] * (high - low), abs=0.03)
    assert np.linalg.eigvalsh(at.step_covariance).min() > -1e-12
    short = learnt_context(0.0)
    assert cost.effects(short) is None


def test_a_step_comes_apart_into_what_it_was_made_of() -> None:
    """2 ms fixed, 20 us a verified token, 0.5 ms a drafted position."""
    found = cost.empty(LOADS, LADDER)

    def true(n: int, k: int) -> float:
        return 0.002 + 2e-5 * n * (k + 1) + 5e-4 * k

    for number in range(10):
        window = [cell(load, k, true(load, k)) for load in LOADS for k in LADDER]
        found = correct.learn(found, {"pod": window}, 10.0, 10.0 * number)
    seen = parts.parts(found)
    assert seen is not None
    assert seen.error < 0.05
    assert seen.drafting(8) == pytest.approx(5e-4, rel=0.15)
    one = parts.decomposed(found, seen, 16)
    assert one.verified == pytest.approx(2e-5, rel=0.2)
    assert one.fixed == pytest.approx(0.002, rel=0.2)
    draft, verify = parts.curves(found, seen, 7)
    assert [point.at for point in draft] == list(LOADS)
    assert draft[3].microseconds == pytest.approx(3500, rel=0.15)
    assert all(a.at < b.at and a.microseconds <= b.microseconds for a, b in pairwise(verify))
    assert parts.parts(cost.empty(LOADS, LADDER)) is None


def test_the_parts_of_a_measured_machine() -> None:
    """Eight to nine tenths of a millisecond a draft position were measured on this machine."""
    found = cost.empty(LOADS, LADDER)
    for number in range(10):
        window = [cell(load, k, DENSE(load, k)) for load in LOADS for k in LADDER]
        found = correct.learn(found, {"pod": window}, 10.0, 10.0 * number)
    seen = parts.parts(found)
    assert seen is not None
    assert seen.error < parts.TRUSTED_ERROR
    assert 5e-4 < seen.drafting(1) < 1e-3


def test_a_profile_starts_warm_counts_half_and_is_corrected() -> None:
    loop = Loop.of(DENSE, fixed(GOOD), noise=0.02)
    for load in (4, 32, 128):
        loop.run(20, load)
    ladder = loop.settings.ladder
    kept = Profile(
        {(load, k): DENSE(load, k) for load in (4, 32, 128) for k in ladder}, {k: tuple(GOOD[:k]) for k in ladder if k}
    )
    second = Loop.of(DENSE, fixed(GOOD), noise=0.02)
    second.settings = replace(second.settings, profile=kept)
    first = second.run(1, 32)
    assert first.k == loop.steps[-1].table[32], "the profile's best, before anything was measured"
    assert not first.buckets[0].observed
    cold = Loop.of(DENSE, fixed(GOOD), noise=0.02)
    assert passes_to_observe(second, 32) <= passes_to_observe(cold, 32)


def passes_to_observe(loop: Loop, load: int) -> int:
    for number in range(20):
        view = next(view for view in loop.run(1, load).buckets if view.load == load)
        if view.observed:
            return number
    raise AssertionError("never observed")


@bounded(deadline=None, max_examples=40)
@given(
    st.dictionaries(
        st.tuples(st.integers(-1, 400), st.integers(0, 9)), st.floats(-1, 100) | st.just(1e-9), max_size=12
    ),
    st.dictionaries(st.integers(0, 9), st.lists(st.floats(0, 1), max_size=9).map(tuple), max_size=5),
)
def test_any_profile_gives_a_whole_table(
    steps: dict[tuple[int, int], float], survival: dict[int, tuple[float, ...]]
) -> None:
    settings = replace(Loop.of(DENSE, fixed(GOOD)).settings, profile=Profile(steps, survival))
    state = warm.warmed(settings, fresh(settings, (), 0.0))
    assert len(state.base) == settings.max_num_seqs + 1
    assert set(state.base) <= set(settings.ladder)
    assert warm.warmed(settings, state) is state, "a profile is lent once"


def test_bursts_and_trials_are_booked_with_what_they_cost() -> None:
    window = [
        cell(8, 3, 0.02, steps=90, emitted=90 * 8 * 3),
        cell(8, 0, 0.016, steps=8, probe=True, emitted=64),
        cell(8, 3, 0.02, steps=10, verification=Verification.ADAPTIVE, emitted=200),
    ]
    book = account.booked(Account(), window, {8: 1200.0}, 1.25, (Verification.ADAPTIVE, 3), 10.0)
    assert book.steps == pytest.approx(110)
    assert book.tried_steps == pytest.approx(20)
    assert book.tried_seconds == pytest.approx(0.16 + 0.2)
    assert book.lost == pytest.approx(1.25 * (0.128 * 1200 - 64) + (0.2 * 1200 - 200))
    later = account.booked(book, [], {}, 1.0, None, 3600.0)
    assert later.lost == pytest.approx(book.lost / 2)


def test_the_account_of_a_serving() -> None:
    step = Loop.of(DENSE, EAGLE, noise=0.02).run(60, 16)
    assert 0 < step.exploration.step_share < 0.1
    assert step.exploration.tokens_lost > 0
    assert (16, 0) in step.exploration.quarantined
