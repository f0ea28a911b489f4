"""Events: what is worth one, and not twice."""

from __future__ import annotations

from paceline_operator import events
from paceline_operator.api.conditions import Condition, Reason
from paceline_operator.api.status import DecisionRecord, ServingStatus


def _status(*conditions: tuple[str, str, str, str], decisions: list[DecisionRecord] | None = None) -> ServingStatus:
    made = [
        Condition(type=kind, status=status, reason=reason, message=message, last_transition_time="t")  # type: ignore[arg-type]
        for kind, status, reason, message in conditions
    ]
    return ServingStatus(conditions=made, decisions=decisions or [])


def _decision(generation: int, requests: int = 8) -> DecisionRecord:
    return DecisionRecord(
        at="t", reason="Load", message="why", requests=requests, from_k=5, to_k=2, generation=generation
    )


def test_a_refusal_is_told_once_and_again_when_it_is_another() -> None:
    good = _status(("Accepted", "True", "Valid", ""))
    bad = _status(("Accepted", "False", "InvalidSpec", "spec.a"))
    worse = _status(("Accepted", "False", "InvalidSpec", "spec.b"))
    assert [e.message for e in events.of_change(good, bad)] == ["spec.a"]
    assert events.of_change(bad, bad) == []
    assert [e.message for e in events.of_change(bad, worse)] == ["spec.b"]
    assert events.of_change(bad, good) == []


def test_a_failed_apply_is_told_and_a_settled_rollout_is_not() -> None:
    before = _status()
    assert [e.reason for e in events.of_change(before, _status(("Progressing", "False", "ApplyFailed", "no")))] == [
        Reason.APPLY_FAILED
    ]
    assert events.of_change(before, _status(("Progressing", "False", "Settled", ""))) == []


def test_decisions_are_told_oldest_first_and_once() -> None:
    before = _status(decisions=[_decision(1)])
    after = _status(decisions=[_decision(3), _decision(2, requests=16), _decision(2), _decision(1)])
    assert [e.message for e in events.of_change(before, after)] == [
        "k 5 to 2 at 8 requests: why",
        "k 5 to 2 at 16 requests: why",
        "k 5 to 2 at 8 requests: why",
    ]


def test_the_same_event_is_quiet_for_a_while() -> None:
    recorder = events.Recorder()
    one, other = events.created("Service", "a"), events.pruned("Service", "b")
    assert recorder.fresh([one, one, other], 0.0) == [one, other]
    assert recorder.fresh([one], events.QUIET_SECONDS - 1) == []
    assert recorder.fresh([one], events.QUIET_SECONDS) == [one]


def test_the_body_is_about_the_object_and_fits() -> None:
    about = {"metadata": {"name": "chat", "namespace": "team", "uid": "u"}}
    body = events.body(events.apply_failed("x" * 5000), about, "2026-01-01T00:00:00Z")
    assert len(body["message"]) == events.MESSAGE_LIMIT
    assert (body["metadata"]["namespace"], body["involvedObject"]["uid"]) == ("team", "u")
    again = events.body(events.apply_failed("x"), about, "2026-01-01T00:00:00Z")
    assert body["metadata"]["name"] != again["metadata"]["name"]


def test_what_has_one_reason_is_said_in_one_event() -> None:
    told = [
        events.created("Service", "chat"),
        events.pruned("Service", "old"),
        events.created("Deployment", "chat"),
        events.Event(events.WARNING, Reason.CHILD_PRUNED, "worse"),
    ]
    recorder = events.Recorder()
    created, pruned = recorder.fresh(told, 0.0)
    assert created.message == "Created Service chat; Created Deployment chat"
    assert (pruned.type, pruned.message.endswith("; worse")) == (events.WARNING, True)
    assert recorder.fresh(told, 1.0) == [], "each was said, though not alone"
