"""What need not be measured: ks that cannot be good, by what was measured of others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import Verification
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS
from paceline_operator.tuning.goodput import Scores
from paceline_operator.tuning.look import hopeless, lacking, look, quarantined
from paceline_operator.tuning.settle import _better

LADDER = (7, 3, 1, 0)
FRESH = np.full(len(LADDER), MIN_REQUEST_STEPS)
UNKNOWN = [False, False, True, True]
ADAPTIVE = frozenset({Verification.ADAPTIVE, Verification.ALL})


def scores(gains: list[float], error: float, known: list[bool], lengths: list[float] | None = None) -> Scores:
    """Log goodput over that of k=0, whose error nobody doubts; a length of 1 leaves all of it to the step time."""
    log_length = np.log(lengths or [1.0] * len(LADDER))
    log = np.asarray(gains)
    covariance = np.diag([error**2, error**2, error**2, 0.0])
    size = len(LADDER)
    return Scores(
        load=64,
        ladder=LADDER,
        requests=64.0,
        log_length=log_length,
        log_step=log_length - log,
        log_goodput=log,
        length_covariance=np.zeros((size, size)),
        step_covariance=covariance,
        covariance=covariance,
        steps=np.where(known, 100.0, 0.0),
        known=np.asarray(known),
        outdated=np.zeros(size, bool),
        faster=np.zeros(size, bool),
        told=np.ones(size, bool),
    )


@pytest.mark.parametrize(("error", "found"), [(0.1, [True, False]), (0.2, [True, False]), (0.4, [False, False])])
def test_far_below_for_sure_is_not_measured(error: float, found: list[bool]) -> None:
    at = scores([-1.0, -0.2, 0.05, 0.0], error, UNKNOWN)
    assert hopeless(at)[:2] == found
    assert (7 in lacking(at, FRESH, {})) is not found[0]
    assert 3 in lacking(at, FRESH, {})


def test_under_adaptive_verification_every_k_is_measured() -> None:
    at = scores([-1.0, -1.0, 0.05, 0.0], 0.1, UNKNOWN)
    assert lacking(at, FRESH, {}) == ()
    assert lacking(at, FRESH, {}, ADAPTIVE) == (7, 3)


@given(
    st.lists(st.floats(-3, 3), min_size=4, max_size=4), st.floats(0, 1), st.lists(st.booleans(), min_size=4, max_size=4)
)
def test_what_may_be_the_best_is_never_hopeless(gains: list[float], error: float, known: list[bool]) -> None:
    at = scores(gains, error, known)
    best = int(np.argmax(gains))
    assert not hopeless(at)[best]
    assert not any(there and lost for there, lost in zip(known, hopeless(at), strict=True))
    if not any(known):
        assert not any(hopeless(at))


def test_another_traffic_makes_no_k_good_that_is_too_slow_for_any() -> None:
    """Lengths of 2 that may become k + 1: the step of k=7 takes 20 times that of k=0, that of k=3 twice."""
    lengths = [2.0, 2.0, 1.5, 1.0]
    steps = np.log([20.0, 2.0, 1.2, 1.0])
    at = scores((np.log(lengths) - steps).tolist(), 0.01, [True] * 4, lengths)
    assert lacking(at, np.zeros(4), {}) == (3, 1)
    assert lacking(at, np.zeros(4), {}, ADAPTIVE) == (7, 3, 1)


def test_the_hopeless_are_in_quarantine() -> None:
    at = scores([-1.0, -0.2, 0.05, 0.0], 0.1, UNKNOWN)
    assert quarantined({}, [look(at, 1)], LADDER, 5.0) == {(64, 7): 5.0}


@pytest.mark.parametrize("error", [0.0, 0.001, 0.01, 0.03])
def test_no_speculation_that_is_better_by_far_is_taken_before_all_is_known_the_sooner_the_surer(error: float) -> None:
    settings: Any = SimpleNamespace(min_gain=0.01, tpot_limit_seconds=None)
    state: Any = SimpleNamespace(load=SimpleNamespace(shares={64: 1.0}), auto={64: 7})

    def better(gain: float) -> dict[int, int]:
        found = scores([-gain, -gain, -gain, 0.0], error, [True, False, False, True])
        board: Any = SimpleNamespace(loads=(64,), at=lambda _: found)
        return _better(settings, state, board, {})

    assert better(0.7) == {64: 0}
    assert better(0.015) == {}, "not by far"
