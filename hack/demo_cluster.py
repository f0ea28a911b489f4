"""`make demo-cluster`: Kubernetes on this machine, images, chart, an example, a load, k retuned, and the way out.

A node with containerd and kubelet in namespaces of its own (root is needed, nothing of the machine is changed), images
of operator and plugin built from the Dockerfile and run in pods, the chart installed by helm, examples/local.yaml
applied, and Prometheus with the chart's rules asked for all that the dashboards show. All of it ends with this process.

The last line says how it went: passed; failed; or out of time, where a step did not come about in its time.

What no image is built for is vLLM: the engine's pod runs this machine's own, mounted into it.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from hack.dashboards import queries
from hack.setup import images as bases
from hack.setup.common import ROOT, say
from tests.e2e.monitor import monitor
from tests.e2e.scene import Object, Scene
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
NO_DRAFTER, TO_K0, ACCEPTED = (
    f"paceline_serving_{name}" for name in ("ratio_to_no_drafter", "ratio_to_k0", "accepted_share")
)
READY_SECONDS, DECIDED_SECONDS, CONFIRMED_SECONDS, ANSWER_SECONDS, GONE_SECONDS = 300.0, 420.0, 60.0, 120.0, 120.0
EVERY_SECONDS = 10.0
"""Between two lines about the serving; long enough for a scrape of what its status said at the first."""


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
        try:
            yield
        except BaseException:
            self.say(f"{text}: not done after {time.monotonic() - began:.0f} s")
            raise
        self.say(f"{text}: done in {time.monotonic() - began:.0f} s")


def example() -> dict[str, Any]:
    """The serving of examples/local.yaml; its second document is of `paceline local` alone."""
    return at_home(next(yaml.safe_load_all(EXAMPLE.read_text())))


def _accepts(status: Object) -> bool:
    """Whether it tells what is accepted at each position, at the k and load in force."""
    here = [each for each in status.get("buckets", ()) if each["fromRequests"] == status.get("loadRequests")]
    return any(row.get("survivalPermille") for each in here for row in each["candidates"] if row["k"] == each["k"])


UNSURE: dict[str, tuple[Callable[[Object], bool], str]] = {
    NO_DRAFTER: (
        lambda status: status.get("ratioToNoDrafterPermille") is not None,
        "known beside engines without a drafter, of which there are none here",
    ),
    TO_K0: (
        lambda status: status.get("ratioToK0Permille") is not None,
        "known at k=0, or after four bursts of k=0 under one load: a matter of time",
    ),
    ACCEPTED: (_accepts, "known once the k in force was measured at the load that is there: a matter of time"),
}
"""Series that are there when a status says so, and what they wait for."""


def lacking(silent: Sequence[str], status: Object) -> tuple[list[str], dict[str, str]]:
    """Of queries without an answer: those that should have one by `status`, and series it does not know, with why."""
    unknown = {name: why for name, (known, why) in UNSURE.items() if not known(status)}
    wrong = [query for query in silent if not any(name in query for name in unknown)]
    return wrong, {name: why for name, why in unknown.items() if any(name in query for query in silent)}


def play(tale: Tale, node: Node, namespace: str, folder: Path) -> list[str]:
    """The demo on a node that runs. Answers the dashboards' queries that wrongly brought nothing. Pods' logs are in
    `folder`/pods in the end, however it ends."""
    scene = Scene(node, namespace, example()["metadata"]["name"])
    try:
        _install(tale, scene, folder)
        wrong = _watch(tale, scene, folder)
    finally:
        # With a pod its logs go.
        _keep(scene, folder / "pods")
    with tale.step("kubectl delete of the serving, helm uninstall"):
        scene.kubectl("delete", "speculativeservings", "--all")
        _helm(scene, "uninstall")
        scene.wait("every pod to be gone", lambda: not scene.kubectl("get", "pods", "--output=name"), GONE_SECONDS)
    return wrong


def _install(tale: Tale, scene: Scene, folder: Path) -> None:
    """Images, chart and serving."""
    with building(folder / "images") as builder:
        for reference, target in ((OPERATOR, "operator"), (PLUGIN, "plugin")):
            with tale.step(f"The image of the {target}, built without a network"):
                scene.node.load(builder.archive(builder.build(target, "--layers"), f"{reference}:{TAG}"))
    with tale.step("helm install of charts/paceline"):
        scene.install(*VALUES)
        scene.kubectl("rollout", "status", "deployment/paceline", "--timeout=80s")
    with tale.step(f"kubectl apply of the serving of {EXAMPLE.relative_to(ROOT)}, and its engine's start"):
        scene.kubectl("apply", "-f", "-", input=json.dumps(example()))
        scene.wait("Ready", lambda: scene.condition("Ready")[0] == "True", READY_SECONDS)
    tale.say("kubectl get speculativeservings,pods\n" + scene.kubectl("get", "speculativeservings,pods").rstrip())
    with tale.step("helm test"):
        _helm(scene, "test", "--logs")


def _watch(tale: Tale, scene: Scene, folder: Path) -> list[str]:
    """A load, k retuned, and the dashboards' queries."""
    every = list(queries(scene.namespace, scene.name))
    pinned = [query for query in every if ACCEPTED in query]
    (address,) = _addresses(scene)
    prometheus = monitor(scene, folder, address)
    try:
        with tale.step(f"{CONCURRENCY} requests at a time, until k is retuned"), scene.load(CONCURRENCY) as load:
            _decided(tale, scene)
            scene.wait("the engine to act by it", lambda: _acts(scene), CONFIRMED_SECONDS)
            wrong = _unanswered(tale, scene, prometheus, [query for query in every if query not in pinned])
            # What is accepted at each position is known where drafts are made, and the tuner may well have ended that.
            # Not before: a pin ends the bursts that tell what k=0 would do.
            scene.kubectl("patch", "speculativeserving", scene.name, "--type=merge", f"--patch={json.dumps(PINNED)}")
            tale.say("k is pinned to 2")
            wrong += _unanswered(tale, scene, prometheus, pinned)
    finally:
        prometheus.stop()
    tale.say(f"Requests answered: {load['answered']}, failed: {len(load['failures'])} {load['failures'][:1] or ''}")
    for decision in reversed(scene.status()["decisions"]):
        tale.say(f"Decision: k {decision.get('fromK')} -> {decision['toK']}, {decision['message']}")
    return wrong


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
    late = TimeoutError(f"k was not retuned within {DECIDED_SECONDS:.0f} s")
    late.add_note(f"status: {json.dumps(scene.status(), indent=1)}")
    raise late


def _acts(scene: Scene) -> bool:
    status, state = scene.status(), scene.state()
    k = status["decisions"][0]["toK"]
    return bool(status["policyGeneration"] == state["generation"] and state["stepsByK"].get(str(k), 0) > 0)


def _unanswered(tale: Tale, scene: Scene, prometheus: Prometheus, asked: Sequence[str]) -> list[str]:
    """Those of `asked` that wrongly bring nothing.

    Not at once: rules need a second scrape, a rate two; and an annotation is there for a minute, so that one answer is
    enough.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    silent = asked
    while True:
        status = scene.status()
        time.sleep(EVERY_SECONDS)
        silent = [query for query in silent if not prometheus.query(query)]
        tale.say(f"Prometheus answered {len(asked) - len(silent)} of {len(asked)} queries of the dashboards")
        if all(NO_DRAFTER in query for query in silent) or time.monotonic() > deadline:
            break
    wrong, unknown = lacking(silent, status)
    for name, why in unknown.items():
        tale.say(f"Without an answer, and rightly: {name} is {why}")
    for query in wrong:
        tale.say(f"No answer: {query}")
    for entry in prometheus.query("max_over_time(up[1m]) == 0") if wrong else ():
        tale.say(f"Not scraped for a minute: {entry['metric']['job']}. On a busy machine that is a matter of time")
    return wrong


def _keep(scene: Scene, folder: Path) -> None:
    """Copies the logs of the scene's pods."""
    for pod in (scene.node.logs_dir / "pods").glob(f"{scene.namespace}_*"):
        # A log may be rotated or deleted meanwhile; the others are copied.
        with suppress(OSError):
            shutil.copytree(pod, folder / pod.name)


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
        wrong = play(tale, node, NAMESPACE, FOLDER)
        last = f"failed: {len(wrong)} queries of the dashboards bring nothing, see above" if wrong else "passed"
    except TimeoutError as error:
        last = f"out of time: {error}. Busy cores alone may do that; the logs tell whether something is stuck"
        for note in getattr(error, "__notes__", ()):
            tale.say(note)
    finally:
        with tale.step("The end of everything that was started"):
            node.stop()
            shutil.rmtree(FOLDER / "images", ignore_errors=True)
        where = FOLDER.relative_to(ROOT)
        tale.say(f"Logs: of the node {where}/logs, of pods {where}/pods, of Prometheus {where}/prometheus.log")
    tale.say(f"demo-cluster {last}")
    return int(last != "passed")


if __name__ == "__main__":
    sys.exit(main())
