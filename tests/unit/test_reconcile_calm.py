"""Passes of the tuner where nothing comes or goes: they read engines alone, for two minutes at most."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import act, naming, verdicts
from paceline_operator.api.base import MAX_SHARED, shared
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status import PodStatus, ServingStatus, TableRow, Tier
from paceline_operator.calm import LIVE_SECONDS, WAIT_SECONDS, WAITED_PER_SECOND, minor, patience
from paceline_operator.clients.kube import UnavailableError
from tests.servings import serving
from tests.world import SPEC, World


@pytest.fixture
async def quiet(world: World) -> World:
    """One pod of one, ready, and children as they should be."""
    world.pod("demo-1", track="stable")
    await world.serving.run(full=True)
    world.writes()
    world.engines.asked.clear()
    return world


async def read_in(world: World, seconds: float = 10.0, *, full: bool = False) -> int:
    """Reads of the API server in the next pass."""
    before = world.kube.reads
    world.clock.advance(seconds)
    await world.serving.run(full=full)
    return world.kube.reads - before


async def test_quiet_passes_read_engines_alone_and_the_cluster_every_two_minutes(quiet: World) -> None:
    read = [await read_in(quiet) for _ in range(24)]
    assert len(quiet.engines.asked) == 24
    assert read == 2 * [*(11 * [0]), 2], "the object and its pods"
    assert quiet.writes() == []


async def test_whoever_is_woken_reads(quiet: World) -> None:
    assert await read_in(quiet) == 0
    assert await read_in(quiet, full=True) > 2


async def test_a_view_is_no_older_than_its_reading_whatever_passes_it_served(quiet: World) -> None:
    assert await read_in(quiet, LIVE_SECONDS - 1) == 0
    assert await read_in(quiet, 1) == 2


@pytest.mark.parametrize(
    "change",
    [
        {"ready": False},
        {"ip": ""},
        {
            "containerStatuses": [{"name": "engine", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}],
            "ready": False,
        },
    ],
)
async def test_where_pods_come_or_go_each_pass_reads(quiet: World, change: dict[str, Any]) -> None:
    quiet.pod("demo-1", track="stable", **change)
    await quiet.serving.run(full=True)
    if change != {"ip": ""}:
        assert await read_in(quiet) >= 2
    quiet.pod("demo-2", track="stable")
    await quiet.serving.run(full=True)
    assert await read_in(quiet) >= 2, "two pods of one"


async def test_where_replicas_are_decided_each_pass_reads(quiet: World) -> None:
    quiet.apply({**SPEC, "autoscaling": {"mode": "Builtin", "minReplicas": 1, "maxReplicas": 2}})
    await quiet.serving.run(full=True)
    assert await read_in(quiet) >= 2


async def test_what_changed_is_written_without_another_look_and_once(quiet: World) -> None:
    quiet.engines.failures["demo-1"] = Reason.POD_NOT_ANSWERING
    reads = quiet.kube.reads
    quiet.clock.advance(10)
    await quiet.serving.run(full=False)
    assert quiet.writes() == [("STATUS", naming.KIND_SERVING)]
    assert quiet.condition("MetricsAvailable")[0] == "False"
    assert quiet.kube.reads == reads
    assert await read_in(quiet) == 2, "what became of its pod?"
    assert quiet.writes() == []


async def test_status_that_could_not_be_written_is_written_after_a_look(quiet: World) -> None:
    quiet.engines.failures["demo-1"] = Reason.POD_NOT_ANSWERING
    quiet.kube.refuse[("STATUS", naming.KIND_SERVING)] = UnavailableError(503, "Down", "etcd")
    quiet.clock.advance(10)
    with pytest.raises(UnavailableError):
        await quiet.serving.run(full=False)
    quiet.kube.refuse.clear()
    assert await read_in(quiet) >= 2
    assert quiet.condition("MetricsAvailable")[0] == "False"


TOLD = ServingStatus(
    policy_generation=3,
    acknowledged_pods=1,
    table=[TableRow(from_requests=1, k=2)],
    pods=[PodStatus(name="demo-1", tier=Tier.LIVE, generation=3)],
)
NEWER = {"policy_generation": 4, "pods": [TOLD.pods[0].model_copy(update={"generation": 4})]}


@pytest.mark.parametrize(
    ("change", "waits"),
    [
        (NEWER, True),
        ({"ratio_to_k0_permille": 1200}, True),
        ({**NEWER, "table": [TableRow(from_requests=1, k=3)]}, False),
        ({**NEWER, "acknowledged_pods": 0}, False),
        ({"pods": [TOLD.pods[0].model_copy(update={"message": "it is down"})]}, False),
        ({"pods": []}, False),
        ({"load_requests": 8}, False),
    ],
)
def test_generations_of_the_same_table_and_numbers_wait(change: dict[str, Any], waits: bool) -> None:
    newer = TOLD.model_copy(update=change)
    news = minor(TOLD, newer)
    assert (news is not None) is waits
    assert news is None or TOLD.model_copy(update=news) == newer
    assert not minor(ServingStatus(), ServingStatus(policy_generation=1)), "the first table"


@given(st.integers(0, 100_000))
def test_what_waits_costs_an_api_server_the_same_however_many_wait(servings: int) -> None:
    assert patience(servings) >= WAIT_SECONDS
    assert servings / patience(servings) <= WAITED_PER_SECOND


async def test_what_is_kept_of_status_is_what_is_stored(quiet: World) -> None:
    await read_in(quiet)
    kept = quiet.serving._memory.calm
    assert kept is not None
    assert act.as_json(kept.status) == quiet.status
    newer = kept.status.model_copy(update={"k": "3", "policy_generation": 99})
    assert kept.told(newer).status == newer


def test_sections_that_are_the_same_are_one_object_and_large_ones_nobody_elses() -> None:
    one, other = (shared(serving(engine={"maxNumSeqs": seqs}).spec) for seqs in (64, 128))
    assert one.speculation is other.speculation
    assert (one.engine.max_num_seqs, other.engine.max_num_seqs) == (64, 128)
    wide = serving(engine={"extraArgs": 5 * [MAX_SHARED // 4 * "x"]}).spec
    assert shared(wide) == wide
    assert shared(wide).engine is wide.engine


@pytest.mark.parametrize("value", ["half a pair: \ud800", float("nan"), 10**400, [1, True, 1.0]])
def test_whatever_a_pod_template_holds_a_spec_with_shared_sections_is_as_it_was(value: Any) -> None:
    spec = serving(engine={"podTemplate": {"metadata": {"annotations": {"note": value}}}}).spec
    assert repr(shared(spec)) == repr(spec)


@pytest.mark.parametrize("servings", [1, 1000])
async def test_what_waits_is_written_after_a_while_or_with_other_news_and_once(quiet: World, servings: int) -> None:
    quiet.fleet = servings
    memory, waiting = quiet.serving._memory, patience(servings) - 10
    assert quiet.status["policyGeneration"] > 0
    for news in (False, True):
        stored = verdicts.status_of(quiet.kube.find(naming.KIND_SERVING, "demo"), ServingStatus)
        newer = stored.policy_generation + 1
        memory.unsaved = stored.model_copy(update={"policy_generation": newer})
        await read_in(quiet)
        assert memory.unsaved is None
        if news:
            quiet.engines.failures["demo-1"] = Reason.POD_NOT_ANSWERING
        else:
            await read_in(quiet, waiting)
            assert quiet.writes() == []
        await read_in(quiet)
        assert quiet.writes() == [("STATUS", naming.KIND_SERVING)]
        assert quiet.status["policyGeneration"] == newer
        await read_in(quiet)
        assert quiet.writes() == []
