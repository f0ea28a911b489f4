"""The token Secret in passes: made anew where refused or missed, rotated, forgotten."""

from __future__ import annotations

import pytest

from paceline_engine.protocol import derive_token
from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.keys import key_version
from paceline_operator.clients.kube import UnavailableError
from tests.fakes import Object
from tests.world import KEY, SPEC, World

MANUAL: Object = {**SPEC, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]}}
NEW_KEY = "n" * 40


def _uid(world: World) -> str:
    return str(world.kube.find(naming.KIND_SERVING, "demo")["metadata"]["uid"])


def _token(world: World, key: str) -> str:
    return derive_token(key.encode(), _uid(world), key_version(key.encode()))


async def test_a_refused_token_makes_the_secret_anew_once_for_each_pod(world: World) -> None:
    world.pod("demo-a", ip="10.0.0.1")
    await world.serving.run(full=True)
    world.writes()
    world.engines.failures["demo-a"] = Reason.TOKEN_REFUSED
    for _ in range(5):
        world.clock.advance(10)
        await world.serving.run(full=False)
    assert [w for w in world.writes() if w[1] == "Secret"] == [("DELETE", "Secret"), ("APPLY", "Secret")]
    assert len(world.events("TokenRefused")) == 1
    assert "demo-a" in world.events("TokenRefused")[0]
    world.pod("demo-b", ip="10.0.0.2")
    world.engines.failures["demo-b"] = Reason.TOKEN_REFUSED
    world.clock.advance(10)
    await world.serving.run(full=False)
    assert ("DELETE", "Secret") in world.writes()


async def test_a_refusal_that_ended_and_comes_again_is_answered_again(world: World) -> None:
    world.pod("demo-a")
    for failure in (Reason.TOKEN_REFUSED, None, Reason.TOKEN_REFUSED):
        world.engines.failures = {"demo-a": failure} if failure else {}
        world.clock.advance(10)
        await world.serving.run(full=False)
    assert world.writes().count(("DELETE", "Secret")) == 2


async def test_a_secret_that_could_not_be_made_anew_is_tried_again(world: World) -> None:
    world.pod("demo-a")
    await world.serving.run(full=True)
    world.engines.failures["demo-a"] = Reason.TOKEN_REFUSED
    world.kube.refuse[("DELETE", "Secret")] = UnavailableError(503, "Down", "etcd")
    world.clock.advance(10)
    with pytest.raises(UnavailableError):
        await world.serving.run(full=False)
    world.kube.refuse.clear()
    world.writes()
    world.clock.advance(10)
    await world.serving.run(full=False)
    assert ("DELETE", "Secret") in world.writes()


async def test_a_secret_that_a_pod_misses_is_written_once_for_each_report(world: World) -> None:
    waiting = [{"name": "engine", "state": {"waiting": {"reason": "ContainerCreating"}}}]
    pod = world.pod("demo-a", phase="Pending", podIP="", containerStatuses=waiting)
    await world.serving.run(full=True)
    world.writes()
    name = pod["spec"]["volumes"][0]["secret"]["secretName"]

    def report(n: int, message: str) -> None:
        world.kube.put(
            {
                "kind": "Event",
                "metadata": {"name": f"report-{n}", "namespace": "team"},
                "involvedObject": {"uid": pod["metadata"]["uid"]},
                "reason": "FailedMount",
                "message": message,
            }
        )

    report(0, 'configmap "other" not found')
    await world.serving.run(full=True)
    assert world.writes() == []
    for n in (1, 2):
        report(n, f'MountVolume.SetUp failed for volume "paceline-token" : secret "{name}" not found')
        await world.serving.run(full=True)
        await world.serving.run(full=True)
        assert world.writes() == [("APPLY", "Secret")]
    told = [text for text in world.events("ChildCreated") if "again" in text]
    assert told == [f"Created Secret {name} again: it was gone, and 1 pod could not mount it"]


async def test_a_rotated_key_writes_another_secret_and_still_reaches_old_pods(world: World) -> None:
    world.pod("demo-a", ip="10.0.0.1", key=KEY)
    await world.serving.run(full=True)
    world.keys.write_text(f"{NEW_KEY}\n{KEY}\n")
    world.pod("demo-b", ip="10.0.0.2", key=NEW_KEY)
    world.writes()
    world.engines.asked.clear()
    world.clock.advance(10)
    await world.serving.run(full=True)
    assert ("APPLY", "Secret") in world.writes()
    names = [name for kind, _, name in world.kube.objects if kind == "Secret"]
    assert names == [f"demo-token-{key_version(key.encode())}" for key in (KEY, NEW_KEY)]
    tokens = {pod: token for pod, token, _ in world.engines.asked}
    assert tokens == {"demo-a": _token(world, KEY), "demo-b": _token(world, NEW_KEY)}


async def test_the_secret_of_the_key_before_goes_once_no_pod_mounts_it(world: World) -> None:
    world.pod("demo-a", ip="10.0.0.1", key=KEY)
    await world.serving.run(full=True)
    world.keys.write_text(f"{NEW_KEY}\n{KEY}\n")
    await world.serving.run(full=True)
    world.writes()

    async def deleted() -> bool:
        world.clock.advance(10)
        await world.serving.run(full=False)
        return ("DELETE", "Secret") in world.writes()

    assert not await deleted(), "the old pod runs"
    world.kube.drop("Pod", "demo-a")
    assert not await deleted(), "no pod at all says nothing"
    world.pod("demo-b", ip="10.0.0.2", key=NEW_KEY)
    world.pod("demo-c", phase="Pending", podIP="", key=KEY)
    assert not await deleted(), "one is still to come"
    world.kube.drop("Pod", "demo-c")
    assert await deleted()
    assert [name for kind, _, name in world.kube.objects if kind == "Secret"] == [
        f"demo-token-{key_version(NEW_KEY.encode())}"
    ]
    assert not await deleted(), "once"


async def test_a_pod_with_the_secret_of_a_forgotten_key_is_not_helped_by_another_secret(world: World) -> None:
    world.pod("demo-a", key="f" * 40)
    world.engines.failures["demo-a"] = Reason.TOKEN_REFUSED
    for _ in range(3):
        world.clock.advance(10)
        await world.serving.run(full=False)
    assert ("DELETE", "Secret") not in world.writes()
    assert world.condition("MetricsAvailable") == ("False", "TokenRefused")


async def test_a_key_file_that_is_being_rewritten_changes_nothing(world: World) -> None:
    await world.serving.run(full=True)
    world.writes()
    for content in ("", "short"):
        world.keys.write_text(content)
        await world.serving.run(full=True)
    world.keys.unlink()
    await world.serving.run(full=True)
    assert world.writes() == []


async def test_without_a_plugin_the_secret_goes_with_the_last_pod_that_mounts_it(world: World) -> None:
    await world.serving.run(full=True)
    world.pod("demo-a")
    world.apply({**SPEC, "engine": {"plugin": {"injection": "None"}}, "rollout": {"canary": {"mode": "Disabled"}}})
    world.writes()
    await world.serving.run(full=True)
    assert [w for w in world.writes() if w[1] == "Secret"] == []
    world.kube.drop("Pod", "demo-a")
    for _ in range(2):
        await world.serving.run(full=True)
    assert [w for w in world.writes() if w[1] == "Secret"] == [("DELETE", "Secret")]
    world.apply(SPEC)
    await world.serving.run(full=True)
    assert ("APPLY", "Secret") in world.writes()
