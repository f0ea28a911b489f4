"""The main job on real parts: a serving is applied, a real vLLM speculates in a real pod, k follows the load without a
restart, a dead operator changes nothing, and a real Prometheus has every series that is asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.leadership import LEASE_NAME
from tests.e2e.monitor import ABSENT, SERIES, asked, monitor, scraped
from tests.e2e.scene import Scene
from tests.e2e.serving import manifest
from tests.harness.node import Node
from tests.harness.processes import Daemon
from tests.harness.prometheus import Prometheus

pytestmark = [pytest.mark.node, pytest.mark.engine]

LADDER = [4, 1, 0]
CONCURRENCY = 6
CONFIRMING_STEPS = 30
START_SECONDS = 180.0
SCRAPED_SECONDS = 180.0
"""The ratio to k=0 comes last: a k may be in force before k=0 was measured, whose bursts come a few a minute."""
TUNE_SECONDS = 180.0


def test_k_follows_the_load_and_outlives_the_operator(node: Node, node_namespace: str, tmp_path: Path) -> None:
    scene = Scene(node, node_namespace, "chat")
    scene.install()
    tuning = {"intervalSeconds": 2, "ladder": LADDER}
    with scene.operator() as operator:
        scene.kubectl("apply", "-f", "-", input=json.dumps(manifest("chat", tuning=tuning)))
        scene.wait("the serving to be Ready", lambda: scene.condition("Ready")[0] == "True", START_SECONDS, operator)
        scene.wait("it to be Observing", lambda: scene.condition("Tuned") == ("False", "Observing"), 30, operator)
        booted, pod = scene.state(), scene.pod()
        assert (booted["generation"], booted["table"][CONCURRENCY]) == (0, max(LADDER))
        prometheus = monitor(scene, tmp_path)
        with scene.load(CONCURRENCY) as report:
            decided = _k_is_decided(scene, operator)
            try:
                _every_series_is_there(scene, prometheus)
            finally:
                prometheus.stop()
            operator.stop(grace_seconds=0)
            _engine_serves_on(scene, decided)
            with scene.operator() as successor:
                _operator_carries_on(scene, successor, decided)
    assert report["failures"] == []
    assert report["answered"] > 0
    same = scene.pod()
    assert same["metadata"]["uid"] == pod["metadata"]["uid"]
    assert [container["restartCount"] for container in same["status"]["containerStatuses"]] == [0]
    assert scene.state()["bootId"] == booted["bootId"]


def _k_is_decided(scene: Scene, operator: Daemon) -> dict[str, Any]:
    """A decision is in status, acknowledged by the pod, and the engine's own counters confirm it."""

    def confirmed() -> dict[str, Any] | None:
        status, state = scene.status(), scene.state()
        if not status.get("decisions") or status["policyGeneration"] != state["generation"]:
            return None
        k = status["decisions"][0]["toK"]
        steps = state["stepsByK"].get(str(k), 0)
        return {"k": k, "status": status, "state": state} if steps >= CONFIRMING_STEPS else None

    found: dict[str, Any] = scene.wait("a decision that the engine acts by", confirmed, TUNE_SECONDS, operator)
    status, state, k = found["status"], found["state"], found["k"]
    print([decision["message"] for decision in status["decisions"]])
    assert (k in LADDER, k == max(LADDER)) == (True, False), "prompt lookup that fails cannot be worth the most drafts"
    assert state["generation"] >= 1
    assert state["table"][CONCURRENCY] == k
    assert status["acknowledgedPods"] == 1
    assert status["tier"] == "Live"
    assert status["decisions"][0]["reason"] in ("Load", "Acceptance", "Cost")
    rows = {row["fromRequests"]: row["k"] for row in status["table"]}
    assert rows[max(start for start in rows if start <= CONCURRENCY)] == k
    assert scene.condition("SpeculationEffective")[1]
    return found


def _every_series_is_there(scene: Scene, prometheus: Prometheus) -> None:
    """That dashboards, rules and pages name. Rates need two scrapes, rules one more."""
    wanted = asked() - set(ABSENT)

    def complete() -> bool:
        if missing := wanted - scraped(prometheus):
            raise LookupError(f"missing: {', '.join(sorted(missing))}")
        return True

    scene.wait("every series", complete, SCRAPED_SECONDS, prometheus.daemon)
    if os.environ.get("PACELINE_UPDATE_GOLDEN"):
        SERIES.write_text("".join(f"{name}\n" for name in sorted(wanted)))
    assert set(SERIES.read_text().split()) == wanted


def _engine_serves_on(scene: Scene, decided: dict[str, Any]) -> None:
    """Nobody is there to tune: the last table stays and is used."""
    before = scene.state()
    assert before["generation"] >= decided["state"]["generation"]
    steps = sum(before["stepsByK"].values())
    scene.wait("steps without an operator", lambda: sum(scene.state()["stepsByK"].values()) > steps + 50, 60)
    after = scene.state()
    assert (after["generation"], after["table"]) == (before["generation"], before["table"])


def _operator_carries_on(scene: Scene, operator: Daemon, decided: dict[str, Any]) -> None:
    """A new process takes over what is there, history included, and its next table is a later generation."""
    before = scene.state()
    scene.wait("the Lease", lambda: _lease_holder(scene) == operator.name, 60, operator)
    k = next(k for k in LADDER if k not in (before["table"][CONCURRENCY], max(LADDER)))  # it may have changed again
    patch = {"spec": {"tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": k}]}}}
    scene.kubectl("patch", "speculativeserving", scene.name, "--type=merge", f"--patch={json.dumps(patch)}")
    used = before["stepsByK"].get(str(k), 0) + CONFIRMING_STEPS
    scene.wait(f"steps with k={k}", lambda: scene.state()["stepsByK"].get(str(k), 0) > used, TUNE_SECONDS, operator)
    state = scene.state()
    assert state["generation"] > before["generation"]
    assert set(state["table"]) == {k}
    scene.wait("status to tell it", lambda: scene.condition("Tuned") == ("True", "Manual"), 30, operator)
    status = scene.status()
    assert (status["policyGeneration"], status["acknowledgedPods"]) == (state["generation"], 1)
    assert status["table"] == [{"fromRequests": 1, "k": k}]
    told = [decision["message"] for decision in status["decisions"]]
    assert decided["status"]["decisions"][0]["message"] in told


def _lease_holder(scene: Scene) -> str:
    return scene.kubectl("get", "lease", LEASE_NAME, "--output=jsonpath={.spec.holderIdentity}")
