"""Rollouts of real engines under a load that never stops: a canary that cannot serve is taken back, one that can is
promoted, and no request fails.

They take minutes: two engines share this machine's cores (`make test-long`).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from paceline_operator.naming import LABEL_TRACK
from tests.e2e.scene import Object, Scene
from tests.e2e.serving import manifest
from tests.harness.node import Node
from tests.harness.processes import Daemon

pytestmark = [pytest.mark.node, pytest.mark.engine, pytest.mark.long]

CONCURRENCY = 8
TOKENS = 24
"""Few, so that the loads of both pods change all the time and are the same now and then: connections go to either by
chance."""
START_SECONDS = 400.0
JUDGE_SECONDS = 400.0
DEADLINE_SECONDS = 600
"""A canary that nothing speaks against is not promoted unmeasured before the test gives up."""
SLOWEST_SECONDS = 120
"""Of a request of the load, whose client waits no longer: two engines share two cores, and what runs must be ended."""
TUNING = {"intervalSeconds": 2, "mode": "Manual", "table": [{"fromRequests": 1, "k": 0}]}
HURTING_K = 24
"""Digits without a rule are drafted for at each step, and nearly all drafts fail: the more, the worse."""


def serving() -> dict[str, Any]:
    """One pod, with room for another. The machine is a noisy one: what counts as a loss is no small thing."""
    found = manifest("chat", tuning=TUNING)
    found["spec"]["engine"] |= {"resources": {"requests": {"cpu": "500m"}}, "shutdownTimeoutSeconds": SLOWEST_SECONDS}
    canary = {
        "observeSeconds": 8,
        "deadlineSeconds": DEADLINE_SECONDS,
        "maxGoodputLossPercent": 25,
        "maxLatencyIncreasePercent": 300,
    }
    found["spec"]["rollout"] = {"canary": canary}
    return found


def test_a_canary_that_cannot_serve_is_taken_back_one_that_can_is_promoted_and_no_request_fails(
    node: Node, node_namespace: str
) -> None:
    with _served(node, node_namespace, serving()) as (scene, operator, spec, first):
        _ends(scene, operator, spec, first)
        _promoted(scene, operator, spec, first)


def test_a_canary_that_is_slower_is_taken_back_and_one_that_is_not_is_promoted(node: Node, node_namespace: str) -> None:
    with _served(node, node_namespace, serving()) as (scene, operator, spec, first):
        _taken_back(scene, operator, spec, first)
        _promoted(scene, operator, spec, first)


@contextmanager
def _served(node: Node, namespace: str, spec: dict[str, Any]) -> Iterator[tuple[Scene, Daemon, dict[str, Any], Object]]:
    """A serving under load, with one operator to the end (what it has seen of a canary goes with it). No request of it
    may fail."""
    scene = Scene(node, namespace, "chat", alone=True, lease_seconds=60)
    scene.install()
    with scene.operator() as operator:
        scene.kubectl("apply", "-f", "-", input=json.dumps(spec))
        scene.wait("the serving to be Ready", lambda: scene.condition("Ready")[0] == "True", START_SECONDS, operator)
        scene.wait("k to be 0", lambda: scene.condition("Tuned") == ("True", "Manual"), 30, operator)
        first = scene.pod()
        with scene.load(CONCURRENCY, str(TOKENS)) as report:
            yield scene, operator, spec, first
    print(report)
    assert report["failures"] == []
    assert report["answered"] > 0


def _ends(scene: Scene, operator: Daemon, spec: dict[str, Any], first: Object) -> None:
    """vLLM ends at once with an argument that it does not know."""
    broken = copy.deepcopy(spec)
    broken["spec"]["engine"]["extraArgs"] = ["--no-such-argument"]
    scene.kubectl("apply", "-f", "-", input=json.dumps(broken))
    scene.wait("a canary beside the pod", lambda: _tracks(scene) == ["canary", "stable"], 30, operator)
    rolled_back = scene.wait("it to be taken back", lambda: _true(scene, "RolledBack"), JUDGE_SECONDS, operator)
    assert rolled_back["reason"] == "CrashLoop"
    assert "engine.extraArgs" in rolled_back["message"]
    scene.wait("the canary to go", lambda: _tracks(scene) == ["stable"], 60, operator)
    assert scene.pod()["metadata"]["uid"] == first["metadata"]["uid"], "the pod that serves was not touched"


def _taken_back(scene: Scene, operator: Daemon, spec: dict[str, Any], first: Object) -> None:
    worse = copy.deepcopy(spec)
    worse["spec"]["speculation"]["maxTokens"] = HURTING_K
    scene.kubectl("apply", "-f", "-", input=json.dumps(worse))
    scene.wait("a canary beside the pod", lambda: _tracks(scene) == ["canary", "stable"], 30, operator)
    rolled_back = scene.wait("it to be taken back", lambda: _true(scene, "RolledBack"), JUDGE_SECONDS, operator)
    print(rolled_back["message"])
    assert rolled_back["reason"] in ("GoodputLost", "TpotIncreased", "TtftIncreased")
    assert "speculation.maxTokens" in rolled_back["message"]
    scene.wait("the canary to go", lambda: _tracks(scene) == ["stable"], 60, operator)
    assert scene.pod()["metadata"]["uid"] == first["metadata"]["uid"], "the pod that serves was not touched"


def _promoted(scene: Scene, operator: Daemon, spec: dict[str, Any], first: Object) -> None:
    better = copy.deepcopy(spec)
    better["spec"]["engine"]["env"].append({"name": "NOTHING_READS_THIS", "value": "1"})
    scene.kubectl("apply", "-f", "-", input=json.dumps(better))
    scene.wait("it to be promoted", lambda: _phase(scene) == "Promoting", JUDGE_SECONDS, operator)
    verdict = scene.status()["rollout"]["verdict"]
    print(verdict)
    assert verdict.startswith("goodput "), "it was measured"
    assert scene.status()["rollout"]["fields"] == ["engine.env[NOTHING_READS_THIS]"]
    assert _true(scene, "RolledBack") is None
    scene.wait("the rollout to end", lambda: _phase(scene) == "Steady", START_SECONDS, operator)
    scene.wait("one pod", lambda: _tracks(scene) == ["stable"], 60, operator)
    last = scene.pod()
    assert last["metadata"]["uid"] != first["metadata"]["uid"]
    environment = last["spec"]["containers"][0]["env"]
    assert "NOTHING_READS_THIS" in [variable["name"] for variable in environment]
    assert [container["restartCount"] for container in last["status"]["containerStatuses"]] == [0]


def _tracks(scene: Scene) -> list[str]:
    return sorted(pod["metadata"]["labels"][LABEL_TRACK] for pod in scene.pods())


def _phase(scene: Scene) -> str:
    return str(scene.status().get("rollout", {}).get("phase", ""))


def _true(scene: Scene, kind: str) -> Object | None:
    """The condition, where it is True."""
    found = {each["type"]: each for each in scene.status().get("conditions", [])}
    return found[kind] if found.get(kind, {}).get("status") == "True" else None
