"""Proposals of the operator's own over the user's spec: accepted one at a time, kept, and dropped when they should."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.conditions import Reason
from paceline_operator.api.status_rollout import FailedRollout, Phase, RolloutStatus
from paceline_operator.clock import rfc3339
from paceline_operator.rollout.accept import PAYBACK_SECONDS, accept, is_own, name_of
from paceline_operator.rollout.diff import boot_spec, changed
from paceline_operator.rollout.proposal import Proposal, overlay, value_at
from tests.servings import serving

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
APPLY = {"rollout": {"proposals": "Apply"}}
FEWER = Proposal({"speculation.maxTokens": 2}, Reason.NO_DRAFTER, 0.05, 60.0, 1e6, "5 % more")
SHORTER = Proposal({"engine.maxModelLen": 4096}, Reason.NO_DRAFTER, 0.20, 60.0, 1e6, "20 % more")


def test_by_default_a_proposal_is_told_and_nothing_else() -> None:
    spec = serving().spec
    found = accept(spec, RolloutStatus(), [FEWER], NOW)
    assert (found.spec, found.memory.applied, found.paths) == (spec, [], frozenset())


def test_the_best_one_is_laid_over_the_spec_and_stays_without_being_proposed_again() -> None:
    spec = serving(**APPLY).spec
    found = accept(spec, RolloutStatus(), [FEWER, SHORTER], NOW)
    assert changed(boot_spec(spec), boot_spec(found.spec)) == ("engine.maxModelLen",)
    assert found.paths == {"engine.maxModelLen"}
    again = accept(spec, found.memory, [], NOW + timedelta(days=1))
    assert (again.spec, again.memory) == (found.spec, found.memory)
    second = accept(spec, found.memory, [FEWER, SHORTER], NOW)
    assert second.spec.speculation.max_tokens == 2, "the next, once the first is in force"
    busy = accept(spec, found.memory.model_copy(update={"phase": Phase.CANARY}), [FEWER], NOW)
    assert busy.spec == found.spec, "one at a time"


def test_one_that_another_replaced_comes_back_and_a_failed_one_leaves_what_was_before() -> None:
    spec = serving(**APPLY).spec
    off = Proposal({"speculation.enabled": False}, Reason.NO_DRAFTER, 0.1, 60.0, 1e6, "")
    on = Proposal({"speculation.enabled": True}, Reason.DRAFTER_PAYS, 0.1, 60.0, 1e6, "")
    first = accept(spec, RolloutStatus(), [off], NOW)
    assert not first.spec.speculation.enabled
    second = accept(spec, first.memory, [off, on], NOW)
    assert second.spec.speculation.enabled
    third = accept(spec, second.memory, [off], NOW)
    assert not third.spec.speculation.enabled
    assert [name_of(one) for one in third.memory.applied] == [on.key, off.key]
    failed = FailedRollout(revision="x", reason="GoodputLost", own=True, proposal=on.key, at=rfc3339(NOW))
    back = accept(spec, second.memory.model_copy(update={"failed": [failed]}), [], NOW)
    assert not back.spec.speculation.enabled


def test_what_the_user_writes_holds() -> None:
    first = accept(serving(**APPLY).spec, RolloutStatus(), [FEWER], NOW)
    spoken = accept(serving(**APPLY, speculation={"maxTokens": 7}).spec, first.memory, [], NOW)
    assert (spoken.spec.speculation.max_tokens, spoken.memory.applied) == (7, [])
    told_to_stop = accept(serving().spec, first.memory, [SHORTER], NOW)
    assert told_to_stop.spec.speculation.max_tokens == 2, "what is in force is not taken away by a restart"
    assert told_to_stop.spec.engine.max_model_len is None


def test_one_that_was_taken_back_is_dropped_and_not_accepted_again() -> None:
    spec = serving(**APPLY).spec
    first = accept(spec, RolloutStatus(), [FEWER], NOW)
    failed = FailedRollout(
        revision="demo-x", fields=["speculation.maxTokens"], reason="GoodputLost", own=True, proposal=FEWER.key,
        at=rfc3339(NOW + timedelta(minutes=5)),
    )  # fmt: skip
    memory = first.memory.model_copy(update={"failed": [failed]})
    assert name_of(first.memory.applied[0]) == FEWER.key
    back = accept(spec, memory, [FEWER], NOW + timedelta(minutes=6))
    assert (back.spec, back.memory.applied) == (spec, [])
    retried = accept(spec, back.memory.model_copy(update={"failed": []}), [FEWER], NOW)
    assert retried.spec.speculation.max_tokens == 2


def test_one_that_does_not_pay_back_or_cannot_work_is_not_accepted() -> None:
    spec = serving(**APPLY).spec
    slow = Proposal(FEWER.changes, FEWER.reason, 0.001, 0.001 * PAYBACK_SECONDS + 1, 1.0, "")
    worse = Proposal(FEWER.changes, FEWER.reason, -0.1, 1.0, 1.0, "")
    broken = Proposal({"speculation.maxTokens": 99}, FEWER.reason, 0.5, 1.0, 1.0, "")
    refused = Proposal({"engine.extraArgs": ["--model", "x"]}, FEWER.reason, 0.5, 1.0, 1.0, "")
    for one in (slow, worse, broken, refused):
        assert accept(spec, RolloutStatus(), [one], NOW).memory.applied == []
    assert accept(spec, RolloutStatus(), [broken, FEWER], NOW).spec.speculation.max_tokens == 2


def test_a_change_is_the_operators_own_where_all_of_its_fields_are() -> None:
    paths = frozenset({"speculation.maxTokens", "engine.extraArgs"})
    assert is_own(["speculation.maxTokens", "engine.extraArgs[0]"], paths)
    assert not is_own(["speculation.maxTokens", "model.source"], paths)
    assert not is_own([], paths)
    assert not is_own(["speculation.maxTokensMore"], paths)


NAMES = st.sampled_from(["a", "b", "c"])
SPECS: st.SearchStrategy[dict[str, Any]] = st.recursive(
    st.dictionaries(NAMES, st.integers(0, 3), max_size=3),
    lambda inner: st.dictionaries(NAMES, inner | st.integers(0, 3), max_size=3),
    max_leaves=6,
)
CHANGES = st.dictionaries(
    st.lists(NAMES, min_size=1, max_size=3).map(".".join), st.none() | st.integers(0, 3), min_size=1, max_size=1
)


@given(SPECS, CHANGES)
def test_an_overlay_says_what_it_was_told_and_changes_nothing_else(
    spec: dict[str, Any], changes: dict[str, Any]
) -> None:
    before = repr(spec)
    laid = overlay(spec, changes)
    assert repr(spec) == before
    assert all(value_at(laid, path) == value for path, value in changes.items())
    assert overlay(laid, changes) == laid
