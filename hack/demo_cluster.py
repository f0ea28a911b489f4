"""`make demo-cluster`: Kubernetes on this machine, images, chart, an example, a load, k retuned, and the way out.

A node with containerd and kubelet in namespaces of its own (root is needed, nothing of the machine is changed), images
of operator and plugin built from the Dockerfile and run in pods, the chart installed by helm, examples/local.yaml
applied, and Prometheus with the chart's rules asked for all that the dashboards show. All of it ends with this process.

What no image is built for is vLLM: the engine's pod runs this machine's own, mounted into it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from hack.dashboards import queries
from hack.setup import images as bases
from hack.setup.common import ROOT, say
from tests.e2e.monitor import monitor
from tests.e2e.scene import Scene
from tests.e2e.serving import at_home
from tests.harness import images
from tests.harness.binaries import ensure_built
from tests.harness.builds import building
from tests.harness.chart import helm
from tests.harness.node import Node, unavailable
from tests.harness.prometheus import Prometheus

FOLDER = ROOT / "out" / "demo-cluster"
EXAMPLE = ROOT / "examples" / "local.yaml"
NAMESPACE = "paceline-demo"
TAG = "built"
OPERATOR, PLUGIN = (f"{images.REPOSITORY}/paceline-{target}" for target in ("operator", "plugin"))
VALUES = (
    f"image.repository={OPERATOR}",
    f"image.tag={TAG}",
    f"defaults.pluginImage={PLUGIN}:{TAG}",
    f"defaults.cpuEngineImage={images.HOST}",
)
CONCURRENCY = 6
PINNED = {"spec": {"tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 2}]}}}
"""As `paceline pin demo 2` writes it."""
UNKNOWN = {
    "paceline_serving_ratio_to_no_drafter": "known beside engines without a drafter, of which there are none here"
}
"""Series that cannot be there, with the reason."""
READY_SECONDS, DECIDED_SECONDS, CONFIRMED_SECONDS, ANSWER_SECONDS, GONE_SECONDS = 300.0, 420.0, 60.0, 60.0, 120.0
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


def example() -> dict[str, Any]:
    """The serving of examples/local.yaml; its second document is of `paceline local` alone."""
    return at_home(next(yaml.safe_load_all(EXAMPLE.read_text())))


def play(tale: Tale, node: Node, namespace: str, folder: Path) -> list[str]:
    """The demo on a node that runs. Answers the dashboards' queries that brought nothing."""
    serving = example()
    scene = Scene(node, namespace, serving["metadata"]["name"])
    with building(folder / "images") as builder:
        for reference, target in ((OPERATOR, "operator"), (PLUGIN, "plugin")):
            with tale.step(f"The image of the {target}, built without a network"):
                node.load(builder.archive(builder.build(target, "--layers"), f"{reference}:{TAG}"))
    with tale.step("helm install of charts/paceline"):
        scene.install(*VALUES)
        scene.kubectl("rollout", "status", "deployment/paceline", "--timeout=80s")
    with tale.step(f"kubectl apply of {EXAMPLE.relative_to(ROOT)}, and its engine's start"):
        scene.kubectl("apply", "-f", "-", input=json.dumps(serving))
        scene.wait("Ready", lambda: scene.condition("Ready")[0] == "True", READY_SECONDS)
    tale.say("kubectl get speculativeservings,pods\n" + scene.kubectl("get", "speculativeservings,pods").rstrip())
    with tale.step("helm test"):
        _helm(scene, "test", "--logs")
    (address,) = _addresses(scene)
    prometheus = monitor(scene, folder, address)
    try:
        with tale.step(f"{CONCURRENCY} requests at a time, until k is retuned"), scene.load(CONCURRENCY) as load:
            _decided(tale, scene)
            scene.wait("the engine to act by it", lambda: _acts(scene), CONFIRMED_SECONDS)
            # What is accepted at each position is known where drafts are made, and the tuner may well have ended that.
            scene.kubectl("patch", "speculativeserving", scene.name, "--type=merge", f"--patch={json.dumps(PINNED)}")
            missing = _missing(tale, scene, prometheus)
    finally:
        prometheus.stop()
    tale.say(f"Requests answered: {load['answered']}, failed: {len(load['failures'])}")
    for decision in reversed(scene.status()["decisions"]):
        tale.say(f"Decision: k {decision.get('fromK')} -> {decision['toK']}, {decision['message']}")
    with tale.step("kubectl delete of the serving, helm uninstall"):
        scene.kubectl("delete", "speculativeservings", "--all")
        _helm(scene, "uninstall")
        scene.wait("every pod to be gone", lambda: not scene.kubectl("get", "pods", "--output=name"), GONE_SECONDS)
    return missing


def _helm(scene: Scene, verb: str, *options: str) -> None:
    words = (verb, "paceline", "--namespace", scene.namespace, *options)
    helm(*words, kubeconfig=scene.node.kubeconfig, prefix=scene.node.prefix)


def _addresses(scene: Scene) -> Sequence[str]:
    """Of the operator's pods."""
    chosen = "--selector=app.kubernetes.io/component=operator"
    return scene.kubectl("get", "pods", chosen, "--output=jsonpath={.items[*].status.podIP}").split()


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


def _missing(tale: Tale, scene: Scene, prometheus: Prometheus) -> list[str]:
    """After a while: rules need a second scrape, a rate two; and an annotation is there for a minute."""
    deadline = time.monotonic() + ANSWER_SECONDS
    every = list(queries(scene.namespace, scene.name))
    silent = every
    while True:
        silent = [query for query in silent if not prometheus.query(query)]
        missing = [query for query in silent if not any(name in query for name in UNKNOWN)]
        tale.say(f"Prometheus answered {len(every) - len(silent)} of {len(every)} queries of the dashboards")
        if not missing or time.monotonic() > deadline:
            for name, reason in UNKNOWN.items():
                tale.say(f"Without an answer here: {name}, {reason}")
            return missing
        time.sleep(EVERY_SECONDS)


def main() -> int:
    """Command line; the exit status."""
    tale = Tale()
    reason = unavailable() or bases.unavailable()
    if reason is not None:
        say(f"This machine cannot run a node with images of its own: {reason}")
        return 1
    ensure_built(node=True)
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    node = Node(FOLDER)
    try:
        with tale.step("A control plane, a kubelet and cluster DNS"):
            node.start()
        node.kubectl("create", "namespace", NAMESPACE)
        missing = play(tale, node, NAMESPACE, FOLDER)
    finally:
        with tale.step("The end of everything that was started"):
            node.stop()
            shutil.rmtree(FOLDER / "images", ignore_errors=True)
        tale.say(f"Logs, those of pods too: {FOLDER.relative_to(ROOT)}/logs")
    for query in missing:
        tale.say(f"No answer: {query}")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main())
