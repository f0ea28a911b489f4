"""The rollout's state machine: every step, and, whatever happens in whatever order, what it never does."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.rollout import Rollout
from paceline_operator.api.status_rollout import CanaryStatus, FailedRollout, Phase, RolloutStatus
from paceline_operator.clock import rfc3339
from paceline_operator.rollout.decide import (
    NO_ROOM_SECONDS,
    ROOM_RETRY_SECONDS,
    START_MARGIN_SECONDS,
    STUCK_SECONDS,
    decide,
)
from paceline_operator.rollout.situation import (
    Ask,
    CanaryPod,
    Decision,
    Track,
)
from tests.unit.situations import BAD, FIELD, GOOD, NEW, NOW, OLD, WINDOW, ago, ready, situation, watching


def condition(decision: Decision, kind: ConditionType) -> tuple[bool | None, Reason] | None:
    found = next((verdict for verdict in decision.verdicts if verdict.type is kind), None)
    return (found.status, found.reason) if found else None


def test_the_first_template_is_rolled_out_as_it_is() -> None:
    decision = decide(situation(stable=None, memory=RolloutStatus()))
    assert (decision.stable, decision.canary, decision.frozen) == (Ask(NEW.name, 2), None, False)
    assert decision.memory.revision == NEW.name


def test_nothing_is_done_where_the_template_is_the_one_that_is_wanted() -> None:
    memory = RolloutStatus(phase=Phase.STEADY, revision=NEW.name)
    at_rest = situation(stable=Track(NEW.name, 2, 2, settled=True, renewed=True), fields=(), memory=memory)
    decision = decide(at_rest)
    assert (decision.stable, decision.canary, decision.memory, decision.after) == (Ask(NEW.name, 2), None, memory, None)
    assert decision.events == ()


def test_a_change_begins_with_a_canary_beside_all_pods_and_says_which_field_it_was() -> None:
    decision = decide(situation())
    assert (decision.stable, decision.canary) == (Ask(OLD.name, 2), Ask(NEW.name, 1))
    assert decision.memory.canary == CanaryStatus(revision=NEW.name, started_at=rfc3339(NOW))
    assert decision.frozen
    assert condition(decision, ConditionType.PROGRESSING) == (True, Reason.CANARY_STARTED)
    (event,) = decision.events
    assert event.reason is Reason.CANARY_STARTED
    assert FIELD in event.message


def test_a_change_while_no_pod_serves_has_nothing_to_protect() -> None:
    decision = decide(situation(stable=Track(OLD.name, 2, 0, settled=False, renewed=False)))
    assert (decision.stable, decision.canary) == (Ask(NEW.name, 2), None)
    assert decision.memory.phase is Phase.ROLLING


def test_a_serving_that_is_scaled_to_zero_takes_the_new_template_at_once() -> None:
    decision = decide(situation(replicas=0, stable=Track(OLD.name, 0, 0, settled=True, renewed=True)))
    assert (decision.stable, decision.canary) == (Ask(NEW.name, 0), None)


@pytest.mark.parametrize("pod", [None, CanaryPod(), ready(5), CanaryPod(unschedulable_since=ago(9))])
@pytest.mark.parametrize("serve", [0, 2])
def test_a_serving_that_is_scaled_to_zero_has_no_use_for_a_canary(pod: CanaryPod | None, serve: int) -> None:
    stable = Track(OLD.name, 0, serve, settled=not serve, renewed=True)
    mine = decide(watching(pod, replicas=0, stable=stable))
    assert (mine.stable, mine.canary, mine.memory.phase) == (Ask(NEW.name, 0), None, Phase.ROLLING)
    own = decide(watching(pod, replicas=0, stable=stable, own=True))
    assert (own.stable, own.canary, own.memory.phase) == (Ask(OLD.name, 0), None, Phase.BLOCKED)
    bad = decide(watching(pod, replicas=0, stable=stable, judgement=BAD))
    assert condition(bad, ConditionType.ROLLED_BACK) == (True, Reason.GOODPUT_LOST)


def test_without_canaries_pods_are_replaced_one_by_one() -> None:
    decision = decide(situation(rollout=Rollout.model_validate({"canary": {"mode": "Disabled"}})))
    assert (decision.stable, decision.canary) == (Ask(NEW.name, 2), None)
    assert condition(decision, ConditionType.PROGRESSING) == (True, Reason.ROLLING_OUT)


def test_a_canary_that_finds_no_room_for_a_minute_takes_the_place_of_another_pod() -> None:
    early = decide(watching(CanaryPod(unschedulable_since=ago(NO_ROOM_SECONDS - 1))))
    assert early.stable == Ask(OLD.name, 2)
    late = decide(watching(CanaryPod(unschedulable_since=ago(NO_ROOM_SECONDS))))
    assert (late.stable, late.canary) == (Ask(OLD.name, 1), Ask(NEW.name, 1))
    assert late.memory.canary is not None
    assert late.memory.canary.in_place


def test_the_only_pod_is_replaced_in_its_place_for_a_user_and_the_downtime_is_announced() -> None:
    one = Track(OLD.name, 1, 1, settled=True, renewed=True)
    decision = decide(watching(CanaryPod(unschedulable_since=ago(NO_ROOM_SECONDS)), replicas=1, stable=one))
    assert (decision.stable, decision.canary) == (Ask(NEW.name, 1), None)
    told = next(v for v in decision.verdicts if v.type is ConditionType.PROGRESSING)
    assert "nothing is served until" in told.message
    assert FIELD in told.message


@pytest.mark.parametrize(("own", "require"), [(True, False), (False, True)])
def test_the_only_pod_is_not_replaced_for_a_proposal_nor_where_a_canary_is_required(own: bool, require: bool) -> None:
    one, rollout = Track(OLD.name, 1, 1, settled=True, renewed=True), Rollout(require_canary=require)
    pod = CanaryPod(unschedulable_since=ago(NO_ROOM_SECONDS))
    first = decide(watching(pod, replicas=1, stable=one, own=own, rollout=rollout))
    assert (first.stable, first.canary) == (Ask(OLD.name, 1), None)
    assert condition(first, ConditionType.ROLLOUT_BLOCKED) == (True, Reason.NO_CAPACITY)
    again = situation(replicas=1, stable=one, own=own, rollout=rollout, memory=first.memory)
    assert decide(again).canary is None
    assert decide(again).after == ROOM_RETRY_SECONDS
    later = decide(replace(again, now=NOW + timedelta(seconds=ROOM_RETRY_SECONDS)))
    assert later.canary == Ask(NEW.name, 1), "room is looked for again"


def test_a_good_canary_is_promoted_once_it_was_watched_and_serves_on_until_the_others_have_followed() -> None:
    assert decide(watching(ready(119), judgement=GOOD)).memory.phase is Phase.CANARY
    promoted = decide(watching(ready(120), judgement=GOOD))
    assert (promoted.stable, promoted.canary) == (Ask(NEW.name, 2), Ask(NEW.name, 1))
    assert promoted.events[0].reason is Reason.CANARY_PROMOTED
    assert promoted.frozen
    following = replace(
        watching(ready(130)),
        stable=Track(NEW.name, 2, 1, settled=False, renewed=False),
        fields=(),
        memory=promoted.memory,
    )
    assert decide(following).canary == Ask(NEW.name, 1)
    assert decide(following).memory.phase is Phase.PROMOTING
    done = decide(replace(following, stable=Track(NEW.name, 2, 2, settled=True, renewed=True)))
    assert (done.stable, done.canary, done.frozen) == (Ask(NEW.name, 2), None, False)
    assert done.memory.fields == [FIELD], "what caused the last rollout stays said"


def test_a_canary_in_place_is_one_of_the_replicas_until_it_goes() -> None:
    promoted = decide(watching(ready(120), in_place=True, judgement=GOOD))
    assert (promoted.stable, promoted.canary) == (Ask(NEW.name, 1), Ask(NEW.name, 1))
    done = decide(
        watching(
            ready(130), fields=(), stable=Track(NEW.name, 1, 1, settled=True, renewed=True), memory=promoted.memory
        )
    )
    assert (done.stable, done.canary) == (Ask(NEW.name, 2), None)


def test_a_canary_goes_once_all_others_have_the_template_and_all_but_one_are_ready() -> None:
    """The last one may wait for the room that the canary has."""
    memory = RolloutStatus(phase=Phase.PROMOTING, revision=NEW.name)
    waiting = watching(ready(200), fields=(), memory=memory)
    for count, renewed, gone in ((1, True, True), (0, True, False), (1, False, False)):
        stable = Track(NEW.name, 2, count, settled=False, renewed=renewed)
        assert (decide(replace(waiting, stable=stable)).canary is None) is gone
    only = Track(NEW.name, 1, 0, settled=False, renewed=True)
    assert decide(replace(waiting, replicas=1, stable=only)).canary is not None, "nothing else would serve"


def test_a_promotion_whose_room_went_gives_the_canary_the_place_of_another_pod() -> None:
    memory = RolloutStatus(phase=Phase.PROMOTING, revision=NEW.name)
    stable = Track(NEW.name, 2, 1, settled=False, renewed=False, unplaced_since=ago(NO_ROOM_SECONDS))
    decision = decide(watching(ready(200), fields=(), memory=memory, stable=stable))
    assert (decision.stable, decision.canary) == (Ask(NEW.name, 1), Ask(NEW.name, 1))
    assert decision.memory.canary is not None
    assert decision.memory.canary.in_place
    early = replace(stable, unplaced_since=ago(NO_ROOM_SECONDS - 1))
    assert decide(watching(ready(200), fields=(), memory=memory, stable=early)).stable == Ask(NEW.name, 2)


@pytest.mark.parametrize("pod", [ready(0), ready(3600)])
def test_a_bad_canary_is_remembered_first_and_taken_back_in_the_next_pass(pod: CanaryPod) -> None:
    found = decide(watching(pod, judgement=BAD))
    assert (found.stable, found.canary) == (Ask(OLD.name, 2), Ask(NEW.name, 1)), "not before status has it"
    assert [(one.revision, one.fields, one.reason) for one in found.memory.failed] == [
        (NEW.name, [FIELD], "GoodputLost")
    ]
    assert condition(found, ConditionType.ROLLED_BACK) == (True, Reason.GOODPUT_LOST)
    told = next(v for v in found.verdicts if v.type is ConditionType.ROLLED_BACK)
    assert FIELD in told.message
    assert found.events[0].reason is Reason.GOODPUT_LOST
    taken = decide(watching(pod, judgement=BAD, memory=found.memory))
    assert (taken.stable, taken.canary, taken.events) == (Ask(OLD.name, 2), None, ())
    assert condition(taken, ConditionType.ROLLED_BACK) == (True, Reason.GOODPUT_LOST)
    assert not taken.frozen


def test_a_canary_that_crashed_is_bad_whatever_its_requests_say() -> None:
    decision = decide(
        watching(CanaryPod(ready_since=ago(300), crash="engine ended: Error, exit code 1"), judgement=GOOD)
    )
    assert condition(decision, ConditionType.ROLLED_BACK) == (True, Reason.CRASH_LOOP)


def test_a_canary_that_is_never_ready_is_bad() -> None:
    started = CanaryStatus(revision=NEW.name, started_at=rfc3339(ago(1800 + START_MARGIN_SECONDS)))
    memory = RolloutStatus(phase=Phase.CANARY, target=NEW.name, canary=started)
    assert condition(decide(watching(CanaryPod(), memory=memory)), ConditionType.ROLLED_BACK) == (
        True,
        Reason.CANARY_NOT_READY,
    )


def test_a_canary_whose_preflight_failed_is_bad_at_once() -> None:
    found = decide(watching(CanaryPod(refused="vocabulary: 152064 and 151936 tokens", stuck="back-off")))
    assert condition(found, ConditionType.ROLLED_BACK) == (True, Reason.CHECK_FAILED)
    assert "152064 and 151936" in found.memory.verdict
    assert found.events[0].reason is Reason.CHECK_FAILED


def test_a_canary_whose_weights_do_not_come_is_bad_at_once() -> None:
    found = decide(watching(CanaryPod(weightless="model: DiskFull: give the claim more room", stuck="back-off")))
    assert condition(found, ConditionType.ROLLED_BACK) == (True, Reason.CANARY_NOT_READY)
    assert "DiskFull: give the claim more room" in found.memory.verdict


def test_a_canary_whose_container_cannot_start_is_bad_after_some_minutes() -> None:
    stuck = CanaryPod(stuck="engine: ImagePullBackOff")
    early = decide(watching(stuck))
    assert early.memory.phase is Phase.CANARY
    assert any("ImagePullBackOff" in verdict.message for verdict in early.verdicts), "it is told meanwhile"
    memory = watching().memory.model_copy(
        update={"canary": CanaryStatus(revision=NEW.name, started_at=rfc3339(ago(STUCK_SECONDS)))}
    )
    late = decide(watching(stuck, memory=memory))
    assert condition(late, ConditionType.ROLLED_BACK) == (True, Reason.CANARY_NOT_READY)
    assert "ImagePullBackOff" in late.memory.verdict


def test_a_canary_that_too_little_is_known_of_waits_until_its_deadline() -> None:
    waiting = decide(watching(ready(1799)))
    assert waiting.memory.phase is Phase.CANARY
    mine = decide(watching(ready(1800)))
    assert (mine.stable, mine.memory.phase) == (Ask(NEW.name, 2), Phase.PROMOTING)
    assert mine.events[0].reason is Reason.CANARY_UNJUDGED
    own = decide(watching(ready(1800), own=True))
    assert condition(own, ConditionType.ROLLED_BACK) == (True, Reason.CANARY_UNJUDGED)


def test_a_canary_that_serves_alone_is_promoted_at_once() -> None:
    assert decide(watching(ready(1), stable=Track(OLD.name, 2, 0, settled=False, renewed=False))).stable == Ask(
        NEW.name, 2
    )


def test_what_failed_is_tried_again_only_after_a_retry_or_another_spec() -> None:
    failed = FailedRollout(revision=NEW.name, fields=[FIELD], reason="GoodputLost", message="half", at=rfc3339(NOW))
    memory = RolloutStatus(phase=Phase.ROLLED_BACK, target=NEW.name, failed=[failed])
    assert decide(situation(memory=memory)).canary is None
    retried = decide(situation(memory=memory, retry="please"))
    assert retried.canary == Ask(NEW.name, 1)
    assert (retried.memory.failed, retried.memory.retried) == ([], "please")
    other = replace(NEW, name="demo-other")
    assert decide(situation(memory=memory, wanted=other)).canary == Ask("demo-other", 1)


def test_a_reason_of_another_version_is_told_by_its_message() -> None:
    failed = FailedRollout(revision=NEW.name, fields=[FIELD], reason="OfTomorrow", message="half", at=rfc3339(NOW))
    decision = decide(situation(memory=RolloutStatus(phase=Phase.ROLLED_BACK, target=NEW.name, failed=[failed])))
    assert (decision.stable, decision.canary) == (Ask(OLD.name, 2), None)
    assert condition(decision, ConditionType.ROLLED_BACK) == (True, Reason.CANARY_UNJUDGED)
    assert decision.memory.failed == [failed]


def test_a_spec_that_went_back_takes_the_canary_away_and_nothing_else() -> None:
    decision = decide(watching(ready(10), wanted=OLD, fields=()))
    assert (decision.stable, decision.canary, decision.memory.phase) == (Ask(OLD.name, 2), None, Phase.STEADY)
    assert condition(decision, ConditionType.ROLLED_BACK) == (False, Reason.SETTLED)


def test_a_spec_that_changed_again_waits_for_the_earlier_canary_to_go() -> None:
    third = replace(NEW, name="demo-third")
    first = decide(watching(ready(10), wanted=third))
    assert first.canary is None
    still = situation(wanted=third, pod=ready(10), memory=first.memory)
    assert decide(still).canary is None
    assert decide(replace(still, pod=None)).canary == Ask("demo-third", 1)


def test_a_process_that_was_killed_before_it_wrote_status_begins_to_watch_anew() -> None:
    decision = decide(watching(ready(1000), judgement=GOOD, memory=RolloutStatus(phase=Phase.STEADY)))
    assert (decision.canary, decision.memory.phase) == (Ask(NEW.name, 1), Phase.CANARY)


def test_a_proposal_waits_for_window_and_budget_and_a_user_for_neither() -> None:
    windows = Rollout.model_validate({"maintenanceWindows": [WINDOW]})
    blocked = decide(situation(own=True, rollout=windows))
    assert condition(blocked, ConditionType.ROLLOUT_BLOCKED) == (True, Reason.OUTSIDE_WINDOW)
    assert (blocked.canary, blocked.after) == (None, 7200.0)
    assert decide(situation(own=True, rollout=windows, now=NOW + timedelta(hours=2))).canary is not None
    assert decide(situation(rollout=windows)).canary is not None
    waiting = decide(situation(rollout=windows.model_copy(update={"windows_for_user_changes": True})))
    assert condition(waiting, ConditionType.ROLLOUT_BLOCKED) == (True, Reason.OUTSIDE_WINDOW)
    spent = RolloutStatus(restarts=[rfc3339(ago(hours * 3600)) for hours in (1, 2, 3)])
    assert condition(decide(situation(own=True, memory=spent)), ConditionType.ROLLOUT_BLOCKED) == (
        True,
        Reason.BUDGET_SPENT,
    )
    assert decide(situation(memory=spent)).canary is not None
    started = decide(situation(own=True, memory=spent.model_copy(update={"restarts": spent.restarts[1:]})))
    assert started.memory.restarts[0] == rfc3339(NOW)
    own = decide(situation(own=True, rollout=Rollout.model_validate({"canary": {"mode": "Disabled"}})))
    assert condition(own, ConditionType.ROLLOUT_BLOCKED) == (True, Reason.CANARY_DISABLED)
