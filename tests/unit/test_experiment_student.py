"""Which of scipy's functions say what, held to its distributions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from paceline_operator.experiment import student

FREEDOMS = st.integers(1, 400)


@given(FREEDOMS, st.floats(0, 1e6))
def test_tails(freedom: int, statistic: float) -> None:
    assert student.both_tails(freedom, statistic) == pytest.approx(2 * stats.t.sf(statistic, freedom), abs=1e-11)
    assert student.both_tails(freedom, -statistic) == student.both_tails(freedom, statistic)


def test_no_tail_beyond_infinity() -> None:
    assert [student.both_tails(freedom, math.inf) for freedom in (1, 2, 7)] == [0, 0, 0]


@given(FREEDOMS, st.floats(1e-6, 0.99))
def test_bounds(freedom: int, share: float) -> None:
    assert student.bound(freedom, share) == pytest.approx(stats.t.isf(share / 2, freedom), rel=1e-4)


@settings(max_examples=30)
@given(st.integers(3, 200), st.floats(1e-4, 0.2))
def test_what_is_found_in_four_of_five(freedom: int, share: float) -> None:
    """The non-central t of scipy, where it has one: below three degrees of freedom it often is not a number."""
    effect = student.shift(freedom, share, 0.8)
    assert stats.nct.sf(student.bound(freedom, share), freedom, effect) == pytest.approx(0.8, abs=1e-3)
