"""History in passes: our own readings, Prometheus' answers, and status that changes for what matters alone."""

from __future__ import annotations

import asyncio
import dataclasses
from datetime import datetime

import pytest

from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.history import Absence, Distribution, Load, Source, own
from paceline_operator.history.question import Question
from paceline_operator.recall import ASK_SECONDS
from paceline_operator.reconcile import ServingPass
from tests.fakes import Object
from tests.world import SPEC, World

SOURCED: Object = {**SPEC, "metrics": {"prometheus": {"url": "http://prometheus"}}}
BUSY = Distribution(hours=20.0, p50=3, p90=8, p99=20, largest=30, shares={3: 0.6, 8: 0.4})


class Asked:
    """A Prometheus that answers what it is told to, when it is told to."""

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.answer: Load | Absence = Load(Source.PROMETHEUS, BUSY, BUSY)
        self.ready = asyncio.Event()
        self.ready.set()
        self.error: Exception | None = None

    async def load(self, asked: Question, now: datetime) -> Load | Absence:
        self.questions.append(asked)
        await self.ready.wait()
        if self.error is not None:
            raise self.error
        return self.answer


@pytest.fixture
def prometheus(world: World) -> Asked:
    asked = Asked()
    world.hands = dataclasses.replace(world.hands, prometheus=asked)  # type: ignore[arg-type]
    world.serving = ServingPass(("team", "demo"), world.hands)
    return asked


async def passes(world: World, seconds: float, every: float = 5.0) -> None:
    for _ in range(int(seconds / every)):
        world.clock.advance(every)
        await world.serving.run(full=False)


async def test_without_prometheus_our_own_readings_serve_and_status_says_so(world: World) -> None:
    world.pod("demo-1", track="stable")
    await world.serving.run(full=True)
    await passes(world, 60)
    told = world.status["history"]
    assert (told["source"], told["reason"]) == ("OwnSamples", "HistoryEmpty")
    await passes(world, 700)
    told = world.status["history"]
    assert (told["source"], told.get("reason", ""), told["p90Requests"]) == ("OwnSamples", "", 0)
    assert told["shares"] == [{"fromRequests": 0, "permille": 1000}]
    world.writes()
    await passes(world, 600)
    assert world.writes() == []


async def test_prometheus_is_asked_beside_the_passes_and_rarely(world: World, prometheus: Asked) -> None:
    world.apply(SOURCED)
    world.pod("demo-1", track="stable")
    prometheus.ready.clear()
    await world.serving.run(full=True)
    await passes(world, 30)
    assert "history" not in world.status, "the answer is on its way, and passes go on"
    assert len(prometheus.questions) == 1
    prometheus.ready.set()
    await asyncio.sleep(0)
    await passes(world, 5)
    told = world.status["history"]
    assert (told["source"], told["p50Requests"], told["p99Requests"], told["hours"]) == ("Prometheus", 3, 20, 20)
    world.writes()
    await passes(world, ASK_SECONDS)
    assert len(prometheus.questions) == 2
    assert world.writes() == []


@pytest.mark.parametrize(
    "reason",
    [
        Reason.HISTORY_EMPTY, Reason.HISTORY_NAN, Reason.HISTORY_STALE, Reason.HISTORY_ERROR, Reason.HISTORY_TIMEOUT,
    ],
)  # fmt: skip
async def test_each_reason_for_none_is_told_once(world: World, prometheus: Asked, reason: Reason) -> None:
    prometheus.answer = Absence(reason, "why")
    world.apply(SOURCED)
    world.pod("demo-1", track="stable")
    await world.serving.run(full=True)
    await passes(world, 10)
    assert world.status["history"] == {
        "source": "Prometheus", "reason": reason.value, "message": "why", "shares": [],
    }  # fmt: skip
    world.writes()
    await passes(world, 2 * ASK_SECONDS)
    assert world.writes() == []


async def test_another_source_begins_anew(world: World, prometheus: Asked) -> None:
    world.apply(SOURCED)
    world.pod("demo-1", track="stable")
    await world.serving.run(full=True)
    await passes(world, 10)
    assert world.status["history"]["source"] == "Prometheus"
    world.apply(SPEC)
    await world.serving.run(full=True)
    assert world.status["history"]["source"] == "OwnSamples"
    assert len(prometheus.questions) == 1


async def test_a_source_restarts_no_pod(world: World, prometheus: Asked) -> None:
    await world.serving.run(full=True)
    world.writes()
    world.apply(SOURCED)
    await world.serving.run(full=True)
    assert {kind for verb, kind in world.writes() if verb == "APPLY"} <= {naming.KIND_SERVING}


async def test_a_question_that_fails_breaks_no_pass_and_is_asked_again(world: World, prometheus: Asked) -> None:
    prometheus.error = RuntimeError("secret")
    world.apply(SOURCED)
    world.pod("demo-1", track="stable")
    await world.serving.run(full=True)
    await passes(world, 10)
    told = world.status["history"]
    assert (told["reason"], "RuntimeError" in told["message"], "secret" in told["message"]) == (
        "HistoryError", True, False,
    )  # fmt: skip
    prometheus.error = None
    await passes(world, ASK_SECONDS + 10)
    assert world.status["history"]["p50Requests"] == 3


async def test_a_question_given_up_breaks_no_pass(world: World, prometheus: Asked) -> None:
    world.apply(SOURCED)
    world.pod("demo-1", track="stable")
    prometheus.ready.clear()
    await world.serving.run(full=True)
    (waiting,) = (task for task in asyncio.all_tasks() if "Asked.load" in repr(task.get_coro()))
    waiting.cancel()
    await asyncio.sleep(0)
    await passes(world, 5)
    assert world.status["history"]["reason"] == "HistoryError"


async def test_another_question_gives_the_first_up(world: World, prometheus: Asked) -> None:
    world.apply(SOURCED)
    world.pod("demo-1", track="stable")
    prometheus.ready.clear()
    await world.serving.run(full=True)
    await passes(world, 5)
    (waiting,) = (task for task in asyncio.all_tasks() if "Asked.load" in repr(task.get_coro()))
    world.apply(SPEC)
    await world.serving.run(full=True)
    await asyncio.sleep(0)
    assert waiting.cancelled()


async def test_whatever_history_fails_with_a_pass_goes_on_and_the_log_says_so_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(own, "load", fail)
    world.pod("demo-1", track="stable")
    await world.serving.run(full=True)
    await passes(world, 130)
    assert "history" not in world.status
    assert sum("History failed: object=team/demo" in line for line in caplog.messages) == 1
