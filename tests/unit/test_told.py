"""What status tells beside the table: how drafts are verified, what exploration costs, proposals; and when."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.protocol import Verification, VerificationFeature, VerificationState
from paceline_operator import metrics, told
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status import ServingStatus, TableRow, VerificationMode
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Engine, Exploration, Interval, Restarts, Step, VerificationView
from paceline_operator.tuning.state import TunerState
from tests.unit.simulated import GOOD, Loop, fixed, grid
from tests.world import SPEC, World

DENSE = grid("h200_dense32b_eagle.csv")
VIEW = VerificationView(64, Verification.ADAPTIVE, 5, None, Interval(1.0, 0.9, 1.1), 9, Interval(1.123, 1.08, 1.17))


def engine(name: str = "a", mode: Verification | None = None, **state: Any) -> Engine:
    """An answer of an engine that booted with AV in `mode`, or without it."""
    loop = Loop.of(DENSE, fixed(GOOD))
    (simulated,) = loop.engines.values()
    answer = simulated.answer(1.0)
    assert answer.state is not None
    feature = VerificationFeature(supported=mode is not None, present=mode is not None, reason="" if mode else "no AV")
    capabilities = answer.state.capabilities.model_copy(update={"adaptive_verification": feature})
    there = VerificationState(mode=mode, **state) if mode else None
    seen = answer.state.model_copy(update={"capabilities": capabilities, "adaptive_verification": there})
    return replace(answer, name=name, state=seen)


def passed(**changes: Any) -> Step:
    """A pass in which measured numbers are due."""
    step = Loop.of(DENSE, fixed(GOOD)).run(1, 8)
    state = step.memory.state
    assert isinstance(state, TunerState)
    assert state.published is not None
    assert state.published.at == state.now
    return replace(step, **changes)


def between(step: Step) -> Step:
    """The same in a pass in which they are not."""
    state = step.memory.state
    assert isinstance(state, TunerState)
    return replace(step, memory=replace(step.memory, state=replace(state, now=state.now + 10)))


def status(step: Step, engines: list[Engine], previous: ServingStatus | None = None) -> ServingStatus:
    before = previous or ServingStatus()
    fields, _ = told.status(step, engines, before, "2026-01-01T00:00:00Z")
    return ServingStatus.model_validate(before.model_copy(update=fields).model_dump())


@pytest.mark.parametrize(
    ("engines", "mode"),
    [
        ([engine()], VerificationMode.ABSENT_AT_BOOT),
        ([engine(mode=Verification.ALL)], VerificationMode.ALL),
        ([engine(mode=Verification.ADAPTIVE)], VerificationMode.ADAPTIVE),
        ([engine(mode=Verification.CAPPED, cap=96)], VerificationMode.CAPPED),
        ([engine("a"), engine("b", mode=Verification.ALL)], VerificationMode.MIXED),
    ],
)
def test_each_kind_of_off_and_on_is_told_apart(engines: list[Engine], mode: VerificationMode) -> None:
    found = status(passed(), engines).verification
    assert found is not None
    assert found.mode == mode
    assert found.cap_tokens == (96 if mode is VerificationMode.CAPPED else None)
    assert ("no AV" in found.message) == (engines[0].state is not None and not engines[0].state.adaptive_verification)


def test_what_went_wrong_with_it_is_told_by_serving_and_pod() -> None:
    bad = engine(mode=Verification.ADAPTIVE, starved=True, error="rank 1: no such method")
    step = passed(tiers={"a": passed().tiers["pod-0"]})
    found = status(step, [bad])
    assert found.verification is not None
    assert found.verification.starved
    assert "rank 1: no such method" in found.verification.message
    assert [pod.verification for pod in found.pods] == [VerificationMode.ADAPTIVE]


def test_engines_that_do_not_answer_change_nothing() -> None:
    known = status(passed(verifications=(VIEW,)), [engine(mode=Verification.ALL)])
    silent = status(replace(between(passed()), holding=True), [Engine("a", failure=Reason.POD_NOT_ANSWERING)], known)
    assert silent.verification == known.verification
    assert silent.exploration == known.exploration


def test_measured_numbers_are_told_when_due_and_when_they_moved() -> None:
    step = passed(verifications=(VIEW,), exploration=Exploration(0.031, 0.029, 12.4, ((64, 7),)))
    first = status(step, [engine(mode=Verification.ALL)])
    assert first.verification is not None
    assert first.exploration is not None
    (row,) = first.verification.measured
    assert (row.from_requests, row.mode, row.gain_permille, row.low_permille) == (64, "Adaptive", 1123, 1080)
    assert (first.exploration.step_share_permille, first.exploration.tokens_lost) == (31, 12)
    assert [(cell.from_requests, cell.k) for cell in first.exploration.quarantined] == [(64, 7)]
    little = replace(VIEW, gain=Interval(1.13, 1.09, 1.18))
    much = replace(VIEW, gain=Interval(1.3, 1.2, 1.4))
    engines = [engine(mode=Verification.ALL)]
    assert status(replace(step, verifications=(little,)), engines, first) == first
    assert status(between(replace(step, verifications=(much,))), engines, first) == first
    assert status(replace(step, verifications=(much,)), engines, first) != first


def test_the_ratio_to_no_drafter_is_its_own_number() -> None:
    step = passed()
    state = step.memory.state
    assert isinstance(state, TunerState)
    assert state.published is not None
    published = replace(state.published, ratio_to_no_drafter=Interval(0.953, 0.94, 0.97))
    known = replace(step, memory=replace(step.memory, state=replace(state, published=published)))
    assert status(step, [engine()]).ratio_to_no_drafter_permille is None
    assert status(known, [engine()]).ratio_to_no_drafter_permille == 953


async def test_passes_tell_it_and_count_the_parts_of_a_decision_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    world.apply({**SPEC, "slo": {"ttftP95Milliseconds": 100}})
    conditions = [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:02:00Z"}]
    world.pod("demo-a", conditions=conditions, startTime="2026-01-01T00:00:00Z")
    real = decide.step

    def failing(*arguments: Any, **named: Any) -> Step:
        error = "verify: ZeroDivisionError: by zero"
        return replace(real(*arguments, **named), errors=(error,), restarts=Restarts(ttft_lowered=2))

    monkeypatch.setattr(decide, "step", failing)
    counted = metrics.TUNER_ERRORS.labels("verify")._value.get()
    await world.serving.run(full=True)
    assert metrics.TUNER_ERRORS.labels("verify")._value.get() == counted + 1
    assert world.status["verification"]["mode"] == "AbsentAtBoot"
    assert world.status["pods"][0]["verification"] == "AbsentAtBoot"
    (proposal,) = world.status["proposals"]
    assert (proposal["reason"], proposal["restartSeconds"]) == ("TtftLimit", 120)
    assert proposal["changes"] == [{"path": "replicas", "value": "2"}]
    assert world.events("TtftLimit") == [f"Proposal: {proposal['message']}"]
    assert world.engines.read_metrics == ["http://10.0.0.1:8000"]


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), 1e300])
def test_no_number_keeps_status_from_being_stored(value: float) -> None:
    view = replace(VIEW, gain=Interval(value, value, value))
    found = status(passed(verifications=(view,), exploration=Exploration(0.0, 0.0, value)), [engine()])
    assert found.exploration is not None
    assert abs(found.exploration.tokens_lost) <= 2**53


def test_a_change_that_nobody_lived_to_tell_is_told_by_who_finds_it() -> None:
    step = passed(decisions=(), generations={"a": 7}, table=(5, 5, 5, 5, 0, 0))
    rows = [TableRow(from_requests=1, k=5)]
    before = ServingStatus(policy_generation=6, table=rows, load_requests=4)
    (found,) = told.untold(step, before)
    assert (found.load, found.from_k, found.to_k, found.generation, found.reason) == (4, 5, 0, 7, Reason.INCUMBENT)
    assert "generation 7" in found.message
    for unlike in (
        {"policy_generation": 7},
        {"table": []},
        {"table": [*rows, TableRow(from_requests=4, k=0)]},
        {"load_requests": 99},
    ):
        assert told.untold(step, before.model_copy(update=unlike)) == ()
    assert told.untold(replace(step, decisions=(found,)), before) == (), "it was told"
    assert told.untold(replace(step, generations={}), before) == (), "no engine answers"


def test_a_change_that_the_first_look_makes_is_told() -> None:
    step = passed(decisions=(), generations={"a": 0}, k_by_engine={"a": 5, "b": 5}, push_to=("a", "b"), generation=3)
    step = replace(step, reason=Reason.LOAD, message="why", load=4, k=0)
    (found,) = told.untold(step, ServingStatus())
    assert (found.reason, found.message, found.from_k, found.to_k, found.generation) == (Reason.LOAD, "why", 5, 0, 3)
    for other in ({"k": 5}, {"push_to": ()}, {"reason": Reason.OBSERVING}, {"k_by_engine": {"a": 5, "b": 0}}):
        assert told.untold(replace(step, **other), ServingStatus()) == ()
