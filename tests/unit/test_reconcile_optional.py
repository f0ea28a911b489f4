"""Children of kinds that a cluster may lack: made where the kind is, told where it is not, and no other child waits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import naming, resources
from paceline_operator.clients.kube import ForbiddenError, NotFoundError
from paceline_operator.kinds import OPTIONAL, crd_of
from paceline_operator.plan import Absence, key_of, not_served, plan_children
from tests.fakes import Object
from tests.unit.test_reconcile_children import KINDS
from tests.world import World

WANTED = "HTTPRoute"
CONDITION = "IntegrationsAvailable"
AROUND = resources.around


@pytest.fixture
def wanting(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A serving that renders one more child, of an optional kind."""

    def more(serving: Any, *arguments: Any) -> list[Object]:
        manifests = AROUND(serving, *arguments)
        service = next(manifest for manifest in manifests if manifest["kind"] == "Service")
        return [{**service, "apiVersion": OPTIONAL[WANTED][0], "kind": WANTED, "spec": {}}, *manifests]

    monkeypatch.setattr(resources, "around", more)
    return world


def types(world: World) -> set[str]:
    return {condition["type"] for condition in world.status["conditions"]}


async def test_without_a_wish_nothing_is_told(world: World) -> None:
    await world.serving.run(full=True)
    assert CONDITION not in types(world)


async def test_an_absent_kind_is_told_and_keeps_no_other_child_back(wanting: World) -> None:
    await wanting.serving.run(full=True)
    assert [kind for verb, kind in wanting.writes() if verb == "APPLY"] == ["Secret", *KINDS]
    assert wanting.condition(CONDITION) == ("False", "KindNotServed")
    assert f"HTTPRoute demo: the cluster has no {crd_of(WANTED)}" in wanting.message(CONDITION)
    assert wanting.condition("Accepted") == ("True", "Valid")
    assert wanting.status["observedGeneration"] == 1
    for full in (True, False, True):
        await wanting.serving.run(full=full)
    assert wanting.writes() == []


async def test_a_kind_that_comes_later_is_taken_up_and_one_that_goes_is_survived(wanting: World) -> None:
    await wanting.serving.run(full=True)
    wanting.writes()
    wanting.kube.served.add(WANTED)
    await wanting.serving.run(full=True)
    assert wanting.writes() == [("APPLY", WANTED), ("STATUS", naming.KIND_SERVING)]
    assert wanting.condition(CONDITION) == ("True", "KindsServed")
    wanting.kube.served.clear()
    wanting.kube.drop(WANTED, "demo")
    await wanting.serving.run(full=True)
    assert wanting.writes() == [("STATUS", naming.KIND_SERVING)]
    assert wanting.condition(CONDITION) == ("False", "KindNotServed")


async def test_a_kind_that_went_since_it_was_seen_is_no_error(wanting: World) -> None:
    wanting.kube.served.add(WANTED)
    wanting.kube.refuse[("LIST", WANTED)] = NotFoundError(404, "NotFound", "gone")
    await wanting.serving.run(full=True)
    assert wanting.condition(CONDITION) == ("False", "KindNotServed")
    wanting.kube.refuse = {("APPLY", WANTED): NotFoundError(404, "NotFound", "gone")}
    await wanting.serving.run(full=True)
    assert wanting.condition(CONDITION) == ("False", "KindNotServed")
    assert wanting.condition("Progressing") == ("True", "RollingOut")


@pytest.mark.parametrize("verb", ["LIST", "GET", "APPLY"])
async def test_a_missing_right_is_told_likewise(wanting: World, verb: str) -> None:
    wanting.kube.served.add(WANTED)
    wanting.kube.refuse[(verb, WANTED)] = ForbiddenError(403, "Forbidden", "httproutes is forbidden")
    await wanting.serving.run(full=True)
    if verb != "GET":
        assert wanting.condition(CONDITION) == ("False", "KindForbidden")
        assert "httproutes is forbidden" in wanting.message(CONDITION)
    assert {kind for written, kind in wanting.writes() if written == "APPLY"} >= set(KINDS)
    assert wanting.condition("Progressing") == ("True", "RollingOut")
    wanting.kube.refuse.clear()
    await wanting.serving.run(full=True)
    assert wanting.condition(CONDITION) == ("True", "KindsServed")


async def test_a_right_that_nobody_needs_is_not_missed(world: World) -> None:
    world.kube.served.add(WANTED)
    world.kube.refuse[("LIST", WANTED)] = ForbiddenError(403, "Forbidden", "httproutes is forbidden")
    await world.serving.run(full=True)
    assert CONDITION not in types(world)


async def test_a_child_that_is_not_wanted_any_more_is_pruned(wanting: World, monkeypatch: pytest.MonkeyPatch) -> None:
    wanting.kube.served.add(WANTED)
    await wanting.serving.run(full=True)
    wanting.writes()
    monkeypatch.setattr(resources, "around", AROUND)
    await wanting.serving.run(full=True)
    assert wanting.writes() == [("DELETE", WANTED), ("STATUS", naming.KIND_SERVING)]
    assert CONDITION not in types(wanting)


KEYS = st.tuples(st.sampled_from([*OPTIONAL, "Service", "Deployment"]), st.sampled_from(["a", "b"]))


@given(st.sets(KEYS), st.sets(KEYS), st.sets(st.sampled_from(sorted(OPTIONAL))))
def test_each_wanted_child_is_made_there_or_withheld(
    wanted: set[tuple[str, str]], live: set[tuple[str, str]], absent: set[str]
) -> None:
    reference = {"controller": True, "uid": "u", "kind": naming.KIND_SERVING, "name": "demo"}
    there = {
        (kind, name): {
            "kind": kind,
            "metadata": {"name": name, "uid": f"{kind}-{name}", "ownerReferences": [reference]},
        }
        for kind, name in live
        if kind not in absent
    }
    manifests = [{"kind": kind, "metadata": {"name": name}} for kind, name in sorted(wanted)]
    plan = plan_children(manifests, there, {"metadata": {"name": "demo", "uid": "u"}}, {}, absent)
    made = {key_of(apply.manifest) for apply in plan.applies}
    assert made | set(plan.withheld) | (wanted & there.keys()) == wanted
    assert {kind for kind, _ in plan.withheld} == {kind for kind, _ in wanted} & absent
    assert not {kind for kind, _ in made} & absent
    deleted = {(delete.kind, delete.name) for delete in plan.deletes}
    workloads = (
        {"Deployment", "LeaderWorkerSet"} if any(kind == "LeaderWorkerSet" for kind, _ in plan.withheld) else set()
    )
    assert deleted == {key for key in there.keys() - wanted if key[0] not in workloads}
    assert plan.integrates == any(kind in OPTIONAL for kind, _ in wanted)


@pytest.mark.parametrize("absent", [True, False])
def test_the_workload_that_runs_stays_while_the_one_that_follows_it_cannot_be(absent: bool) -> None:
    owner = {"metadata": {"name": "demo", "uid": "u"}}
    reference = {"controller": True, "uid": "u", "kind": naming.KIND_SERVING, "name": "demo"}
    deployment = {"kind": "Deployment", "metadata": {"name": "demo", "uid": "d", "ownerReferences": [reference]}}
    group = {"kind": "LeaderWorkerSet", "metadata": {"name": "demo"}, "spec": {}}
    kinds: dict[str, Absence] = {"LeaderWorkerSet": not_served("LeaderWorkerSet")} if absent else {}
    plan = plan_children([group], {("Deployment", "demo"): deployment}, owner, {}, kinds)
    assert [delete.kind for delete in plan.deletes] == ([] if absent else ["Deployment"])
    assert plan.withheld == ((("LeaderWorkerSet", "demo"),) if absent else ())
    assert len(plan.applies) == (0 if absent else 1)
