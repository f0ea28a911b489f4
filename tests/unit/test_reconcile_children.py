"""A pass over children: created once, corrected, pruned, never another's, and nothing written when nothing changed."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from paceline_operator import naming
from paceline_operator.clients.kube import ForbiddenError, InvalidError, UnavailableError
from paceline_operator.engines import SOON_SECONDS
from paceline_operator.reconcile import CONFLICT_SECONDS
from tests.fakes import Object
from tests.world import SPEC, World

BY_NAME = ["ServiceAccount", "NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment"]
"""Children that are called as the serving is."""
KINDS = [*BY_NAME[:-1], "ControllerRevision", "Deployment"]


async def test_the_first_pass_creates_all_children_and_writes_status_once(world: World) -> None:
    await world.serving.run(full=True)
    assert world.writes() == [
        ("APPLY", "Secret"),
        *(("APPLY", kind) for kind in KINDS),
        ("STATUS", naming.KIND_SERVING),
    ]
    assert world.condition("Accepted") == ("True", "Valid")
    assert world.condition("Ready") == ("False", "ReplicasUnavailable")
    assert world.status["selector"] == "paceline.dev/serving=demo,app.kubernetes.io/component=engine"
    assert world.status["observedGeneration"] == 1


async def test_nothing_is_written_when_nothing_changed(world: World) -> None:
    await world.serving.run(full=True)
    await world.serving.run(full=True)
    world.writes()
    for full in (True, False, True):
        world.clock.advance(1000)
        await world.serving.run(full=full)
    assert world.writes() == []


async def test_a_period_pass_reads_the_object_and_its_pods_alone(world: World) -> None:
    await world.serving.run(full=True)
    world.kube.reads = 0
    await world.serving.run(full=False)
    assert world.kube.reads == 2


async def test_a_period_pass_after_an_edit_looks_at_everything(world: World) -> None:
    await world.serving.run(full=True)
    world.writes()
    world.apply({**SPEC, "replicas": 3})
    await world.serving.run(full=False)
    assert ("APPLY", "Deployment") in world.writes()
    assert world.kube.find("Deployment", "demo")["spec"]["replicas"] == 3


async def test_a_rollout_is_told_from_the_pass_that_starts_it_to_its_end(world: World) -> None:
    def done() -> None:
        deployment = world.kube.find("Deployment", "demo")
        counts = dict.fromkeys(("replicas", "updatedReplicas", "availableReplicas"), 1)
        deployment["status"] = {"observedGeneration": deployment["metadata"]["generation"], **counts}

    await world.serving.run(full=True)
    done()
    await world.serving.run(full=True)
    assert world.condition("Progressing") == ("False", "Settled")
    world.apply({**SPEC, "speculation": {"method": "ngram", "maxTokens": 3}})
    await world.serving.run(full=True)
    assert world.condition("Progressing") == ("True", "RollingOut"), "the Deployment was settled before this pass"
    assert world.status["observedGeneration"] == 2
    done()
    await world.serving.run(full=True)
    assert world.condition("Progressing") == ("False", "Settled")


async def test_a_new_process_writes_only_the_token(world: World) -> None:
    await world.serving.run(full=True)
    await world.serving.run(full=True)
    world.writes()
    world.restart()
    await world.serving.run(full=True)
    assert world.writes() == [("APPLY", "Secret")]


@pytest.mark.parametrize("kind", BY_NAME)
async def test_a_deleted_child_comes_back_alone(world: World, kind: str) -> None:
    await world.serving.run(full=True)
    world.writes()
    world.kube.drop(kind, "demo")
    await world.serving.run(full=True)
    assert world.writes() == [("APPLY", kind)]


def _image(body: Object) -> None:
    body["spec"]["template"]["spec"]["containers"][0]["image"] = "somebody/else:1"


def _port(body: Object) -> None:
    body["spec"]["ports"][0]["port"] = 80


def _labels(body: Object) -> None:
    del body["metadata"]["labels"][naming.LABEL_INSTANCE]


def _policy(body: Object) -> None:
    body["spec"]["ingress"] = []


@pytest.mark.parametrize(
    ("kind", "edit"),
    [("Deployment", _image), ("Service", _port), ("ServiceAccount", _labels), ("NetworkPolicy", _policy)],
)
async def test_a_hand_edited_child_is_corrected(world: World, kind: str, edit: Callable[[Object], None]) -> None:
    await world.serving.run(full=True)
    good = copy.deepcopy(world.kube.find(kind, "demo")["spec"]) if kind != "ServiceAccount" else None
    world.writes()
    edit(world.kube.find(kind, "demo"))
    await world.serving.run(full=True)
    assert world.writes() == [("APPLY", kind)]
    assert world.kube.find(kind, "demo").get("spec") == good
    assert [kind in message for message in world.events("ChildCorrected")] == [True]


async def test_what_happened_is_told_before_status_says_so(world: World) -> None:
    await world.serving.run(full=True)
    _image(world.kube.find("Deployment", "demo"))
    world.kube.refuse[("STATUS", naming.KIND_SERVING)] = UnavailableError(0, "Killed", "in between")
    world.kube.find(naming.KIND_SERVING, "demo")["status"] = {}
    with pytest.raises(UnavailableError):
        await world.serving.run(full=True)
    assert len(world.events("ChildCorrected")) == 1
    world.kube.refuse.clear()
    await world.serving.run(full=True)
    assert len(world.events("ChildCorrected")) == 1, "once, while nobody is killed"


async def test_what_others_add_stays(world: World) -> None:
    await world.serving.run(full=True)
    world.writes()
    deployment = world.kube.find("Deployment", "demo")
    deployment["metadata"]["annotations"]["deployment.kubernetes.io/revision"] = "1"
    deployment["spec"]["template"]["spec"]["schedulerName"] = "default-scheduler"
    deployment["status"] = {"replicas": 1}
    await world.serving.run(full=True)
    assert ("APPLY", "Deployment") not in world.writes()


async def test_a_value_that_the_server_writes_its_own_way_is_not_fought_over(world: World) -> None:
    await world.serving.run(full=True)
    apply = world.kube.apply

    async def normalising(body: Object, subresource: str = "") -> Object:
        result = await apply(body, subresource)
        if body["kind"] == "Deployment":
            stored = world.kube.find("Deployment", "demo")
            stored["spec"]["progressDeadlineSeconds"] = str(body["spec"]["progressDeadlineSeconds"])
            return copy.deepcopy(stored)
        return result

    world.kube.apply = normalising  # type: ignore[method-assign]
    world.apply({**SPEC, "replicas": 2})
    await world.serving.run(full=True)
    world.writes()
    await world.serving.run(full=True)
    assert world.writes() == []


async def test_a_field_that_is_no_longer_rendered_is_removed(world: World) -> None:
    world.apply({**SPEC, "engine": {"podTemplate": {"spec": {"nodeSelector": {"gpu": "h200"}}}}})
    await world.serving.run(full=True)
    assert world.kube.find("Deployment", "demo")["spec"]["template"]["spec"]["nodeSelector"] == {"gpu": "h200"}
    world.apply(SPEC)
    world.restart()
    await world.serving.run(full=True)
    assert "nodeSelector" not in world.kube.find("Deployment", "demo")["spec"]["template"]["spec"]


async def test_a_child_that_no_longer_belongs_is_pruned_and_a_stranger_is_not(world: World) -> None:
    await world.serving.run(full=True)
    mine = copy.deepcopy(world.kube.find("Service", "demo"))
    mine["metadata"] |= {"name": "demo-old", "uid": "old"}
    stranger = copy.deepcopy(mine)
    stranger["metadata"] |= {"name": "demo-stranger", "uid": "stranger", "ownerReferences": []}
    world.kube.put(mine)
    world.kube.put(stranger)
    world.kube.writes.clear()
    await world.serving.run(full=True)
    assert [w for w in world.kube.writes if w[0] == "DELETE"] == [("DELETE", "Service", "demo-old")]


async def test_a_namesake_of_somebody_else_is_a_conflict_and_nothing_is_touched(world: World) -> None:
    world.kube.put({"kind": "Service", "metadata": {"name": "demo", "namespace": "team"}, "spec": {}})
    result = await world.serving.run(full=True)
    assert world.writes() == [("STATUS", naming.KIND_SERVING)]
    assert world.condition("Accepted") == ("False", "ChildConflict")
    assert world.condition("Ready") == ("False", "ChildConflict")
    assert result.after == CONFLICT_SECONDS
    world.kube.drop("Service", "demo")
    await world.serving.run(full=False)
    assert world.condition("Accepted") == ("True", "Valid")
    assert ("APPLY", "Deployment") in world.writes()


async def test_children_of_a_deleted_object_of_the_name_are_replaced_not_adopted(world: World) -> None:
    await world.serving.run(full=True)
    old = world.kube.find("Deployment", "demo")["metadata"]["uid"]
    world.apply(SPEC, uid="another", generation=0)
    world.writes()
    result = await world.serving.run(full=True)
    assert result.after == SOON_SECONDS
    deleted = [kind for verb, kind in world.writes() if verb == "DELETE"]
    assert deleted == ["Secret", *KINDS], "the Secret because it is immutable and holds the token of another UID"
    await world.serving.run(full=False)
    deployment = world.kube.find("Deployment", "demo")
    assert deployment["metadata"]["uid"] != old
    assert deployment["metadata"]["ownerReferences"][0]["uid"] == "another"


async def test_an_object_that_is_being_deleted_is_left_alone_and_one_that_is_gone_ends_the_task(world: World) -> None:
    await world.serving.run(full=True)
    world.writes()
    world.kube.find(naming.KIND_SERVING, "demo")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    world.kube.drop("Service", "demo")
    assert not (await world.serving.run(full=True)).gone
    assert world.writes() == []
    world.kube.drop(naming.KIND_SERVING, "demo")
    assert (await world.serving.run(full=True)).gone


async def test_one_child_that_is_refused_keeps_no_other_back_and_is_said(world: World) -> None:
    world.kube.refuse[("APPLY", "NetworkPolicy")] = InvalidError(422, "Invalid", "spec.ingress: no")
    with pytest.raises(InvalidError):
        await world.serving.run(full=True)
    assert [kind for verb, kind in world.writes() if verb == "APPLY"] == ["Secret", *KINDS]
    assert world.condition("Progressing") == ("False", "ApplyFailed")
    assert world.status["observedGeneration"] == 0
    world.kube.refuse.clear()
    await world.serving.run(full=False)
    assert world.condition("Progressing") == ("True", "RollingOut")
    assert world.status["observedGeneration"] == 1


async def test_a_missing_role_is_said_in_status_once(world: World) -> None:
    world.kube.refuse[("LIST", "Deployment")] = ForbiddenError(403, "Forbidden", "deployments is forbidden")
    for _ in range(3):
        with pytest.raises(ForbiddenError):
            await world.serving.run(full=True)
    assert world.writes() == [("STATUS", naming.KIND_SERVING)]
    assert world.condition("Progressing") == ("False", "ApplyFailed")


async def test_decisions_in_a_status_that_could_not_be_written_are_not_lost(world: World) -> None:
    world.kube.refuse[("STATUS", naming.KIND_SERVING)] = UnavailableError(503, "Down", "etcd")
    with pytest.raises(UnavailableError):
        await world.serving.run(full=True)
    world.kube.refuse.clear()
    world.writes()
    world.clock.advance(60)
    await world.serving.run(full=True)
    assert world.writes() == [("STATUS", naming.KIND_SERVING)]
    assert {c["lastTransitionTime"] for c in world.status["conditions"]} == {"2026-01-01T00:16:40Z"}, (
        "when it was found, not written"
    )
