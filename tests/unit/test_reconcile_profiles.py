"""The profile that a serving names, in passes: read now and then, compared, used, told; and nothing written for it."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_engine.protocol import Identity
from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.kube import UnavailableError
from paceline_operator.profiles import READ_SECONDS
from paceline_operator.tuning.model import Profile
from paceline_operator.tuning.state import TunerState
from tests.harness.objects import PROFILE, thing
from tests.world import SPEC, World

DIGEST = "sha256:" + 64 * "0"
TOLD = Identity(gpu="NVIDIA H200", tensor_parallel_size=1, graph_mode="FULL_AND_PIECEWISE", model_digest=DIGEST)
NAMED = {**SPEC, "tuning": {"profileRef": {"name": "old"}}}


def put(world: World, **key: Any) -> None:
    """A profile of the engines in the fakes, with these fields of its key otherwise."""
    body = thing(PROFILE, {"key": {"engineVersion": "0.32.0", **key}}, "old")
    body["metadata"]["namespace"] = "team"
    world.kube.put(body)


async def run(world: World, seconds: float = 10.0) -> None:
    world.clock.advance(seconds)
    await world.serving.run(full=False)


@pytest.fixture
async def named(world: World) -> World:
    """With a pod that told its key; the profile is not there."""
    world.engines.identity = TOLD
    world.pod("demo-1", track="stable")
    world.apply(NAMED)
    await world.serving.run(full=True)
    return world


def profile(world: World) -> Profile | None:
    state = world.serving._memory.tuner.state
    assert isinstance(state, TunerState)
    return state.profile


async def test_it_is_found_when_it_comes_and_used_once(named: World) -> None:
    assert named.condition("ProfileApplied") == ("False", "ProfileNotFound")
    assert profile(named) is None
    put(named)
    await run(named)
    assert named.condition("ProfileApplied") == ("False", "ProfileNotFound"), "it is looked for now and then"
    await run(named, READ_SECONDS)
    assert named.condition("ProfileApplied") == ("True", "KeyMatches")
    assert profile(named) == Profile({(1, 0): 0.009}, {})
    named.writes()
    reads = named.kube.reads
    for _ in range(6):
        await run(named, READ_SECONDS)
    assert named.writes() == []
    assert named.kube.reads - reads <= 6 * 3, "the object, its pods and the profile"


async def test_one_that_is_named_later_is_told_of_also_without_pods(world: World) -> None:
    world.apply(SPEC)
    await world.serving.run(full=True)
    world.apply(NAMED)
    await run(world, 0.5)
    assert world.condition("ProfileApplied") == ("False", "ProfileNotFound")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("gpu", "NVIDIA B200", "gpu is NVIDIA B200 in the profile and NVIDIA H200 in the engines"),
        ("maxTokens", 7, "maxTokens is 7 in the profile and 5 in the engines"),
        ("tensorParallelSize", 2, "tensorParallelSize is 2 in the profile and 1 in the engines"),
    ],
)
async def test_another_key_is_refused_and_named(named: World, field: str, value: object, says: str) -> None:
    put(named, **{field: value})
    await run(named, READ_SECONDS)
    assert named.condition("ProfileApplied") == ("False", "KeyMismatch")
    assert says in named.message("ProfileApplied")
    assert profile(named) is None


async def test_engines_that_are_gone_do_not_make_it_undone(named: World) -> None:
    put(named)
    await run(named, READ_SECONDS)
    named.engines.failures["demo-1"] = Reason.POD_NOT_ANSWERING
    named.writes()
    await run(named)
    assert named.condition("ProfileApplied") == ("True", "KeyMatches")
    assert named.status["learned"]["key"]["gpu"] == "NVIDIA H200"


async def test_engines_that_do_not_tell_their_key_are_waited_for(named: World) -> None:
    named.engines.identity = Identity(gpu="NVIDIA H200")
    put(named)
    await run(named, READ_SECONDS)
    assert named.condition("ProfileApplied") == ("Unknown", "KeyUnknown")
    assert "demo-1 does not tell its tensorParallelSize, modelDigest, graphMode" in named.message("ProfileApplied")
    assert named.status["learned"]["message"] == "demo-1 does not tell its tensorParallelSize, modelDigest, graphMode"


async def test_what_cannot_be_read_or_be_true_is_no_profile_and_stops_nothing(named: World) -> None:
    named.kube.refuse[("GET", naming.KIND_PROFILE)] = UnavailableError(503, "Down", "etcd")
    await run(named, READ_SECONDS)
    assert named.condition("ProfileApplied") == ("False", "ProfileUnreadable")
    named.kube.refuse.clear()
    for change in ({"spec": None}, {"spec": {"key": 1}}):
        body = thing(PROFILE, {}, "old") | change
        body["metadata"] = {"name": "old", "namespace": "team"}
        named.kube.put(body)
        await run(named, READ_SECONDS)
        assert named.condition("ProfileApplied") == ("False", "ProfileInvalid")
    put(named, maxTokens=5)
    named.kube.find(naming.KIND_PROFILE, "old")["spec"]["cost"][0]["k"] = 9
    await run(named, READ_SECONDS)
    assert "above spec.key.maxTokens 5" in named.message("ProfileApplied")


async def test_the_condition_goes_with_the_reference(named: World) -> None:
    named.apply(SPEC)
    await named.serving.run(full=True)
    assert "ProfileApplied" not in {one["type"] for one in named.status["conditions"]}
