"""Rollouts of real engines under a load that never stops: a canary that hurts is taken back, a good one is promoted,
and no request fails."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from paceline_operator.naming import LABEL_TRACK
from tests.e2e.scene import Object, Scene
from tests.e2e.serving import manifest
from tests.harness.node import Node
from tests.harness.processes import Daemon

pytestmark = [pytest.mark.node, pytest.mark.engine]

CONCURRENCY = 4
START_SECONDS = 180.0
JUDGE_SECONDS = 240.0
TUNING = {"intervalSeconds": 2, "mode": "Manual", "table": [{"fromRequests": 1, "k": 0}]}
HURTING_K = 12
"""Numbers without a rule are drafted for at each step, and nearly all drafts fail: the more, the worse."""


def serving() -> dict[str, Any]:
    """One pod, with room for another. The machine is a noisy one: what counts as a loss is no small thing."""
    found = manifest("chat", tuning=TUNING)
    found["spec"]["engine"] |= {"resources": {"requests": {"cpu": "500m"}}, "shutdownTimeoutSeconds": 30}
    canary = {
        "observeSeconds": 8,
        "deadlineSeconds": 600,
        "maxGoodputLossPercent": 30,
        "maxLatencyIncreasePercent": 300,
    }
    found["spec"]["rollout"] = {"canary": canary}
    return found


def test_a_canary_that_hurts_is_taken_back_a_good_one_is_promoted_and_no_request_fails(
    node: Node, node_namespace: str
) -> None:
    # One operator to the end: what it has seen of a canary goes with it.
    scene = Scene(node, node_namespace, "chat", alone=True, lease_seconds=60)
    scene.install()
    with scene.operator() as operator:
        spec = serving()
        scene.kubectl("apply", "-f", "-", input=json.dumps(spec))
        scene.wait("the serving to be Ready", lambda: scene.condition("Ready")[0] == "True", START_SECONDS, operator)
        scene.wait("k to be 0", lambda: scene.condition("Tuned") == ("True", "Manual"), 30, operator)
        first = scene.pod()
        with scene.load(CONCURRENCY) as report:
            _taken_back(scene, operator, spec, first)
            _promoted(scene, operator, spec, first)
    print(report)
    assert report["failures"] == []
    assert report["answered"] > 0


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
    print(scene.status()["rollout"]["verdict"])
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
