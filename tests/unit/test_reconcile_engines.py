"""A pass over engines: the table, what holds k and why; and specs that stop it all."""

from __future__ import annotations

import pytest

from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.kube import UnavailableError
from tests.fakes import Object
from tests.world import SPEC, World

MANUAL: Object = {**SPEC, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]}}
NEW_KEY = "n" * 40


async def test_a_manual_table_is_pushed_to_every_pod_acknowledged_and_not_pushed_again(world: World) -> None:
    world.apply(MANUAL)
    world.pod("demo-a", ip="10.0.0.1")
    world.pod("demo-b", ip="10.0.0.2")
    await world.serving.run(full=True)
    assert world.engines.pushed == [("demo-a", 1), ("demo-b", 1)]
    assert world.status["acknowledgedPods"] == 2
    assert world.status["table"] == [{"fromRequests": 1, "k": 3}]
    assert world.status["policyGeneration"] == 1
    world.writes()
    for _ in range(5):
        world.clock.advance(10)
        await world.serving.run(full=False)
    assert len(world.engines.pushed) == 2
    assert world.writes() == [], "what is acknowledged is not told twice"


async def test_a_serving_comes_until_every_pod_that_is_asked_for_has_acknowledged_a_table(world: World) -> None:
    world.apply({**MANUAL, "replicas": 2})
    assert (await world.serving.run(full=True)).comes, "it has no pod"
    world.pod("demo-a", ip="10.0.0.1")
    assert (await world.serving.run(full=True)).comes
    world.pod("demo-b", ip="10.0.0.2")
    world.engines.refuse_pushes = True
    assert (await world.serving.run(full=True)).comes
    world.engines.refuse_pushes = False
    world.clock.advance(10)
    assert not (await world.serving.run(full=False)).comes
    world.clock.advance(10)
    assert not (await world.serving.run(full=False)).comes
    world.apply({**MANUAL, "replicas": 3})
    assert (await world.serving.run(full=True)).comes
    world.apply({**MANUAL, "replicas": 3, "suspend": True})
    assert not (await world.serving.run(full=True)).comes, "nobody waits for anything"


async def test_a_new_process_pushes_nothing_that_is_in_force(world: World) -> None:
    world.apply(MANUAL)
    world.pod("demo-a")
    await world.serving.run(full=True)
    world.engines.pushed.clear()
    world.restart()
    for _ in range(3):
        world.clock.advance(10)
        await world.serving.run(full=True)
    assert world.engines.pushed == []
    assert world.status["policyGeneration"] == 1
    assert world.status["acknowledgedPods"] == 1


async def test_an_edited_table_is_pushed_with_the_next_generation(world: World) -> None:
    world.apply(MANUAL)
    world.pod("demo-a")
    await world.serving.run(full=True)
    world.apply({**SPEC, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 1}]}})
    await world.serving.run(full=True)
    assert world.engines.pushed == [("demo-a", 1), ("demo-a", 2)]


async def test_a_refused_push_is_not_counted_and_is_tried_again(world: World) -> None:
    world.apply(MANUAL)
    world.pod("demo-a")
    world.engines.refuse_pushes = True
    await world.serving.run(full=True)
    assert world.status["acknowledgedPods"] == 0
    world.engines.refuse_pushes = False
    world.clock.advance(10)
    await world.serving.run(full=False)
    assert world.status["acknowledgedPods"] == 1


async def test_a_burst_of_wakes_asks_the_engines_once_an_interval(world: World) -> None:
    world.pod("demo-a")
    result = await world.serving.run(full=True)
    assert result.after == 10
    for _ in range(8):
        world.clock.advance(1)
        result = await world.serving.run(full=True)
    assert len(world.engines.asked) == 1
    assert result.after == pytest.approx(2)
    world.pod("demo-b", ip="10.0.0.2")
    await world.serving.run(full=True)
    assert len(world.engines.asked) == 3, "a pod that is new is asked at once"


async def test_cursors_are_handed_back(world: World) -> None:
    world.pod("demo-a")
    await world.serving.run(full=True)
    world.clock.advance(10)
    await world.serving.run(full=False)
    assert [cursor for _, _, cursor in world.engines.asked] == [None, "next"]


@pytest.mark.parametrize(
    "reason",
    [
        Reason.POD_NOT_ANSWERING,
        Reason.PLUGIN_ABSENT,
        Reason.ENGINE_SERIES_MISSING,
        Reason.TOKEN_REFUSED,
        Reason.MALFORMED_ANSWER,
    ],
)
async def test_each_absence_holds_k_with_its_own_reason(world: World, reason: Reason) -> None:
    world.apply(MANUAL)
    world.pod("demo-a")
    world.engines.failures["demo-a"] = reason
    await world.serving.run(full=True)
    assert world.condition("MetricsAvailable") == ("False", reason.value)
    assert world.condition("Tuned") == ("Unknown", "Holding")
    assert world.condition("SpeculationEffective")[0] == "Unknown"
    assert world.condition("Ready") == ("True", "ReplicasReady"), "Ready is Accepted and Available, nothing else"
    assert world.engines.pushed == []


async def test_a_pod_that_loads_its_model_is_warming_up(world: World) -> None:
    world.pod("demo-a", ready=False)
    world.engines.failures["demo-a"] = Reason.POD_NOT_ANSWERING
    await world.serving.run(full=True)
    assert world.condition("MetricsAvailable") == ("False", "EngineWarmingUp")
    assert "not ready yet" in world.message("MetricsAvailable")


async def test_a_pod_without_an_address_is_not_asked(world: World) -> None:
    world.pod("demo-a", phase="Pending", podIP="")
    await world.serving.run(full=True)
    assert world.engines.asked == []
    assert world.condition("MetricsAvailable") == ("False", "EngineWarmingUp")


async def test_suspended_nothing_is_written_but_status_and_nothing_pushed(world: World) -> None:
    world.apply(MANUAL)
    world.pod("demo-a")
    await world.serving.run(full=True)
    world.writes()
    world.engines.pushed.clear()
    world.apply({**MANUAL, "suspend": True, "replicas": 5})
    world.kube.drop("Service", "demo")
    world.engines.policies.clear()
    for _ in range(3):
        world.clock.advance(10)
        result = await world.serving.run(full=True)
    assert world.writes() == [("STATUS", naming.KIND_SERVING)]
    assert world.engines.pushed == []
    assert world.condition("Suspended") == ("True", "Suspended")
    assert world.condition("Tuned") == ("Unknown", "Suspended")
    assert world.condition("Ready")[0] == "False", "1 of 5 replicas"
    assert result.after is None
    world.apply(MANUAL)
    await world.serving.run(full=True)
    assert world.condition("Suspended") == ("False", "Active")
    assert ("APPLY", "Service") in world.writes()
    assert len(world.engines.pushed) == 1


@pytest.mark.parametrize(
    ("spec", "reason", "field"),
    [
        ({**SPEC, "engine": {"extraArgs": ["--port", "1"]}}, "OwnedArgument", "spec.engine.extraArgs"),
        ({**SPEC, "replicas": "many"}, "InvalidSpec", "spec.replicas"),
        ({**SPEC, "speculation": {"method": "magic"}}, "InvalidSpec", "spec.speculation.method"),
        ({"speculation": {"method": "ngram"}}, "InvalidSpec", "spec.model"),
        ({**SPEC, "tuning": {"ladder": [9, 0]}}, "InvalidSpec", "spec.tuning.ladder"),
        (None, "InvalidSpec", "spec"),
    ],
)
async def test_a_refused_spec_names_the_field_and_touches_nothing(
    world: World, spec: Object, reason: str, field: str
) -> None:
    world.pod("demo-a")
    await world.serving.run(full=True)
    world.writes()
    world.engines.asked.clear()
    world.apply(spec)
    world.kube.drop("Service", "demo")
    for _ in range(3):
        world.clock.advance(10)
        await world.serving.run(full=True)
    assert world.writes() == [("STATUS", naming.KIND_SERVING)]
    assert world.condition("Accepted") == ("False", reason)
    assert field in world.message("Accepted")
    assert world.condition("Ready") == ("False", reason)
    assert world.condition("Available") == ("True", "ReplicasReady"), "pods run on"
    assert world.condition("Tuned") == ("Unknown", "NotAccepted")
    assert len(world.events(reason)) == 1
    assert world.engines.asked == []
    assert world.status["observedGeneration"] == 2


async def test_a_status_that_cannot_be_read_is_written_anew(world: World) -> None:
    world.kube.find(naming.KIND_SERVING, "demo")["status"] = {"conditions": "none", "pods": 3}
    await world.serving.run(full=True)
    assert world.condition("Accepted") == ("True", "Valid")


async def test_transition_times_move_with_the_status_alone(world: World) -> None:
    world.pod("demo-a", ready=False)
    await world.serving.run(full=True)
    before = {c["type"]: c["lastTransitionTime"] for c in world.status["conditions"]}
    world.clock.advance(100)
    world.apply({**SPEC, "replicas": 2})
    world.pod("demo-a", ready=True)
    await world.serving.run(full=True)
    after = {c["type"]: c["lastTransitionTime"] for c in world.status["conditions"]}
    assert {"Available", "Ready"} == {kind for kind in before if before[kind] != after[kind]}
    assert {c["observedGeneration"] for c in world.status["conditions"]} == {2}


async def test_what_a_status_that_could_not_be_written_would_have_told_is_told_with_the_next(world: World) -> None:
    world.apply({**SPEC, "engine": {"extraArgs": ["--port", "1"]}})
    world.kube.refuse[("STATUS", naming.KIND_SERVING)] = UnavailableError(503, "Down", "etcd")
    with pytest.raises(UnavailableError):
        await world.serving.run(full=True)
    world.kube.refuse.clear()
    for _ in range(2):
        await world.serving.run(full=True)
    assert len(world.events("OwnedArgument")) == 1
