"""The breaker and the ladder as a whole, whatever ends whenever: bounded, a rung at a time, never back by itself."""

from __future__ import annotations

import itertools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status_boots import BootField
from paceline_operator.api.status_rollout import FailedRollout, RolloutStatus
from paceline_operator.api.status_safety import MAX_DEATHS, Breaker, Phase, SafetyStatus
from paceline_operator.clock import rfc3339
from paceline_operator.safety.course import Fault, Sight, step
from paceline_operator.safety.lay import holds, laid, trial_name
from paceline_operator.safety.signatures import UNKNOWN_REMEDIES, Death, Remedy, name

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
NAMED = name(Death("ValueError: something"))
SPEC = ServingSpec.model_validate(
    {
        "model": {"source": "hf://owner/target"},
        "speculation": {
            "method": "eagle3", "draft": {"source": "hf://owner/draft"}, "maxTokens": 7,
            "adaptiveVerification": "Enabled",
        },
        "engine": {"cudagraphMode": "FULL_AND_PIECEWISE"},
    }
)  # fmt: skip


def fault(number: int, at: datetime = NOW, **changes: Any) -> Fault:
    given_fault = Fault(f"u{number}/0", f"u{number}", f"chat-{number}", at, "Crash", NAMED, "ended", True, True, 30.0)
    return replace(given_fault, **changes)


def sight(now: datetime = NOW, **changes: Any) -> Sight:
    alive = frozenset(f"u{number}" for number in range(1000))
    given_sight = Sight(now, SPEC, "", "0.32.0", RolloutStatus(), now, False, (0.5, 0.4), alive)
    return replace(given_sight, **changes)


def failing(memory: SafetyStatus) -> RolloutStatus:
    record = FailedRollout(revision="r", reason="CrashLoop", own=True, proposal=trial_name(memory), at=rfc3339(NOW))
    return RolloutStatus(failed=[record])


def test_two_ends_open_it_and_the_same_one_seen_again_is_one() -> None:
    memory = step(SafetyStatus(), [fault(1)], sight()).memory
    memory = step(memory, [fault(1)], sight()).memory
    assert (memory.phase, len(memory.deaths)) == (Phase.REST, 1)
    found = step(memory, [fault(2)], sight())
    assert (found.memory.breaker, found.memory.phase, found.memory.rung) == (
        Breaker.OPEN, Phase.TRIAL, Remedy.WITHOUT_ADAPTIVE_VERIFICATION,
    )  # fmt: skip
    assert found.verdict.reason is Reason.BREAKER_OPEN
    assert holds(found.memory)
    assert not laid(SPEC, found.memory).spec.speculation.enabled


def test_ends_of_canaries_of_engines_without_speculation_and_of_long_ago_open_nothing() -> None:
    for other in ({"is_stable": False}, {"speculates": False}, {"at": NOW - timedelta(hours=1)}):
        memory = step(SafetyStatus(), [fault(1, **other), fault(2)], sight()).memory
        assert (memory.phase, len(memory.deaths)) == (Phase.REST, 2)


def test_what_is_read_of_another_version_s_status_ends_no_pass() -> None:
    memory = SafetyStatus(
        phase=Phase.TRIAL, breaker=Breaker.OPEN, rung="Unheard", tried=["Of"], fault="?", began_at="x", since="y",
        changes=[BootField(path="engine.nothing", value="1"), BootField(path="speculation.maxTokens", value='"x"')],
    )  # fmt: skip
    found = step(memory, [fault(1)], sight())
    assert not laid(SPEC, found.memory).spec.speculation.enabled


EVENTS = st.lists(
    st.sampled_from(["crash", "plain", "fails", "ready", "quiet", "minutes", "back", "retry", "engine"]), max_size=80
)


@given(EVENTS)
def test_whatever_happens_it_is_bounded_and_goes_one_rung_at_a_time(course: list[str]) -> None:
    memory, now, numbers, retries, engines = SafetyStatus(), NOW, itertools.count(), 0, 0
    for event in course:
        before, faults, how = memory, [], {}
        if event in ("crash", "plain"):
            faults = [fault(next(numbers), now, speculates=event == "crash")]
        elif event == "fails" and memory.phase is Phase.TRIAL:
            how = {"rollout": failing(memory)}
        elif event == "ready":
            how = {"trial_ready": True}
        now += timedelta(minutes={"minutes": 20, "back": -60}.get(event, 1))
        retries, engines = retries + (event == "retry"), engines + (event == "engine")
        how |= {"retry": str(retries or ""), "engine": f"0.3{engines}"}
        found = step(memory, faults, sight(now, **how))
        memory = SafetyStatus.model_validate(found.memory.model_dump(mode="json", by_alias=True))
        assert memory == found.memory, "it is whole in status"
        assert len(memory.deaths) <= MAX_DEATHS
        assert len(set(memory.tried)) == len(memory.tried) <= len(UNKNOWN_REMEDIES)
        assert list(memory.tried) == [one for one in UNKNOWN_REMEDIES if one in memory.tried], "in order"
        if event not in ("retry", "engine"):
            assert memory.tried[: len(before.tried)] == before.tried
            assert len(memory.tried) - len(before.tried) <= 1
            assert memory.phase is not Phase.REST or before.phase is Phase.REST, "never back by itself"
        speculates = laid(SPEC, memory).spec.speculation.enabled
        assert speculates is (memory.breaker is Breaker.CLOSED)
        trial = laid(SPEC, memory).trial
        if trial is not None:
            assert memory.phase is Phase.TRIAL
            assert trial.speculation.enabled
            assert trial != SPEC
        assert (found.verdict.status is True) is (memory.phase is not Phase.REST)
        assert step(memory, [], sight(now, **{**how, "rollout": RolloutStatus(), "trial_ready": False})).events == ()


@given(st.integers(0, 5), st.integers(1, 8))
def test_hung_pods_are_deleted_within_the_budget_of_an_hour(budget: int, pods: int) -> None:
    spec = SPEC.model_copy(update={"safety": SPEC.safety.model_copy(update={"restarts_per_hour": budget})})
    hung = {f"u{number}": f"chat-{number}" for number in range(pods)}
    memory = step(SafetyStatus(), [], sight(spec=spec, hung=hung)).memory
    assert len(memory.restarting) == min(budget, pods)
    again = step(memory, [], sight(spec=spec, hung=hung)).memory
    assert again.restarting == memory.restarting, "each once"
    gone = sight(NOW + timedelta(hours=2), spec=spec, alive=frozenset())
    assert step(again, [], gone).memory.restarting == []
    assert step(SafetyStatus(), [], sight(spec=spec, hung=hung, acts=False)).memory.restarting == []
