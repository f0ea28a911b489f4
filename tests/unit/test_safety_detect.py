"""What counts as an end, a standstill, a reason to open the breaker: from pods and engines as they are, and as they
should never be."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.safety.breaker import WINDOW, Death, opens, words
from paceline_operator.safety.detect import HANG_SECONDS, Kind, ended, ends, hangs, progress

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)


def pod(terminated: Any, *, running: bool = True, restarts: Any = 1, uid: str = "u") -> dict[str, Any]:
    state: dict[str, Any] = {"running": {}} if running else {"terminated": terminated}
    status = {"name": "engine", "restartCount": restarts, "state": state}
    if running:
        status["lastState"] = {"terminated": terminated}
    return {
        "metadata": {"name": "chat-1", "uid": uid, "labels": {"track": "stable"}},
        "status": {"containerStatuses": [{"name": "sidecar"}, status]},
    }


def terminated(code: Any = 0, reason: str = "Completed", minutes: float = 30) -> dict[str, Any]:
    start, end = NOW - timedelta(minutes=minutes), NOW
    return {"exitCode": code, "reason": reason, "startedAt": start.isoformat(), "finishedAt": end.isoformat()}


def found(body: dict[str, Any]) -> list[Any]:
    return ends([body], "engine", "track", 60.0)


def test_an_engine_that_exits_0_has_crashed_as_one_that_exits_139_has() -> None:
    for code, reason in ((0, "Completed"), (139, "Error")):
        (end,) = found(pod(terminated(code, reason)))
        assert (end.kind, end.exit_code, end.track, end.lived_seconds) == (Kind.CRASH, code, "stable", 1800.0)
    (end,) = found(pod(terminated(137, "OOMKilled")))
    assert end.kind is Kind.OUT_OF_MEMORY
    (end,) = found(pod(terminated(1, "Error", minutes=0.5)))
    assert end.kind is Kind.NEVER_READY


def test_an_end_that_came_with_its_node_is_not_the_engine_s_and_one_that_answered_had_served() -> None:
    (end,) = found(pod(terminated(255, "Unknown")))
    assert not end.is_the_engine_s
    (end,) = ends([pod(terminated(1, "Error", minutes=0.5))], "engine", "track", 60.0, {"chat-1"})
    assert (end.kind, end.is_the_engine_s) == (Kind.CRASH, True)
    said = ended(pod(terminated(0)))
    assert said == "engine ended at 2026-01-01T12:00:00Z: Completed, exit code 0 (1 restarts)"


def test_an_end_by_the_kubelet_has_the_kubelet_s_word() -> None:
    body = pod(terminated(137, "Error"), running=False)
    body["status"] |= {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory. "}
    (end,) = found(body)
    assert (end.reason, end.message, end.is_the_engine_s) == ("Evicted", "The node was low on resource: memory. ", True)
    assert end.kind is Kind.EVICTED
    body["status"] |= {"reason": "Preempting", "message": "Preempted in order to admit critical pod"}
    (end,) = found(body)
    assert (end.kind, end.is_the_engine_s) == (Kind.EVICTED, True)
    for of_the_node in ("Terminated", "UnexpectedAdmissionError", "NodeAffinity"):
        body["status"] |= {"reason": of_the_node, "message": "x"}
        (end,) = found(body)
        assert not end.is_the_engine_s


def test_the_same_end_has_one_key_whether_the_container_runs_again_or_not() -> None:
    (before,) = found(pod(terminated(), running=False, restarts=0))
    (after,) = found(pod(terminated(), running=True, restarts=1))
    (following,) = found(pod(terminated(), running=False, restarts=1))
    assert before.key == after.key != following.key


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "status", "containerStatuses", "name", "state", "lastState", "terminated", "finishedAt",
                 "startedAt", "labels", "restartCount", "exitCode"]
            ),
            inner,
            max_size=5,
        ),
        max_leaves=20,
    )
)  # fmt: skip
def test_no_pod_crashes_it(body: Any) -> None:
    ends([body] if isinstance(body, dict) else [{"status": body}], "engine", "track", 60.0)
    ended(body if isinstance(body, dict) else {"status": body})
    if isinstance(body, dict):
        ends([{"status": {"containerStatuses": [{**body, "name": "engine"}]}}], "engine", "track", 60.0)


def test_no_token_with_requests_running_is_a_hang_and_nothing_else_is() -> None:
    at = progress({}, {"a": (10, "b", 3, 0.02)}, {"a"}, 0.0)
    for second in range(1, 200):
        at = progress(at, {"a": (10, "b", 3, 0.02)}, {"a"}, float(second))
        assert bool(hangs(at, {"a": 3}, float(second))) is (second >= HANG_SECONDS)
        assert bool(hangs(at, {"a": 3}, float(second), 100.0)) is (second >= 100)
    assert hangs(progress(at, {"a": (11, "b", 3, 0.02)}, {"a"}, 201.0), {"a": 3}, 201.0) == {}
    assert hangs(progress(at, {"a": (10, "b", 0, 0.02)}, {"a"}, 201.0), {"a": 0}, 201.0) == {}
    assert hangs(progress(at, {"a": (10, "new", 3, 0.02)}, {"a"}, 201.0), {"a": 3}, 201.0) == {}
    assert hangs(progress(at, {}, set(), 201.0), {"a": 3}, 201.0) == {}, "the pod is gone"


def test_silence_is_no_progress_and_a_slow_engine_is_no_hang() -> None:
    at = progress({}, {"a": (10, "b", 3, 0.02)}, {"a"}, 0.0)
    at = progress(at, {}, {"a"}, 61.0)
    assert hangs(at, {"a": 3}, 61.0) == {}, "an operator that did not look has seen nothing"
    for _ in range(3):
        at = progress(at, {"a": (10, "b", 3, 0.02)}, {"a"}, 62.0)
    assert hangs(at, {"a": 3}, 62.0) == {"a": 62.0}
    slow = progress({}, {"a": (10, "b", 3, 5.0)}, {"a"}, 0.0)
    for _ in range(3):
        slow = progress(slow, {"a": (10, "b", 3, None)}, {"a"}, 200.0)
    assert hangs(slow, {"a": 3}, 200.0) == {}
    assert hangs(slow, {"a": 3}, 250.0) == {"a": 250.0}


def test_two_deaths_within_the_window_open_the_breaker_and_one_or_old_ones_do_not() -> None:
    one = Death(NOW - timedelta(minutes=10), "chat-1", "x")
    two = Death(NOW, "chat-2", "y")
    assert opens([one], NOW) == []
    assert opens([one, two], NOW) == [two, one]
    assert opens([one, two], NOW + WINDOW) == []
    said = words(opens([one, two], NOW))
    assert "chat-1" in said
    assert "within 30 minutes" in said
    later = Death(NOW + timedelta(hours=1), "chat-1", "x")
    assert opens([later, two], NOW) == [later, two], "a clock that went back hides no death"
