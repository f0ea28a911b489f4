"""Engines that stop answering or come back as another process: what is told of them, and that they are told anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.conditions import Reason
from paceline_operator.sightings import Sighting, look
from paceline_operator.tuning.model import Engine
from tests.fakes import FakeEngines, Object
from tests.world import SPEC, World

MANUAL: Object = {**SPEC, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]}}
KILLED: Object = {
    "name": "engine",
    "restartCount": 1,
    "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137, "finishedAt": "2026-01-01T00:00:00Z"}},
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path)
    made.apply(MANUAL)
    return made


async def passes(world: World, count: int = 1) -> None:
    """The first as a change of a pod would wake it."""
    for number in range(count):
        world.clock.advance(10)
        await world.serving.run(full=not number)


async def test_an_engine_that_stops_answering_leaves_its_last_answer_in_condition_status_and_one_event(
    world: World,
) -> None:
    world.pod("demo-a")
    await passes(world, 2)
    last = world.kube.find("Pod", "demo-a")["status"]
    last["containerStatuses"] = [KILLED]
    world.engines.failures["demo-a"] = Reason.POD_NOT_ANSWERING
    await passes(world, 3)
    (event,) = world.events("EngineLost")
    for told in (event, world.message("MetricsAvailable"), world.status["pods"][0]["message"]):
        assert "generation 1, k none yet, 0 running and 0 waiting requests" in told
        assert "last answer at" in told
    assert "engine ended at 2026-01-01T00:00:00Z: OOMKilled, exit code 137 (1 restarts)" in event
    assert world.condition("MetricsAvailable") == ("False", "PodNotAnswering")
    world.writes()
    await passes(world, 3)
    assert world.writes() == [], "the last answer does not change while there is no other"


async def test_an_engine_that_comes_back_as_another_process_is_told_and_pushed_anew(world: World) -> None:
    world.pod("demo-a", ip="10.0.0.1")
    world.pod("demo-b", ip="10.0.0.2")
    await passes(world, 2)
    assert world.engines.pushed == [("demo-a", 1), ("demo-b", 1)]
    world.engines.restart_engine("demo-a")
    await passes(world, 3)
    assert world.engines.pushed[2:] == [("demo-a", 1)], "the table in force, to the one that lost it"
    (event,) = world.events("EngineRestarted")
    assert event.startswith("demo-a runs as another process")
    assert "the one before: last answer at" in event
    assert world.status["acknowledgedPods"] == 2


async def test_a_pod_that_is_gone_and_one_that_never_answered_are_no_losses(world: World) -> None:
    world.pod("demo-a")
    world.pod("demo-b", ip="10.0.0.2")
    world.engines.failures["demo-b"] = Reason.ENGINE_WARMING_UP
    await passes(world, 2)
    world.kube.drop("Pod", "demo-a")
    await passes(world, 2)
    assert world.events("EngineLost") == world.events("EngineRestarted") == []


MOMENTS = st.lists(st.sampled_from(["answers", "fails", "restarts", "gone"]), max_size=12)


@given(MOMENTS)
async def test_losses_and_restarts_are_told_once_each_in_any_order_of_events(moments: list[str]) -> None:
    engines, seen = FakeEngines(), dict[str, Sighting]()
    expected, answering, known = 0, False, False
    told = 0
    for number, moment in enumerate(moments):
        if moment == "restarts":
            engines.restart_engine("a")
        engines.failures = {"a": Reason.POD_NOT_ANSWERING} if moment == "fails" else {}
        now: list[Engine] = []
        if moment != "gone":
            now = [await engines.observe_engine("a", "url", "url", "token", None)]
        expected += (moment == "fails" and answering) + (moment == "restarts" and known)
        answering, known = moment in ("answers", "restarts"), moment != "gone" and (known or moment != "fails")
        after, seen, news = look(seen, now, {}, f"moment {number}")
        told += len(news)
        assert len(after) == len(now)
        assert set(seen) <= {engine.name for engine in now}
    assert told == expected
