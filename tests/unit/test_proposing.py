"""Proposals of a pass: what engines without a drafter give, what a restart takes, and what status keeps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import CostCell
from paceline_operator import proposing
from paceline_operator.api.status import ServingStatus
from paceline_operator.proposing import Plain
from paceline_operator.tuning.model import Engine, Interval, Restarts, Step
from tests.servings import serving
from tests.unit.simulated import GOOD, Loop, fixed, grid

NOW = datetime(2026, 1, 2, tzinfo=UTC)
DENSE = grid("h200_dense32b_eagle.csv")
SPEC = serving(replicas=2).spec
OFF = serving(speculation={"enabled": False}).spec


def pod(seconds: int | None, *, ready: bool = True, restarts: int = 0) -> dict[str, Any]:
    """One that was ready so long after its start."""
    turned = f"2026-01-01T00:{(seconds or 0) // 60:02}:{(seconds or 0) % 60:02}Z"
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": turned}
    return {
        "metadata": {"name": "a"},
        "status": {
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [condition] if seconds is not None else [],
            "containerStatuses": [{"restartCount": restarts}],
        },
    }


def step(**changes: Any) -> Step:
    return replace(Loop.of(DENSE, fixed(GOOD)).run(1, 8), **changes)


def look(
    one: Step, previous: ServingStatus | None = None, spec: Any = SPEC, asked: Any = SPEC, **given_plain: Any
) -> Any:
    return proposing.look(
        spec, asked, one, (), [pod(100), pod(140)], previous or ServingStatus(), given_plain.get("plain", {}), None, NOW
    )


def test_a_proposal_is_told_once_with_its_first_numbers_and_goes_with_its_cause() -> None:
    found, fields = look(step(restarts=Restarts(without_drafter=Interval(0.9, 0.88, 0.92))))
    assert [one.changes for one in found] == [{"speculation.enabled": False}]
    (told,) = fields["proposals"]
    assert (told.reason, told.restart_seconds, told.gain_permille) == ("NoDrafter", 120, 111)
    assert told.gain_low_permille < told.gain_permille < told.gain_high_permille
    assert [(one.path, one.value) for one in told.changes] == [("speculation.enabled", "false")]
    before = ServingStatus(**fields)
    _, later = look(step(restarts=Restarts(without_drafter=Interval(0.8, 0.78, 0.82))), before)
    assert later["proposals"] == fields["proposals"]
    assert later["boots"] == fields["boots"]
    _, gone = look(step(), before)
    assert gone["proposals"] == []
    found, held = look(step(holding=True), before)
    assert found == ()
    assert "proposals" not in held, "while nothing answers, what was said stays"


def test_without_a_pod_that_started_nothing_is_proposed() -> None:
    fields = proposing.look(
        SPEC, SPEC, step(restarts=Restarts(off_for_long=True)), (), [], ServingStatus(), {}, None, NOW
    )
    assert fields[1]["proposals"] == []


def test_a_user_who_wants_no_drafter_is_told_and_left_alone() -> None:
    on, _ = look(step(), spec=SPEC)
    assert on == ()
    status = ServingStatus(boots=look(step(), spec=SPEC)[1]["boots"])
    assert look(step(), status, spec=OFF, asked=OFF)[1]["boots"][0].fields != status.boots[0].fields


@pytest.mark.parametrize(
    ("pods", "seconds"),
    [
        ([], None),
        ([pod(100)], 100),
        ([pod(100), pod(200), pod(120)], 120),
        ([pod(100, ready=False)], None),
        ([pod(100, restarts=1)], None),
        ([pod(None)], None),
        ([{"metadata": {"name": "a"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}], None),
        ([pod(0)], None),
    ],
)
def test_what_a_restart_takes_is_what_starts_took(pods: list[dict[str, Any]], seconds: float | None) -> None:
    assert proposing.restart_seconds(pods) == seconds


def engine(steps: int, requests: int, seconds: float, *, max_k: int = 0, prompt: int = 0) -> Engine:
    """A window at one load, each step as long as the other."""
    loop = Loop.of(DENSE, fixed(GOOD))
    (simulated,) = loop.engines.values()
    answer = simulated.answer(1.0)
    assert answer.state is not None
    assert answer.samples is not None
    cell = CostCell(
        load=requests, context=0, k_drafted=0, k_verified=0, probe=False, steps=steps, prompt=prompt,
        request_steps=steps * requests, emitted=steps * requests, seconds=steps * seconds,
        seconds_squared=steps * seconds**2, histogram={},
    )  # fmt: skip
    able = answer.state.capabilities.model_copy(update={"max_k": max_k})
    return replace(
        answer,
        state=answer.state.model_copy(update={"capabilities": able}),
        samples=answer.samples.model_copy(update={"cells": (cell,)}),
    )


def test_engines_without_a_drafter_tell_what_a_load_gives_there() -> None:
    plain = proposing.gathered({}, [engine(500, 8, 0.02)])
    found = proposing.load_of(8, plain[8])
    assert found is not None
    assert (found.k, found.goodput_milli_tokens_per_second) == (0, 400_000)
    assert proposing.load_of(8, proposing.gathered({}, [engine(50, 8, 0.02)])[8]) is None, "too few"
    assert proposing.gathered({}, [engine(500, 8, 0.02, max_k=5), engine(500, 8, 0.02, prompt=1)]) == {}
    faster: Any = plain
    for _ in range(30):
        faster = proposing.gathered(faster, [engine(2000, 8, 0.01)])
    now = proposing.load_of(8, faster[8])
    assert now is not None
    assert now.goodput_milli_tokens_per_second == pytest.approx(800_000, rel=0.01)


@given(
    st.lists(st.tuples(st.integers(0, 10**20), st.integers(1, 10**6), st.floats(0, 1e300)), max_size=5),
)
def test_no_number_of_an_engine_stops_a_pass(windows: list[tuple[int, int, float]]) -> None:
    plain: Any = {}
    for steps, requests, seconds in windows:
        answer = engine(1, requests, 1.0)
        assert answer.samples is not None
        cell = answer.samples.cells[0].model_copy(
            update={"steps": steps, "seconds": seconds, "seconds_squared": seconds}
        )
        samples = answer.samples.model_copy(update={"cells": (cell,)})
        plain = proposing.gathered(plain, [replace(answer, samples=samples)])
    for load, sums in plain.items():
        assert isinstance(sums, Plain)
        found = proposing.load_of(load, sums)
        if found is not None:
            assert found.low_milli_tokens_per_second <= found.goodput_milli_tokens_per_second <= 2**53
