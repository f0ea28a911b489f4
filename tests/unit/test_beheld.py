"""Children that were just seen are not listed again, unless a watch told of them, or may have missed something."""

from __future__ import annotations

import pytest

from paceline_operator import naming
from paceline_operator.beheld import BELIEVED_SECONDS, STILL_KINDS, Versions
from tests.fakes import Object
from tests.world import World

OWNER = ("team", "demo")


@pytest.fixture
async def come(world: World) -> World:
    """A serving whose children were made, and told of by the watches."""
    await world.serving.run(full=True, believing=True)
    for kind in STILL_KINDS:
        tell(world, kind)
    world.writes()
    return world


def tell(world: World, kind: str, *, gone: bool = False) -> None:
    """A watch tells of the children of a kind as they are."""
    for (of, _, _), body in world.kube.objects.items():
        if of == kind:
            world.hands.versions.tell(OWNER, kind, body["metadata"], gone)


async def listed(world: World, *, believing: bool = True) -> bool:
    """Whether the next pass lists children that stay as they are."""
    world.kube.listed.clear()
    await world.serving.run(full=True, believing=believing)
    assert "Deployment" in world.kube.listed
    return bool(set(STILL_KINDS) & set(world.kube.listed))


async def test_what_was_made_is_not_listed_again(come: World) -> None:
    assert not await listed(come)
    assert come.writes() in ([], [("STATUS", naming.KIND_SERVING)])
    assert not await listed(come), "nor after a pass that went by it"


async def test_a_resync_believes_nothing(come: World) -> None:
    assert await listed(come, believing=False)


async def test_a_child_that_was_edited_is_put_right(come: World) -> None:
    come.kube.find("Service", "demo")["spec"]["ports"] = []
    come.kube.put(come.kube.find("Service", "demo"))
    tell(come, "Service")
    assert await listed(come)
    assert ("APPLY", "Service") in come.writes()


async def test_a_child_that_was_deleted_is_made_again(come: World) -> None:
    tell(come, "Service", gone=True)
    come.kube.drop("Service", "demo")
    assert await listed(come)
    assert ("APPLY", "Service") in come.writes()
    tell(come, "Service")
    assert not await listed(come)


async def test_a_watch_that_begins_anew_may_have_missed_something(come: World) -> None:
    come.hands.versions.anew()
    assert await listed(come)


async def test_nothing_is_believed_for_long_whatever_passes_it_served(come: World) -> None:
    come.clock.advance(BELIEVED_SECONDS - 1)
    assert not await listed(come)
    come.clock.advance(1)
    assert await listed(come)


async def test_a_view_that_is_older_than_what_was_told_is_not_believed(come: World) -> None:
    come.hands.versions.tell(OWNER, "Service", {"name": "demo", "resourceVersion": "1000000"}, gone=False)
    assert await listed(come)
    assert await listed(come)


async def test_where_nobody_has_looked_before_children_are_found_by_their_names(world: World) -> None:
    world.kube.put({"kind": "Service", "metadata": {"name": "demo", "namespace": "team"}, "spec": {}})
    assert not await listed(world)
    assert ("APPLY", "Service") not in world.writes(), "it is somebody else's"
    assert world.condition("Accepted") == ("False", "ChildConflict")


async def test_who_comes_after_a_process_that_was_killed_lists(come: World) -> None:
    come.restart()
    assert await listed(come)


BUDGET = {"name": "demo", "labels": {naming.LABEL_SERVING: "demo"}, "uid": "u", "generation": 1, "resourceVersion": "1"}


@pytest.mark.parametrize(
    ("change", "concerns"),
    [
        ({"resourceVersion": "2"}, False),
        ({"resourceVersion": "2", "managedFields": [{"manager": "kube-controller-manager"}]}, False),
        ({"resourceVersion": "2", "generation": 2}, True),
        ({"resourceVersion": "2", "uid": "v"}, True),
        ({"resourceVersion": "2", "labels": {}}, True),
        ({"resourceVersion": "2", "annotations": {"a": "b"}}, True),
        ({"resourceVersion": "2", "deletionTimestamp": "2026-01-01T00:00:00Z"}, True),
    ],
)
def test_status_of_a_budget_concerns_nobody_and_all_else_of_it_does(change: Object, concerns: bool) -> None:
    versions = Versions()
    assert versions.tell(OWNER, "PodDisruptionBudget", BUDGET, gone=False), "it came"
    before = versions.of(OWNER)
    assert versions.tell(OWNER, "PodDisruptionBudget", BUDGET | change, gone=False) is concerns
    assert (versions.of(OWNER) != before) is concerns
    assert versions.tell(OWNER, "PodDisruptionBudget", BUDGET | change, gone=True), "it went"
    assert versions.tell(OWNER, "PodDisruptionBudget", BUDGET | change, gone=False)


@pytest.mark.parametrize(
    "kind", [kind for kind in (*STILL_KINDS, "Deployment", "Pod") if kind != "PodDisruptionBudget"]
)
def test_of_other_kinds_every_version_concerns_somebody(kind: str) -> None:
    versions = Versions()
    assert all(versions.tell(OWNER, kind, BUDGET | {"resourceVersion": each}, gone=False) for each in "123")


def test_after_a_watch_that_began_anew_whatever_is_told_concerns_somebody() -> None:
    versions = Versions()
    versions.tell(OWNER, "PodDisruptionBudget", BUDGET, gone=False)
    versions.anew()
    assert versions.tell(OWNER, "PodDisruptionBudget", BUDGET, gone=False)


async def test_pods_that_come_and_go_have_nothing_listed_again_for_the_budget(come: World) -> None:
    budget = come.kube.find("PodDisruptionBudget", "demo")
    generation = budget["metadata"]["generation"]
    budget["status"] = {"currentHealthy": 1}
    budget["metadata"]["resourceVersion"] = str(10**6)
    tell(come, "PodDisruptionBudget")
    assert budget["metadata"]["generation"] == generation
    assert not await listed(come)


@pytest.mark.parametrize("anew", [False, True])
async def test_a_child_that_goes_is_made_again_though_no_watch_had_told_of_it(come: World, anew: bool) -> None:
    if anew:  # a watch that begins anew tells of what happens from then on alone
        come.hands.versions.anew()
        assert await listed(come)
    assert not await listed(come)
    come.writes()
    tell(come, "Service", gone=True)
    come.kube.drop("Service", "demo")
    assert await listed(come)
    assert ("APPLY", "Service") in come.writes()
