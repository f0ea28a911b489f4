"""Pods and Deployments as conditions."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import verdicts
from paceline_operator.api.conditions import AcceptanceStatus, Condition, ConditionType, Reason
from paceline_operator.api.status import ServingStatus
from paceline_operator.verdicts import Verdict

Object = dict[str, Any]


def pod(name: str = "a", *, ready: bool = False, **status: Any) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}, *status.pop("conditions", [])]
    return {"metadata": {"name": name}, "status": {"phase": "Running", "conditions": conditions, **status}}


def waiting(reason: str, message: str = "", **more: Any) -> list[Object]:
    return [{"name": "engine", "state": {"waiting": {"reason": reason, "message": message}}, **more}]


def deployment(**changes: Any) -> Object:
    status = {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, "availableReplicas": 2, **changes}
    return {"metadata": {"generation": 2}, "status": status}


@pytest.mark.parametrize(
    ("replicas", "unavailable", "ready", "expected"),
    [
        (0, 1, 0, (True, Reason.SCALED_TO_ZERO)),
        (1, 1, 0, (False, Reason.REPLICAS_UNAVAILABLE)),
        (1, 1, 1, (True, Reason.REPLICAS_READY)),
        (3, 1, 2, (True, Reason.REPLICAS_READY)),
        (3, 1, 1, (False, Reason.REPLICAS_UNAVAILABLE)),
        (3, 0, 2, (False, Reason.REPLICAS_UNAVAILABLE)),
    ],
)
def test_available_takes_one_ready_pod_and_at_most_max_unavailable_fewer(
    replicas: int, unavailable: int, ready: int, expected: tuple[bool, Reason]
) -> None:
    pods = [pod(f"p{n}", ready=n < ready) for n in range(replicas)]
    verdict = verdicts.available(replicas, unavailable, pods)
    assert (verdict.status, verdict.reason) == expected


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (
            {
                "conditions": [
                    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
                ]
            },
            Reason.UNSCHEDULABLE,
            "a: no GPU",
        ),
        (
            {
                "containerStatuses": waiting(
                    "CrashLoopBackOff", restartCount=4, lastState={"terminated": {"reason": "Completed", "exitCode": 0}}
                )
            },
            Reason.CRASH_LOOP,
            "a: engine restarts (4): Completed, exit code 0",
        ),
        (
            {"containerStatuses": waiting("ImagePullBackOff", "no such image")},
            Reason.REPLICAS_UNAVAILABLE,
            "no such image",
        ),
        ({"initContainerStatuses": waiting("ErrImagePull")}, Reason.REPLICAS_UNAVAILABLE, "a: engine: ErrImagePull"),
        ({}, Reason.REPLICAS_UNAVAILABLE, "0 of 1 replicas are ready"),
    ],
)
def test_available_says_what_keeps_pods(status: Object, reason: Reason, text: str) -> None:
    verdict = verdicts.available(1, 1, [pod(**status)])
    assert verdict.reason is reason
    assert text in verdict.message


def test_the_most_telling_reason_wins_and_few_pods_are_named() -> None:
    pods = [pod(f"wait{n}", containerStatuses=waiting("ImagePullBackOff")) for n in range(5)]
    pods.append(pod("crash", containerStatuses=waiting("CrashLoopBackOff")))
    verdict = verdicts.available(6, 1, pods)
    assert verdict.reason is Reason.CRASH_LOOP
    assert verdict.message.count(";") == 3


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (deployment(), Reason.SETTLED),
        (deployment(observedGeneration=1), Reason.ROLLING_OUT),
        (deployment(updatedReplicas=1), Reason.ROLLING_OUT),
        (deployment(replicas=3), Reason.ROLLING_OUT),
        (deployment(availableReplicas=1), Reason.ROLLING_OUT),
        (None, Reason.ROLLING_OUT),
        ({"metadata": {}}, Reason.ROLLING_OUT),
    ],
)
def test_progressing_ends_when_all_pods_are_renewed_and_available(given_: Object | None, expected: Reason) -> None:
    verdict = verdicts.progressing(2, given_)
    assert (verdict.reason, verdict.status) == (expected, expected is Reason.ROLLING_OUT)


def test_scaled_to_zero_is_settled() -> None:
    nothing: Object = {"metadata": {"generation": 1}, "status": {"observedGeneration": 1}}
    assert verdicts.progressing(0, nothing).reason is Reason.SETTLED


def _verdict(kind: ConditionType, status: bool | None, reason: Reason = Reason.VALID) -> Verdict:
    return Verdict(kind, status, reason, reason.value)


@pytest.mark.parametrize("accepted", [True, False])
@pytest.mark.parametrize("available", [True, False])
def test_ready_is_accepted_and_available(accepted: bool, available: bool) -> None:
    one = _verdict(ConditionType.ACCEPTED, accepted, Reason.VALID if accepted else Reason.INVALID_SPEC)
    other = _verdict(ConditionType.AVAILABLE, available, Reason.REPLICAS_READY)
    verdict = verdicts.ready(one, other)
    assert verdict.status is (accepted and available)
    assert verdict.reason is (other if accepted else one).reason


STATUSES = st.sampled_from([True, False, None])
VERDICTS = st.lists(st.builds(_verdict, st.sampled_from(ConditionType), STATUSES, st.sampled_from(Reason)), max_size=10)


@given(VERDICTS, VERDICTS)
def test_merged_conditions_are_one_a_type_in_order_and_their_times_move_with_the_status(
    first: list[Verdict], second: list[Verdict]
) -> None:
    before = verdicts.merge([], first, 1, "2026-01-01T00:00:00Z")
    after = verdicts.merge(before, second, 2, "2026-01-02T00:00:00Z")
    types = [condition.type for condition in after]
    assert types == [kind.value for kind in ConditionType if kind.value in types]
    assert set(types) == {verdict.type for verdict in [*first, *second]}
    was = {condition.type: condition for condition in before}
    said = {verdict.type.value: verdict for verdict in second}
    for condition in after:
        old = was.get(condition.type)
        if condition.type not in said:
            assert condition == old
        else:
            moved = old is None or old.status != condition.status
            kept = {c.last_transition_time for c in after if c.type == condition.type}
            flips = len([v for v in second if v.type == condition.type]) > 1
            assert flips or kept == {"2026-01-02T00:00:00Z" if moved else "2026-01-01T00:00:00Z"}
            assert (condition.observed_generation, condition.reason) == (2, said[condition.type].reason.value)


def test_conditions_of_a_newer_operator_are_kept() -> None:
    foreign = Condition(type="Rolled", status="True", reason="New", last_transition_time="2026-01-01T00:00:00Z")
    merged = verdicts.merge([foreign], [_verdict(ConditionType.READY, True)], 1, "2026-01-02T00:00:00Z")
    assert [condition.type for condition in merged] == ["Ready", "Rolled"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda v: st.lists(v, max_size=3) | st.dictionaries(st.sampled_from(["conditions", "pods", "k"]), v, max_size=3),
    max_leaves=6,
)


@given(JSON)
def test_any_stored_status_is_read_or_written_anew(status: Any) -> None:
    verdicts.status_of({"status": status}, ServingStatus)
    verdicts.status_of({"status": status}, AcceptanceStatus)


@given(JSON)
def test_replicas_of_any_spec(replicas: Any) -> None:
    assert isinstance(verdicts.replicas_of({"spec": {"replicas": replicas}}), int)


def test_many_conditions_of_others_give_way_to_ours() -> None:
    foreign = [
        Condition(type=f"Other{i}", status="True", reason="New", last_transition_time="2026-01-01T00:00:00Z")
        for i in range(30)
    ]
    ours = _verdict(ConditionType.READY, True, Reason.REPLICAS_READY)
    merged = verdicts.merge(foreign, [ours], 1, "2026-01-02T00:00:00Z")
    assert (len(merged), merged[0].type) == (verdicts.MAX_CONDITIONS, "Ready")
