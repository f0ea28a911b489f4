"""Drafts that are accepted less in long contexts: told beyond doubt, under the same k, with hysteresis."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import CONTEXT_EDGES, CostCell, Verification
from paceline_operator.effective.decay import Decay, added, decayed

LONG = CONTEXT_EDGES[1]


def cell(context: int, length: float, k: int = 3, **changes: Any) -> CostCell:
    """1,000 request-steps that gave `length` tokens each."""
    fields: dict[str, Any] = {
        "load": 4, "context": context, "k_drafted": k, "k_verified": k, "probe": False, "steps": 250,
        "request_steps": 1000, "emitted": round(1000 * length), "seconds": 2.5, "seconds_squared": 0.025,
        "histogram": {},
    }  # fmt: skip
    return CostCell(**fields | changes)


def seen(*cells: CostCell, times: int = 20) -> Decay:
    found = Decay()
    for _ in range(times):
        found = added(found, cells)
    return found


def test_a_draft_that_does_not_know_long_contexts_is_told() -> None:
    found = decayed(seen(cell(0, 2.8), cell(LONG, 1.5)), was=False)
    assert found == f"drafts are accepted less often in contexts from {LONG} tokens on than in short ones"
    assert decayed(seen(cell(0, 2.8), cell(LONG, 2.7)), was=False) == ""


def test_between_the_two_limits_it_stays_what_it_was() -> None:
    between = seen(cell(0, 2.8), cell(LONG, 1 + 1.8 * 0.77))
    assert decayed(between, was=False) == ""
    assert decayed(between, was=True) != ""
    assert decayed(seen(cell(0, 2.8), cell(LONG, 2.8)), was=True) == ""


@pytest.mark.parametrize(
    "other",
    [
        {"k": 5},
        {"verification": Verification.ADAPTIVE},
        {"k_verified": 1},
        {"first_tokens": 1000},
        {"k": 0},
    ],
)
def test_what_is_no_comparison_tells_nothing(other: dict[str, Any]) -> None:
    assert decayed(seen(cell(0, 2.8), cell(LONG, 1.1, **other)), was=False) == ""


def test_too_little_of_either_side_tells_nothing() -> None:
    assert decayed(added(seen(cell(0, 2.8)), [cell(LONG, 1.1)]), was=False) == ""


@given(
    st.lists(
        st.tuples(st.sampled_from(CONTEXT_EDGES), st.floats(0, 9), st.integers(0, 8), st.integers(0, 2000)), max_size=30
    )
)
def test_shares_stay_shares_whatever_engines_say(rows: list[tuple[int, float, int, int]]) -> None:
    found = Decay()
    for context, length, k, first in rows:
        found = added(found, [cell(context, length, k, first_tokens=first)])
    assert all(0 <= hits <= of * (1 + 1e-9) for of, hits in found.counts.values())
    decayed(found, was=False)


def test_an_engine_that_names_ever_new_ks_takes_no_more_room() -> None:
    assert len(seen(*(cell(0, 2.0, k) for k in range(1, 1000)), times=1).counts) == 256
