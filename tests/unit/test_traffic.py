"""The routing part of a pass, and what several nodes change in the others."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_operator import naming, rolling, traffic
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.plan import Observation, key_of, not_served
from paceline_operator.resources import hashing, revision, workload
from tests.fakes import Object
from tests.first_pass import NOTHING, NOW, roll
from tests.servings import DEFAULTS, TOKENS, serving
from tests.world import SPEC, World

PLAIN = {"plain": {"replicas": 2, "weightPercent": 20}}
GATEWAY = {"gateway": {"parentRefs": [{"name": "gate"}]}}
GROUP: dict[str, Any] = {"tensorParallelSize": 4, "multiNode": {"nodes": 2}}


def by_key(manifests: list[Object]) -> dict[tuple[str, str], Object]:
    return {key_of(manifest): manifest for manifest in manifests}


def built(given: SpeculativeServing, look: Observation = NOTHING, in_force: SpeculativeServing | None = None) -> Any:
    return by_key(traffic.manifests(given, in_force or given, look, DEFAULTS, TOKENS))


def seen(manifests: dict[tuple[str, str], Object], **more: Any) -> Observation:
    return Observation(pods=(), children=manifests, missing_secrets={}, **more)


def template_of(manifests: dict[tuple[str, str], Object]) -> Object:
    found: Object = manifests["Deployment", "demo-plain"]["spec"]["template"]
    return found


def test_nothing_is_asked_for_by_default() -> None:
    assert built(serving()) == {}


def test_plain_pods_come_with_a_service_a_budget_and_their_template() -> None:
    found = built(serving(routing=PLAIN))
    kinds = [kind for kind, _ in found]
    assert kinds == ["Service", "PodDisruptionBudget", "ControllerRevision", "Deployment"]
    assert all(name.startswith("demo-plain") for _, name in found)
    assert found["Deployment", "demo-plain"]["spec"]["replicas"] == 2
    (container, *_) = template_of(found)["spec"]["containers"]
    assert "--speculative-config" not in container["args"]
    assert "/etc/paceline/token" in str(container), "the plugin measures there too"


def test_the_stored_template_is_applied_again_whatever_is_rendered_now(monkeypatch: pytest.MonkeyPatch) -> None:
    given = serving(routing=PLAIN)
    first = built(given)
    monkeypatch.setattr(hashing, "TEMPLATE_VERSION", 99)
    monkeypatch.setattr(traffic.pod, "build", lambda *_, **__: pytest.fail("rendered anew"))
    again = built(given, seen(first))
    assert again == first


@pytest.mark.parametrize(
    ("change", "restarts"),
    [
        ({"speculation": {"method": "ngram", "draft": None, "maxTokens": 3}}, False),
        ({"tuning": {"ladder": [3, 1, 0]}}, False),
        ({"replicas": 7}, False),
        ({"routing": {"plain": {"replicas": 5, "weightPercent": 90}}}, False),
        ({"engine": {"maxModelLen": 4096}}, True),
        ({"model": {"source": "hf://owner/other"}}, True),
    ],
)
def test_only_what_a_plain_pod_has_restarts_it(change: dict[str, Any], restarts: bool) -> None:
    first = built(serving(routing=PLAIN))
    second = built(serving(**{"routing": PLAIN, **change}), seen(first))
    assert (template_of(second) != template_of(first)) is restarts


def test_a_change_reaches_plain_pods_when_it_is_in_force_for_the_others() -> None:
    before, after = serving(routing=PLAIN), serving(routing=PLAIN, engine={"maxModelLen": 4096})
    first = built(before)
    waiting = built(after, seen(first), in_force=before)
    assert template_of(waiting) == template_of(first)
    assert template_of(built(after, seen(first), in_force=after)) != template_of(first)


def test_a_template_of_an_earlier_object_of_the_name_is_not_taken_over() -> None:
    first = built(serving(routing=PLAIN))
    for manifest in first.values():
        manifest["metadata"]["ownerReferences"][0]["uid"] = "earlier"
    (kept,) = (manifest for (kind, _), manifest in first.items() if kind == "ControllerRevision")
    kept["data"]["template"]["spec"]["containers"][0]["image"] = "earlier:1"
    assert "earlier:1" not in str(built(serving(routing=PLAIN), seen(first)))


def test_no_plain_pod_is_made_before_the_others_may_be() -> None:
    given = serving(routing=PLAIN)
    held = by_key(traffic.manifests(given, given, NOTHING, DEFAULTS, TOKENS, held=True))
    assert built(given).keys() - held.keys() == {("Deployment", "demo-plain")}


def test_stable_and_plain_templates_are_kept_apart() -> None:
    given = serving(routing=PLAIN)
    rolled = roll(given, NOTHING)
    everything = {**built(given), **by_key(list(rolled.manifests))}
    (stable,) = rolling.revisions(everything, "demo", "5d0c")
    (plain,) = rolling.revisions(everything, "demo-plain", "5d0c")
    assert stable.template != plain.template
    assert roll(given, seen(everything)).decision.stable.revision == stable.name


def test_an_engine_over_several_nodes_is_a_set_and_is_looked_at_until_it_has_settled() -> None:
    given = serving(engine=GROUP)
    manifests = by_key(list(roll(given, NOTHING).manifests))
    group = manifests["LeaderWorkerSet", "demo-group"]
    assert ("Deployment", "demo") not in manifests
    group["metadata"] |= {"generation": 2}
    unsettled = roll(given, seen(manifests))
    assert unsettled.decision.after == rolling.UNWATCHED_SECONDS
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 1)
    group["status"] = {**counts, "observedGeneration": 1}
    assert roll(given, seen(manifests)).decision.after == rolling.UNWATCHED_SECONDS, "of the generation before"
    group["status"]["observedGeneration"] = 2
    assert roll(given, seen(manifests)).decision.after is None


def test_pods_stay_as_they_are_while_the_kind_that_is_asked_for_is_absent() -> None:
    before = by_key(list(roll(serving(engine={"tensorParallelSize": 4}), NOTHING).manifests))
    absent = {"LeaderWorkerSet": not_served("LeaderWorkerSet")}
    rolled = roll(serving(engine=GROUP), seen(before, absent=absent))
    found = by_key(list(rolled.manifests))
    assert found["Deployment", "demo"] == before["Deployment", "demo"]
    assert ("LeaderWorkerSet", "demo-group") in found, "withheld by the plan, which tells why"
    assert rolled.decision.canary is None
    assert workload.keys("demo", naming.TRACK_STABLE) == (("Deployment", "demo"), ("LeaderWorkerSet", "demo-group"))


def test_a_canary_of_several_nodes_is_a_group_of_its_own() -> None:
    before = by_key(list(roll(serving(engine=GROUP, replicas=2)).manifests))
    group = before["LeaderWorkerSet", "demo-group"]
    group["status"] = {**dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 2), "observedGeneration": 1}
    labels = naming.labels("demo") | naming.track_labels(naming.TRACK_STABLE)
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    leaders = tuple({"metadata": {"name": f"demo-group-{n}", "labels": labels}, "status": ready} for n in range(2))
    look = Observation(pods=leaders, children=before, missing_secrets={})
    found = by_key(list(roll(serving(engine={**GROUP, "maxModelLen": 4096}, replicas=2), look).manifests))
    canary = found["LeaderWorkerSet", "demo-group-canary"]["spec"]
    assert canary["replicas"] == 1
    assert "4096" in canary["leaderWorkerTemplate"]["leaderTemplate"]["spec"]["containers"][0]["args"]
    assert found["LeaderWorkerSet", "demo-group"]["spec"] == group["spec"]


def test_a_worker_without_a_node_keeps_a_canary_back() -> None:
    labels = {naming.LABEL_TRACK: naming.TRACK_CANARY}
    unplaced = {
        "type": "PodScheduled",
        "status": "False",
        "reason": Reason.UNSCHEDULABLE.value,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    leader = {"metadata": {"name": "l", "labels": labels}, "status": {"conditions": []}}
    worker = {"metadata": {"name": "w", "labels": labels}, "status": {"conditions": [unplaced]}}
    found = rolling._canary_pod([leader], [worker])
    assert found is not None
    assert found.unschedulable_since == NOW
    assert found.ready_since is None


async def test_plain_pods_are_measured_and_never_get_a_table(world: World) -> None:
    world.apply({**SPEC, "routing": PLAIN, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]}})
    world.pod("engine", track=naming.TRACK_STABLE)
    world.pod("plain", ip="10.0.0.2", track=naming.TRACK_PLAIN)
    world.engines.without_drafter = {"plain"}
    await world.serving.run(full=True)
    assert {pod for pod, *_ in world.engines.asked} == {"engine", "plain"}
    assert {pod for pod, _ in world.engines.pushed} == {"engine"}
    assert world.status["replicas"] == world.status["readyReplicas"] == 1
    assert {row["name"]: row["tier"] for row in world.status["pods"]} == {"engine": "Live", "plain": "Off"}
    assert world.status["tier"] == "Live"
    assert world.condition("SpeculationEffective") == ("Unknown", "NoDraftsYet"), "of the engine that has a drafter"


async def test_the_workers_of_an_engine_are_neither_replicas_nor_asked(world: World) -> None:
    world.apply({**SPEC, "engine": GROUP})
    world.pod("demo-group-0", track=naming.TRACK_STABLE)
    worker = world.pod("demo-group-0-1", ip="10.0.0.2", track=naming.TRACK_STABLE)
    worker["metadata"]["labels"][naming.LABEL_COMPONENT] = naming.COMPONENT_WORKER
    await world.serving.run(full=True)
    assert {pod for pod, *_ in world.engines.asked} == {"demo-group-0"}
    assert world.status["replicas"] == 1
    assert world.condition("IntegrationsAvailable") == ("False", "KindNotServed")
    assert world.condition("Accepted") == ("True", "Valid")


async def test_the_route_follows_the_pods_that_answer(world: World) -> None:
    world.kube.served.add("HTTPRoute")
    world.apply({**SPEC, "routing": {**PLAIN, **GATEWAY}})

    async def weights() -> list[int]:
        await world.serving.run(full=True)
        return [ref["weight"] for ref in world.kube.find("HTTPRoute", "demo")["spec"]["rules"][0]["backendRefs"]]

    assert await weights() == [80, 20]
    world.pod("engine", track=naming.TRACK_STABLE)
    assert await weights() == [100, 0]
    world.pod("plain", ip="10.0.0.2", track=naming.TRACK_PLAIN)
    world.engines.without_drafter = {"plain"}
    assert await weights() == [80, 20]
    world.writes()
    await world.serving.run(full=True)
    assert world.writes() == []


def test_every_revision_is_read_back_as_it_was_built() -> None:
    found = built(serving(routing=PLAIN))
    (kept,) = (manifest for (kind, _), manifest in found.items() if kind == "ControllerRevision")
    read = revision.read(kept)
    assert read is not None
    assert revision.build(serving(routing=PLAIN), read) == kept


async def test_somebody_else_s_object_in_the_place_of_plain_pods_withholds_them_and_nothing_else(world: World) -> None:
    world.kube.served.add("HTTPRoute")
    world.kube.put({"kind": "Deployment", "metadata": {"name": "demo-plain", "namespace": "team"}, "spec": {}})
    world.apply({**SPEC, "routing": {**PLAIN, **GATEWAY}})
    world.pod("engine", track=naming.TRACK_STABLE)
    result = await world.serving.run(full=True)
    assert world.condition("Accepted") == ("True", "Valid")
    assert world.condition("Ready") == ("True", "ReplicasReady")
    assert world.condition("IntegrationsAvailable") == ("False", "ChildConflict")
    assert "Deployment demo-plain exists and belongs to nobody" in world.message("IntegrationsAvailable")
    assert world.kube.find("Deployment", "demo-plain")["spec"] == {}, "theirs is not touched"
    assert world.kube.find("Deployment", "demo")["spec"]["replicas"] == 1
    (rule,) = world.kube.find("HTTPRoute", "demo")["spec"]["rules"]
    assert [backend["name"] for backend in rule["backendRefs"]] == ["demo"]
    assert result.after is not None
    world.kube.writes.clear()
    await world.serving.run(full=True)
    assert world.writes() == [], "nothing is written again"
    world.kube.drop("Deployment", "demo-plain")
    await world.serving.run(full=True)
    assert world.condition("IntegrationsAvailable") == ("True", "KindsServed")
    assert world.kube.find("Deployment", "demo-plain")["spec"]["replicas"] == 2
