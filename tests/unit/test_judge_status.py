"""Accepted of the kinds that are judged and nothing else: one write where it changes, none where it does not."""

from __future__ import annotations

import pytest

from paceline_operator.clients.kube import ConflictError, UnavailableError
from paceline_operator.clock import FakeClock
from paceline_operator.judge import judge
from tests.fakes import FakeKube, Object
from tests.harness.objects import EXPERIMENT, PROFILE, Change, thing

KINDS = [EXPERIMENT, PROFILE]


class Cluster:
    def __init__(self) -> None:
        self.kube, self.clock = FakeKube(), FakeClock()

    def apply(self, kind: str, change: Change, generation: int, **metadata: str) -> None:
        body = thing(kind, change)
        body["metadata"] |= {"namespace": "team", "generation": generation, "uid": "u", **metadata}
        stored = self.kube.objects.get((kind, "team", "chat"), {})
        self.kube.put(body | {key: value for key, value in stored.items() if key == "status"})

    async def judge(self, kind: str) -> bool:
        return await judge(self.kube, self.clock, kind, "team", "chat")  # type: ignore[arg-type]

    def accepted(self, kind: str) -> Object:
        (condition,) = self.kube.find(kind, "chat")["status"]["conditions"]
        assert condition["type"] == "Accepted"
        return dict(condition)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_spec_is_accepted_once_and_then_nothing_is_written(cluster: Cluster, kind: str) -> None:
    cluster.apply(kind, {}, 3)
    for _ in range(3):
        assert await cluster.judge(kind)
        cluster.clock.advance(1000)
    assert cluster.kube.writes == [("STATUS", kind, "chat")]
    assert cluster.accepted(kind) == {
        "type": "Accepted",
        "status": "True",
        "reason": "Valid",
        "message": cluster.accepted(kind)["message"],
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 3,
    }
    assert cluster.kube.find(kind, "chat")["status"]["observedGeneration"] == 3


async def test_the_time_moves_with_the_status_alone(cluster: Cluster) -> None:
    seen = []
    edits: list[Change] = [{}, {"repetitions": 3}, {"load": None}, {"duration": {"timesToFault": 2}}]
    for generation, change in enumerate(edits, 1):
        cluster.apply(EXPERIMENT, change, generation)
        await cluster.judge(EXPERIMENT)
        accepted = cluster.accepted(EXPERIMENT)
        assert accepted["observedGeneration"] == generation
        seen.append((accepted["status"], accepted["lastTransitionTime"][11:19]))
        cluster.clock.advance(60)
    assert seen == [("True", "00:00:00"), ("True", "00:00:00"), ("False", "00:02:00"), ("False", "00:02:00")]
    assert len(cluster.kube.writes) == 4


async def test_status_that_cannot_be_read_is_written_anew(cluster: Cluster) -> None:
    cluster.apply(PROFILE, {}, 1)
    cluster.kube.find(PROFILE, "chat")["status"] = {"conditions": "none"}
    await cluster.judge(PROFILE)
    assert cluster.accepted(PROFILE)["status"] == "True"


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_gone_is_told_and_what_is_going_is_left_alone(cluster: Cluster, kind: str) -> None:
    assert not await cluster.judge(kind)
    cluster.apply(kind, {}, 1, deletionTimestamp="2026-01-01T00:00:00Z")
    assert await cluster.judge(kind)
    assert cluster.kube.writes == []


@pytest.mark.parametrize("error", [ConflictError(409, "Conflict", "uid"), UnavailableError(503, "Down", "etcd")])
async def test_a_write_that_fails_is_tried_again_by_the_fleet(cluster: Cluster, error: Exception) -> None:
    cluster.apply(EXPERIMENT, {}, 1)
    cluster.kube.refuse[("STATUS", EXPERIMENT)] = error  # type: ignore[assignment]
    with pytest.raises(type(error)):
        await cluster.judge(EXPERIMENT)
    cluster.kube.refuse.clear()
    await cluster.judge(EXPERIMENT)
    assert cluster.accepted(EXPERIMENT)["status"] == "True"
