"""Acceptance: counts to lengths, what ks lend each other, changes of traffic."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import AcceptanceCell
from paceline_operator.api.speculation import Method
from paceline_operator.tuning import acceptance
from paceline_operator.tuning.acceptance import Acceptance
from tests.unit.simulated import GOOD, POOR, workload

LADDER = (7, 5, 3, 2, 1, 0)


def counts(
    rng: np.random.Generator, k: int, survival: Sequence[float], request_steps: int, fires: float = 1.0
) -> AcceptanceCell:
    drafts = int(rng.binomial(request_steps, fires)) if k else 0
    accepted, alive, before = [], drafts, 1.0
    for share in survival[:k]:
        alive = int(rng.binomial(alive, share / before)) if before else 0
        accepted.append(alive)
        before = share
    return AcceptanceCell(
        k=k, load=4, request_steps=request_steps, drafts=drafts, drafted=(drafts,) * k, accepted=tuple(accepted)
    )


def learnt(
    survivals: Mapping[int, Sequence[float]],
    steps: dict[int, int],
    windows: int,
    seed: int = 0,
    start: Acceptance | None = None,
    fires: float = 1.0,
) -> Acceptance:
    rng = np.random.default_rng(seed)
    found = start or acceptance.empty(LADDER, Method.EAGLE)
    for _ in range(windows):
        found = acceptance.learn(found, [counts(rng, k, survivals[k], n, fires) for k, n in steps.items()], 10.0)
    return found


def length(found: Acceptance, k: int) -> tuple[float, float]:
    lengths = acceptance.lengths(found)
    row = LADDER.index(k)
    return float(np.exp(lengths.log[row])), math.sqrt(lengths.covariance[row, row])


def test_k0_has_length_exactly_one_and_everything_else_is_unknown_at_first() -> None:
    lengths = acceptance.lengths(acceptance.empty(LADDER, Method.EAGLE))
    assert lengths.known.tolist() == [False] * 5 + [True]
    assert lengths.log[-1] == 0
    assert lengths.covariance[-1].tolist() == [0.0] * 6


def test_unknown_below_the_minimum_count() -> None:
    found = learnt({3: GOOD}, {3: 31}, 1)
    assert not acceptance.lengths(found).known[LADDER.index(3)]
    assert acceptance.firing_rates(found)[LADDER.index(3)] is None
    assert acceptance.lengths(learnt({3: GOOD}, {3: 40}, 1)).known[LADDER.index(3)]


@pytest.mark.parametrize("dataset", ["gsm8k", "sharegpt"])
def test_every_k_is_right_within_its_interval(dataset: str) -> None:
    """Real traces, in which the same position is accepted differently under each k."""
    survival = workload(dataset)
    survivals = {k: survival(k) for k in LADDER}
    off = []
    for seed in range(6):
        found = learnt(survivals, {7: 2000, 5: 16, 3: 16, 2: 16, 1: 16}, 10, seed)
        for k in LADDER[:-1]:
            value, deviation = length(found, k)
            off.append(math.log(value / (1 + sum(survival(k)))) / deviation)
            assert deviation < 0.05
    assert np.abs(off).max() < 3.5
    assert np.std(off) > 0.3


def test_k_in_force_moves_the_others_when_traffic_changes() -> None:
    before = learnt(dict.fromkeys(LADDER, GOOD), {5: 2000, 3: 100, 2: 100, 1: 100}, 10)
    after = learnt(dict.fromkeys(LADDER, POOR), {5: 2000}, 2, 7, before)
    assert after.changes == before.changes + 1
    for k in (5, 3, 2, 1):
        assert length(after, k)[0] == pytest.approx(1 + sum(POOR[:k]), rel=0.06), "no step was made at the others"


def test_a_change_widens_the_interval() -> None:
    before = learnt(dict.fromkeys(LADDER, GOOD), {5: 400}, 20)
    after = learnt(dict.fromkeys(LADDER, POOR), {5: 400}, 1, 3, before)
    assert after.changes == 1
    assert length(after, 5)[1] > 2 * length(before, 5)[1]
    assert after.since_change[LADDER.index(5)] == 400
    assert after.since_change[LADDER.index(3)] == 0


@pytest.mark.parametrize("seed", range(5))
def test_steady_traffic_is_no_change(seed: int) -> None:
    steady = learnt(dict.fromkeys(LADDER, GOOD), {5: 3000, 3: 40, 1: 40}, 120, seed)
    assert steady.changes == 0


@pytest.mark.parametrize("seed", range(3))
def test_traffic_that_varies_from_window_to_window_is_its_own_normal(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = acceptance.empty(LADDER, Method.EAGLE)
    for _ in range(200):
        mix = 1 + rng.normal(0, 0.08)
        cells = [counts(rng, 5, [min(0.99, mix * share) for share in GOOD], 3000)]
        found = acceptance.learn(found, cells, 10.0)
    assert found.changes <= 2
    assert math.sqrt(found.drift) == pytest.approx(0.08, rel=0.5)


def test_a_slow_slide_is_noticed_too() -> None:
    rng = np.random.default_rng(0)
    found = acceptance.empty(LADDER, Method.EAGLE)
    for number in range(40):
        fallen = 1 - 0.02 * number
        found = acceptance.learn(found, [counts(rng, 5, [fallen * share for share in GOOD], 2000)], 10.0)
    # Plain forgetting over two minutes would be a quarter off.
    assert length(found, 5)[0] == pytest.approx(1 + fallen * sum(GOOD[:5]), rel=0.1)


def test_acceptance_that_falls_to_nothing_and_returns() -> None:
    nothing = dict.fromkeys(LADDER, (0.0,) * 7)
    found = learnt(dict.fromkeys(LADDER, GOOD), {5: 500}, 10)
    found = learnt(nothing, {5: 500}, 3, 1, found)
    assert length(found, 5)[0] == pytest.approx(1.0, abs=0.02)
    found = learnt(dict.fromkeys(LADDER, GOOD), {5: 500}, 2, 2, found)
    assert length(found, 5)[0] == pytest.approx(1 + sum(GOOD[:5]), rel=0.05)


def test_drafts_that_fire_seldom_are_worth_their_share() -> None:
    found = learnt(dict.fromkeys(LADDER, GOOD), {3: 5000}, 4, fires=0.2)
    assert acceptance.firing_rates(found)[LADDER.index(3)] == pytest.approx(0.2, abs=0.02)
    assert length(found, 3)[0] == pytest.approx(1 + 0.2 * sum(GOOD[:3]), rel=0.02)


def test_blocks_are_judged_each_by_its_own_counts() -> None:
    """A block draft whose k=2 is twice as good as its k=5: nothing that the pool could tell."""
    rng = np.random.default_rng(0)
    found = acceptance.empty(LADDER, Method.DFLASH)
    better = (0.9, 0.85)
    for _ in range(10):
        found = acceptance.learn(found, [counts(rng, 5, POOR, 800), counts(rng, 2, better, 200)], 10.0)
    assert length(found, 2)[0] == pytest.approx(1 + sum(better), rel=0.05)
    assert length(found, 5)[0] == pytest.approx(1 + sum(POOR[:5]), rel=0.05)


def test_a_comparison_is_surer_than_its_parts() -> None:
    """Two ks share what their first positions do: that cancels in the difference."""
    found = learnt(dict.fromkeys(LADDER, GOOD), {5: 300, 3: 300}, 3)
    covariance = acceptance.lengths(found).covariance
    a, b = LADDER.index(5), LADDER.index(3)
    assert covariance[a, a] + covariance[b, b] - 2 * covariance[a, b] < min(covariance[a, a], covariance[b, b])


cells = st.builds(
    lambda k, load, shares, request_steps: AcceptanceCell(
        k=k,
        load=load,
        request_steps=request_steps,
        drafts=request_steps,
        drafted=(request_steps,) * len(shares),
        accepted=tuple(int(request_steps * share) for share in sorted(shares, reverse=True)),
    ),
    st.integers(0, 12),
    st.integers(0, 64),
    st.lists(st.floats(0, 1), max_size=12),
    st.integers(0, 10**9),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.lists(cells, max_size=6), st.floats(0, 5000)), max_size=8), st.sampled_from(list(Method)))
def test_any_counts_give_lengths_that_can_be(windows: list[tuple[list[AcceptanceCell], float]], method: Method) -> None:
    found = acceptance.empty(LADDER, method)
    for window, seconds in windows:
        found = acceptance.learn(found, window, seconds)
    lengths = acceptance.lengths(found)
    assert np.isfinite(lengths.log).all()
    assert np.isfinite(lengths.covariance).all()
    assert (np.exp(lengths.log) <= np.asarray(LADDER) + 1.0 + 1e-9).all()
    assert (lengths.log >= 0).all()
    assert (lengths.covariance.diagonal() >= -1e-12).all()
    assert lengths.log[-1] == 0


@settings(deadline=None)
@given(st.lists(st.lists(cells, max_size=4), min_size=2, max_size=5))
def test_a_window_is_tested_against_the_counts_of_every_k(windows: list[list[AcceptanceCell]]) -> None:
    """What is worked out for the ks of a window alone is what the whole matrices give."""
    *before, last = windows
    past = acceptance.empty(LADDER, Method.EAGLE)
    for window in before:
        past = acceptance.learn(past, window, 0.0)
    past, alone = acceptance._decayed(past, 0.0), acceptance._window(past, last)
    found = acceptance._tested(past, alone)
    if found is past or found.changes > past.changes:
        return
    window = np.asarray([alone.get(row, [0.0] * past.counts.shape[1]) for row in range(len(LADDER))], float)
    lengths, both, width = acceptance.lengths(past), past.counts + window, LADDER[0]
    steps, accepted, total = window[:, 0], both[:, 2 + width :], np.maximum(both[:, 0], 1.0)
    weight = steps * np.exp(lengths.log)
    expected = weight.sum() - steps.sum()
    spread = accepted @ (2 * np.arange(width) + 1) / total - (accepted.sum(axis=1) / total) ** 2
    noise = acceptance.CLUSTERING * (steps @ (np.maximum(spread, 0) + 0.001)) + 1
    variance = noise + weight @ lengths.covariance @ weight + past.drift * expected**2
    score = (window[:, 2 + width :].sum() - expected) / math.sqrt(variance)
    assert found.high == pytest.approx(max(0, past.high + score - acceptance.CUSUM_ALLOWANCE), rel=1e-6, abs=1e-6)
    assert found.low == pytest.approx(max(0, past.low - score - acceptance.CUSUM_ALLOWANCE), rel=1e-6, abs=1e-6)
