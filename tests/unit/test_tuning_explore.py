"""Bursts that are wished for are ones that engines take."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import MAX_PROBE_SHARE
from paceline_operator.tuning.decide import settings_of
from paceline_operator.tuning.explore import Headroom, Look, share_of, wish
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
