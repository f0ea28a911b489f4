"""What the rollout makes of the safety ladder: at once where it is urgent, and trials that cost nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Rollout
from paceline_operator.api.status_rollout import Phase, RolloutStatus
from paceline_operator.clock import rfc3339
from paceline_operator.rollout.decide import decide
from paceline_operator.rollout.situation import Ask, CanaryPod, Judgement, of_trial
from tests.unit.situations import BAD, GOOD, NEW, OLD, WINDOW, ago, ready, situation, watching

SPENT = RolloutStatus(phase=Phase.STEADY, revision=OLD.name, restarts=[rfc3339(ago(60))] * 9)
CLOSED = Rollout.model_validate({"maintenanceWindows": [WINDOW], "windowsForUserChanges": True})


@pytest.mark.parametrize(
    "asked",
    [
        situation(urgent="service first", own=True, memory=SPENT),
        situation(urgent="service first", own=True, rollout=CLOSED),
        situation(urgent="service first", own=True, rollout=Rollout.model_validate({"requireCanary": True})),
        watching(ready(10), urgent="service first", own=True),
    ],
)
def test_what_is_urgent_is_rolled_out_at_once_without_a_canary(asked: object) -> None:
    decision = decide(asked)  # type: ignore[arg-type]
    assert decision.stable == Ask(NEW.name, 2)
    assert decision.canary is None
    assert decision.memory.phase is Phase.ROLLING
    assert decision.memory.restarts == asked.memory.restarts, "it is nobody's budget"  # type: ignore[attr-defined]


def test_a_trial_costs_no_restart_of_the_day_and_waits_for_a_window() -> None:
    trial = situation(trial=True, own=True, memory=SPENT)
    decision = decide(trial)
    assert decision.memory.phase is Phase.CANARY
    assert decision.memory.restarts == SPENT.restarts
    waits = decide(replace(trial, rollout=CLOSED))
    assert (waits.canary, waits.memory.phase) == (None, Phase.BLOCKED)


def test_a_trial_s_canary_is_taken_back_by_what_breaks_and_not_by_what_is_slow() -> None:
    crashed = decide(watching(CanaryPod(crash="engine ended"), trial=True, own=True, proposal="rung"))
    assert (crashed.memory.failed[0].proposal, crashed.memory.failed[0].own) == ("rung", True)
    assert of_trial(BAD).good is None
    assert of_trial(GOOD).good is None
    for reason in (Reason.REQUESTS_FAILED, Reason.OUTPUT_CONTRACT, Reason.ENGINE_HUNG):
        assert of_trial(Judgement(False, reason, "x")).good is False
    patient = decide(watching(ready(10**6), trial=True, own=True, watched_seconds=0.0))
    assert patient.memory.phase is Phase.CANARY, "no deadline"
