"""The choice at one load, and the table over all loads."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.protocol import LOAD_EDGES, MAX_K
from paceline_operator.tuning.goodput import Board, Scores, goodput
from paceline_operator.tuning.load import buckets_of
from paceline_operator.tuning.prior import boot_table
from paceline_operator.tuning.solve import LEAST_ERRORS, OFF_FAVOUR, between, choose, off_allowance, table

LADDER = (5, 3, 2, 1, 0)


def scores(
    tokens: dict[int, float], error: float = 0.001, known: tuple[int, ...] = LADDER, requests: float = 8.0
) -> Scores:
    """Goodputs as given; each k's log goodput has the standard error `error`, independent of the others."""
    log_goodput = np.log([tokens[k] for k in LADDER])
    return Scores(
        load=8,
        ladder=LADDER,
        requests=requests,
        log_length=np.zeros(5),
        log_step=math.log(requests) - log_goodput,
        log_goodput=log_goodput,
        length_covariance=np.zeros((5, 5)),
        step_covariance=np.eye(5) * error**2,
        covariance=np.eye(5) * error**2,
        steps=np.full(5, 100.0),
        known=np.asarray([k in known for k in LADDER]),
        outdated=np.zeros(5, dtype=bool),
        faster=np.zeros(5, dtype=bool),
        told=np.ones(5, dtype=bool),
    )


GOODPUT = {5: 100.0, 3: 110.0, 2: 108.0, 1: 90.0, 0: 60.0}


def test_the_best_is_chosen() -> None:
    choice = choose(scores(GOODPUT), 5, 0.01)
    assert choice.k == 3
    assert choice.gain == pytest.approx(0.1)
    assert choice.band == 0.01


def test_no_hill_is_climbed() -> None:
    """The best k lies behind a worse one."""
    assert choose(scores({5: 120.0, 3: 70.0, 2: 80.0, 1: 90.0, 0: 100.0}), 0, 0.01).k == 5


def test_the_incumbent_stays_within_the_tie_band() -> None:
    near = {**GOODPUT, 2: 109.5}
    assert choose(scores(near), 2, 0.01).k == 2
    assert choose(scores(near), 2, 0.0).k == 3


def test_what_is_not_certain_moves_nothing() -> None:
    """10 % better, but two standard errors of the difference are 14 %."""
    choice = choose(scores(GOODPUT, error=0.05), 5, 0.01)
    assert choice.k == 5
    assert choice.band == pytest.approx(math.expm1(2 * 0.05 * math.sqrt(2)))


def test_to_k0_one_standard_error_will_do_and_back_it_takes_two() -> None:
    near = {5: 100.0, 3: 99.0, 2: 98.0, 1: 97.0, 0: 100.6}
    assert choose(scores(near, error=0.002), 5, 0.01).k == 0
    assert choose(scores({**near, 0: 99.4}, error=0.002), 0, 0.01).k == 0


def test_a_k_that_is_not_measured_is_no_candidate() -> None:
    assert choose(scores(GOODPUT, known=(5, 2, 1, 0)), 5, 0.01).k == 2
    assert choose(scores(GOODPUT, known=(3, 2, 1, 0)), 5, 0.01).k == 5, "nothing to compare with"


def test_recent_changes_widen_the_band() -> None:
    three_percent = {**GOODPUT, 3: 103.0, 2: 100.5}
    assert choose(scores(three_percent), 5, 0.01).k == 3
    assert choose(scores(three_percent), 5, 0.01, restless=4.0).k == 5


def test_the_limit_removes_candidates_before_ties_are_looked_at() -> None:
    near = {**GOODPUT, 3: 100.9, 2: 98.0}  # 8 requests: 79.3 ms a token, k 5 takes 80 ms
    assert choose(scores(near), 5, 0.05).k == 5
    limited = choose(scores(near), 5, 0.05, limit_seconds=0.0795)
    assert limited.k == 3
    assert limited.limited
    assert choose(scores(near), 3, 0.05, limit_seconds=0.0795).k == 3


def test_a_limit_nothing_keeps_leaves_the_fastest() -> None:
    choice = choose(scores(GOODPUT), 5, 0.01, limit_seconds=0.001)
    assert choice.k == 3
    assert choice.limited
    assert not choose(scores(GOODPUT), 3, 0.01, limit_seconds=0.001).limited


def test_a_table_that_falls_is_preferred_within_the_noise_only() -> None:
    near = scores({**GOODPUT, 3: 110.0, 2: 109.0}, error=0.02)
    assert choose(near, 0, 0.01).k == 3
    assert choose(near, 0, 0.01, bounds=(1, 2)).k == 2
    assert choose(scores({**GOODPUT, 3: 120.0, 2: 109.0}, error=0.02), 0, 0.01, bounds=(1, 2)).k == 3
    assert between({8: 5, 64: 1}, 16) == (1, 5)
    assert between({8: 1, 64: 5}, 16) is None
    assert between({}, 16) == (0, MAX_K)


def test_goodput_has_the_interval_of_its_parts() -> None:
    found = goodput(scores(GOODPUT, error=0.05), 3)
    assert found.value == pytest.approx(110)
    assert found.low == pytest.approx(110 * math.exp(-1.96 * 0.05))
    assert found.high == pytest.approx(110 * math.exp(1.96 * 0.05))


goodputs = st.fixed_dictionaries({k: st.floats(1e-3, 1e6) for k in LADDER})


@settings(deadline=None)
@given(
    goodputs,
    st.sampled_from(LADDER),
    st.floats(0, 0.5),
    st.floats(1e-6, 2),
    st.floats(0, 10),
    st.none() | st.floats(1e-6, 10),
    st.sets(st.sampled_from(LADDER)),
)
def test_a_choice_is_a_known_k_that_gains_more_than_its_band(
    tokens: dict[int, float],
    incumbent: int,
    min_gain: float,
    error: float,
    restless: float,
    limit: float | None,
    known: set[int],
) -> None:
    choice = choose(scores(tokens, error, tuple(known)), incumbent, min_gain, restless, limit)
    assert choice.k == incumbent or choice.k in known
    if choice.k != incumbent and not choice.limited:
        least = min_gain if choice.k else -OFF_FAVOUR * min_gain
        assert choice.gain > choice.band >= least
        assert tokens[choice.k] > tokens[incumbent] * (1 + min(0.0, least))


def test_the_table_follows_decisions_and_bounds_its_neighbours() -> None:
    base = boot_table(LADDER, 64)
    dense = table(base, {8: 2, 32: 1}, buckets_of(64))
    assert dense[8:12] == (2,) * 4
    assert dense[1:8] == (5,) * 7, "smaller loads may have more"
    assert dense[12:32] == (2,) * 20, "between 2 and 1, where the boot table says 5 and 3"
    assert dense[32:48] == (1,) * 16
    assert max(dense[48:]) == 1


def test_a_decided_neighbour_lifts_too() -> None:
    dense = table(boot_table(LADDER, 64), {48: 3}, buckets_of(64))
    assert dense[33] == 3
    assert dense[48] == 3
    assert dense[20] == 3


decisions = st.dictionaries(st.sampled_from(LOAD_EDGES), st.sampled_from(LADDER))


@settings(deadline=None)
@given(decisions, st.integers(5, 1100), st.lists(st.sampled_from(LADDER), min_size=1, max_size=9) | st.none())
def test_a_table_is_whole_and_falls_except_where_it_was_measured_not_to(
    decided: dict[int, int], max_num_seqs: int, adopted: list[int] | None
) -> None:
    loads = buckets_of(max_num_seqs)
    found = tuple((adopted * (max_num_seqs + 1))[: max_num_seqs + 1]) if adopted else None
    base = found or boot_table(LADDER, max_num_seqs)
    dense = table(base, decided, loads)
    assert len(dense) == max_num_seqs + 1
    assert set(dense) <= set(LADDER)
    assert dense[0] == dense[1]
    reachable = {load: k for load, k in decided.items() if load in loads}
    for load, k in reachable.items():
        assert dense[load] == k
    ks = [reachable[load] for load in sorted(reachable)]
    if adopted is None and all(a >= b for a, b in pairwise(ks)):
        assert all(a >= b for a, b in pairwise(dense[1:]))


def test_of_two_that_are_nearly_equal_the_one_that_drafts_nothing_is_taken() -> None:
    """And once taken it stays: what is better by less than the tie band is no reason to leave it."""
    nearly = scores({5: 80.0, 3: 90.0, 2: 95.0, 1: 100.3, 0: 100.0}, error=0.003)
    assert choose(nearly, 1, 0.01).k == 0
    assert choose(nearly, 0, 0.01).k == 0
    better = scores({5: 80.0, 3: 90.0, 2: 95.0, 1: 101.0, 0: 100.0}, error=0.003)
    assert choose(better, 1, 0.01).k == 1
    # The quick look before it lets both through, and no load of which nothing is close.
    assert board(nearly).stirred({8: 1}, LEAST_ERRORS, off_allowance(0.01)) == {8}
    assert board(nearly).stirred({8: 0}, LEAST_ERRORS, off_allowance(0.01)) == set()
    clear = scores({5: 80.0, 3: 90.0, 2: 95.0, 1: 110.0, 0: 100.0}, error=0.003)
    assert board(clear).stirred({8: 1}, LEAST_ERRORS, off_allowance(0.01)) == set()


@settings(deadline=None)
@given(
    goodputs,
    st.lists(st.lists(st.floats(-1, 1), min_size=5, max_size=5), min_size=5, max_size=5),
    st.sampled_from(LADDER),
    st.sets(st.sampled_from(LADDER)),
    st.floats(0, 0.1),
)
def test_gains_are_those_of_the_covariance_and_stir_where_one_is_clear(
    tokens: dict[int, float], root: list[list[float]], incumbent: int, known: set[int], allowance: float
) -> None:
    covariance = np.asarray(root) @ np.asarray(root).T
    at = scores(tokens, known=tuple(known))._replace(covariance=covariance)
    contrasts = np.eye(5) - np.eye(5)[LADDER.index(incumbent)]
    gains, errors = at.gains(incumbent)
    assert gains == pytest.approx((contrasts @ at.log_goodput).tolist())
    variances = (contrasts @ covariance @ contrasts.T).diagonal()
    assert np.square(errors) == pytest.approx(variances, abs=1e-12)
    ahead = {k: gain + (allowance if k == 0 else 0.0) for k, gain in zip(LADDER, gains, strict=True) if k != incumbent}
    clear = any(ahead[k] > max(0.0, errors[LADDER.index(k)]) for k in ahead if k in known)
    assert board(at).stirred({8: incumbent}, 1.0, allowance) == ({8} if clear else set())


def board(at: Scores) -> Board:
    """The scores of one load as those of several."""
    stacked: dict[str, Any] = {
        name: np.asarray([value]) for name, value in at._asdict().items() if name not in ("load", "told")
    }
    return Board(**stacked | {"loads": (at.load,), "ladder": at.ladder, "told": at.told})
