"""Clocks that differ or jump neither promote a canary nor hold a rollout up."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.status_rollout import Phase, RolloutStatus
from paceline_operator.clock import rfc3339
from paceline_operator.rollout.decide import ROOM_RETRY_SECONDS, decide
from paceline_operator.rollout.situation import UNKNOWN, CanaryPod, Judgement
from tests.unit.situations import GOOD, NEW, NOW, ready, situation, watching

LATER = rfc3339(NOW + timedelta(days=300))


@given(st.integers(-(10**8), 10**8), st.sampled_from([GOOD, UNKNOWN]), st.booleans())
def test_what_the_clock_of_a_node_says_promotes_nothing_and_takes_nothing_back(
    seconds: int, judgement: Judgement, own: bool
) -> None:
    pod = CanaryPod(ready_since=NOW + timedelta(seconds=seconds))
    assert decide(watching(pod, judgement=judgement, own=own, watched_seconds=119.0)).memory.phase is Phase.CANARY


@pytest.mark.parametrize("seconds", [-(10**7), 10**7])
def test_a_canary_that_was_watched_long_enough_is_promoted_whatever_clocks_say(seconds: int) -> None:
    pod = CanaryPod(ready_since=NOW + timedelta(seconds=seconds))
    assert decide(watching(pod, judgement=GOOD, watched_seconds=120.0)).memory.phase is Phase.PROMOTING


def test_a_wall_clock_that_jumps_ends_no_deadline() -> None:
    jumped = replace(watching(ready(5)), now=NOW + timedelta(days=300))
    assert decide(jumped).memory.phase is Phase.CANARY


def test_restarts_to_come_count_as_of_now_and_are_free_again_after_a_day() -> None:
    spent = RolloutStatus(restarts=[LATER] * 3)
    now = decide(situation(own=True, memory=spent))
    blocked = next(verdict for verdict in now.verdicts if verdict.type is ConditionType.ROLLOUT_BLOCKED)
    assert (blocked.status, blocked.reason) == (True, Reason.BUDGET_SPENT)
    assert decide(situation(own=True, memory=now.memory, now=NOW + timedelta(days=1))).canary is not None


def test_room_is_looked_for_again_though_the_clock_was_set_back() -> None:
    waiting = RolloutStatus(phase=Phase.BLOCKED, target=NEW.name, no_capacity_at=LATER)
    now = decide(situation(memory=waiting))
    assert (now.canary, now.after) == (None, ROOM_RETRY_SECONDS)
    later = NOW + timedelta(seconds=ROOM_RETRY_SECONDS)
    assert decide(situation(memory=now.memory, now=later)).canary is not None
