"""`make demo-cluster`: Kubernetes on this machine, the chart, a serving with a real engine, a load, k retuned.

A node with containerd and kubelet in namespaces of its own (root is needed, nothing of the machine is changed), the
chart installed by helm, a serving applied, Prometheus with the chart's rules asked for all that the dashboards show.
All of it ends with this process. The operator runs as a process with the rights of the chart's service account, in the
node's network: no image is pulled or built.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hack.dashboards import queries
from hack.setup.common import ROOT, say
from tests.e2e.monitor import monitor, unanswered
from tests.e2e.scene import Scene
from tests.e2e.serving import manifest
from tests.harness.binaries import ensure_built
from tests.harness.node import Node, unavailable

FOLDER = ROOT / "out" / "demo-cluster"
NAMESPACE, NAME = "paceline-demo", "chat"
TUNING: dict[str, Any] = {"intervalSeconds": 2, "ladder": [4, 1, 0]}
CONCURRENCY = 6
READY_SECONDS, DECIDED_SECONDS, CONFIRMED_SECONDS, ANSWER_SECONDS = 300.0, 420.0, 60.0, 60.0
EVERY_SECONDS = 10.0
"""Between two lines about the serving."""


class Tale:
    """Lines with the seconds since the start."""

    def __init__(self) -> None:
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        say(f"[{time.monotonic() - self.began:4.0f} s] {text}")

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """What is done now, and how long it took."""
        self.say(f"{text} ...")
        began = time.monotonic()
        yield
        self.say(f"{text}: done in {time.monotonic() - began:.0f} s")


def play(tale: Tale, scene: Scene, folder: Path) -> list[str]:
    """The demo on a node that runs. Answers the dashboards' queries that brought nothing."""
    with tale.step("helm install of charts/paceline"):
        scene.install()
    with ExitStack() as stack:
        operator = stack.enter_context(scene.operator())
        with tale.step(f"kubectl apply of the serving {scene.name}, and its engine's start"):
            scene.kubectl("apply", "-f", "-", input=json.dumps(manifest(scene.name, tuning=TUNING)))
            scene.wait("Ready", lambda: scene.condition("Ready")[0] == "True", READY_SECONDS, operator)
        tale.say(scene.kubectl("get", "speculativeservings,pods").rstrip())
        prometheus = monitor(scene, folder)
        stack.callback(prometheus.stop)
        with tale.step(f"{CONCURRENCY} requests at a time, until k is retuned"), scene.load(CONCURRENCY) as load:
            _decided(tale, scene)
            scene.wait("the engine to act by it", lambda: _acts(scene), CONFIRMED_SECONDS, operator)
            missing = _missing(tale, scene, prometheus)
        tale.say(f"Requests answered: {load['answered']}, failed: {len(load['failures'])}")
        for decision in reversed(scene.status()["decisions"]):
            tale.say(f"Decision: k {decision.get('fromK')} -> {decision['toK']}, {decision['message']}")
        return missing


def _decided(tale: Tale, scene: Scene) -> None:
    deadline = time.monotonic() + DECIDED_SECONDS
    while time.monotonic() < deadline:
        status = scene.status()
        if status.get("decisions"):
            return
        (tuned, reason), steps = scene.condition("Tuned"), scene.state()["stepsByK"]
        tale.say(f"Tuned {tuned} ({reason}); steps by k: {json.dumps(steps)}")
        time.sleep(EVERY_SECONDS)
    raise TimeoutError(f"k was not retuned within {DECIDED_SECONDS:.0f} s: {json.dumps(scene.status(), indent=1)}")


def _acts(scene: Scene) -> bool:
    status, state = scene.status(), scene.state()
    k = status["decisions"][0]["toK"]
    return bool(status["policyGeneration"] == state["generation"] and state["stepsByK"].get(str(k), 0) > 0)


def _missing(tale: Tale, scene: Scene, prometheus: Any) -> list[str]:
    """After a while: rules need a second scrape, and a rate two."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        missing = list(unanswered(prometheus, scene))
        total = len(list(queries()))
        tale.say(f"Prometheus answers {total - len(missing)} of {total} queries of the dashboards")
        if not missing or time.monotonic() > deadline:
            return missing
        time.sleep(EVERY_SECONDS)


def main() -> int:
    """Command line; the exit status."""
    tale = Tale()
    reason = unavailable()
    if reason is not None:
        say(f"This machine cannot run a node: {reason}")
        return 1
    ensure_built(node=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    node = Node(FOLDER)
    try:
        with tale.step("A control plane, a kubelet and cluster DNS"):
            node.start()
        node.kubectl("create", "namespace", NAMESPACE)
        missing = play(tale, Scene(node, NAMESPACE, NAME), FOLDER)
    finally:
        with tale.step("The end of everything that was started"):
            node.stop()
    for query in missing:
        tale.say(f"No answer: {query}")
    tale.say(f"Logs: {FOLDER.relative_to(ROOT)}/logs")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
