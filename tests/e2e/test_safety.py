"""Faults of real engines in real pods: each is seen, told, recorded and answered, and a pod beside serves on.

They take minutes (`make test-long`). What they saw is written to docs/faults.md where PACELINE_UPDATE_FAULTS is set.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from hack.setup.common import cache_folder
from paceline_operator import naming
from tests.e2e.hub import ENDPOINT, SOURCE, served
from tests.e2e.scene import LOAD, Object, Scene
from tests.e2e.serving import MODEL, engine_environment, manifest
from tests.harness.faultbook import REAL, Seen, short, tell
from tests.harness.node import Node
from tests.harness.processes import Daemon

pytestmark = [pytest.mark.node, pytest.mark.engine, pytest.mark.long]

START_SECONDS = 240.0
FAULT_SECONDS = 240.0
TUNING = {"intervalSeconds": 2, "mode": "Manual", "table": [{"fromRequests": 1, "k": 2}]}
CLAIM = "small"
BROKEN = "/broken"
"""Where pods see the models that are damaged."""


def serving(folder: Path, **spec: Any) -> dict[str, Any]:
    found = manifest("chat", tuning=TUNING)
    # Preflight would find most of these before an engine starts: here engines are to end.
    found["spec"]["engine"] |= {"resources": {"requests": {"cpu": "200m"}}, "preflight": "Disabled"}
    pod = found["spec"]["engine"]["podTemplate"]["spec"]
    pod["containers"][0]["volumeMounts"].append({"name": "broken", "mountPath": BROKEN, "readOnly": True})
    pod["volumes"].append({"name": "broken", "hostPath": {"path": str(folder)}})
    found["spec"] |= spec
    return found


def damaged(folder: Path) -> None:
    """Models of which one thing is wrong each."""
    whole = cache_folder() / "models" / MODEL
    for name in ("weights", "tokenizer", "vocabulary"):
        target = folder / name
        target.mkdir()
        for file in whole.iterdir():
            if name != "weights" or file.suffix != ".safetensors":
                shutil.copy(file, target / file.name)
    with (whole / "model.safetensors").open("rb") as weights:
        (folder / "weights" / "model.safetensors").write_bytes(weights.read(1_000_000))
    (folder / "tokenizer" / "tokenizer.json").write_text('{"model": 7}')
    config = folder / "vocabulary" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"vocab_size": 32_000}))


class Stage:
    """The scene, its operator, and the pod that nothing is done to."""

    def __init__(self, scene: Scene, operator: Daemon) -> None:
        self.scene, self.operator = scene, operator

    def wait(self, what: str, probe: Callable[[], Any], seconds: float = FAULT_SECONDS) -> Any:
        return self.scene.wait(what, probe, seconds, self.operator)

    def ready(self) -> list[Object]:
        pods = [pod for pod in self.scene.pods() if "deletionTimestamp" not in pod["metadata"]]
        return [pod for pod in pods if _is_ready(pod)]

    def events(self, reason: str) -> list[Object]:
        listed = self.scene.kubectl("get", "events", f"--field-selector=reason={reason}", "--output=json")
        return list(json.loads(listed)["items"])

    @contextmanager
    def load(self, pod: Object) -> Iterator[Object]:
        """On one pod alone, past the Service."""
        url = f"http://{pod['status']['podIP']}:{naming.SERVING_PORT}/v1/completions"
        command = [*self.scene.node.prefix, sys.executable, str(LOAD), url, self.scene.name, "1", "32"]
        report: Object = {}
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield report
            finally:
                report |= json.loads(process.communicate()[0])

    def names(self, reason: str) -> set[str]:
        """Of the events that are there."""
        return {event["metadata"]["name"] for event in self.events(reason)}

    def seen(
        self, reason: str, before: set[str], began: float, patience: float = FAULT_SECONDS
    ) -> tuple[Object, float]:
        """The event, and the seconds until it was there."""

        def fresh() -> Object | None:
            return next((one for one in self.events(reason) if one["metadata"]["name"] not in before), None)

        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            if event := fresh():
                return event, time.monotonic() - began
            time.sleep(0.5)
        raise TimeoutError(f"no event {reason}: {json.dumps(self.scene.status().get('safety'))}")


def _is_ready(pod: Object) -> bool:
    found = {each["type"]: each["status"] for each in pod["status"].get("conditions", [])}
    return found.get("Ready") == "True"


def _restarts(pod: Object) -> int:
    return sum(int(one["restartCount"]) for one in pod["status"].get("containerStatuses", []))


def _again(stage: Stage, pod: Object, restarts: int) -> bool:
    return any(_restarts(one) > restarts for one in stage.ready() if _same(one, pod))


def _same(one: Object, other: Object) -> bool:
    return bool(one["metadata"]["uid"] == other["metadata"]["uid"])


def _process(pod: Object, name: str) -> int:
    """PID of a process of the pod whose command line begins with `name`, or has it."""
    uid = pod["metadata"]["uid"]
    for folder in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            group = (folder / "cgroup").read_text()
            if (uid in group or uid.replace("-", "_") in group) and name in (folder / "cmdline").read_text():
                return int(folder.name)
    raise LookupError(f"no process {name} in {pod['metadata']['name']}")


@contextmanager
def staged(node: Node, namespace: str, spec: dict[str, Any], pods: int) -> Iterator[Stage]:
    scene = Scene(node, namespace, "chat", alone=True, lease_seconds=60)
    scene.install()
    with scene.operator() as operator:
        stage = Stage(scene, operator)
        scene.kubectl("apply", "-f", "-", input=json.dumps(spec))
        stage.wait("ready pods", lambda: len(stage.ready()) == pods, START_SECONDS)
        yield stage


ENDS = (
    ("engine killed by SIGKILL", signal.SIGKILL, "VLLM::EngineCore"),
    ("engine killed by SIGSEGV", signal.SIGSEGV, "VLLM::EngineCore"),
    ("exit code 0", signal.SIGTERM, "vllm"),
)


def test_ends_and_a_hang_are_seen_and_told_and_two_ends_take_speculation_back(
    node: Node, node_namespace: str, tmp_path: Path
) -> None:
    safety = {"crashes": 16, "hangSeconds": 20}
    with staged(node, node_namespace, serving(tmp_path, replicas=2, safety=safety), 2) as stage:
        healthy = stage.ready()[0]
        for fault, number, process in ENDS:
            _ended(stage, healthy, fault, number, process)
        _hung(stage, healthy)
        _taken_back(stage)


def _victim(stage: Stage, healthy: Object) -> Object:
    def other() -> Object | None:
        found = [pod for pod in stage.ready() if pod["metadata"]["uid"] != healthy["metadata"]["uid"]]
        return found[0] if found else None

    found: Object = stage.wait("another ready pod", other, START_SECONDS)
    return found


def _ended(stage: Stage, healthy: Object, fault: str, number: signal.Signals, process: str) -> None:
    victim = _victim(stage, healthy)
    before, restarts = stage.names("EngineCrashed"), _restarts(victim)
    with stage.load(healthy) as report:
        time.sleep(2)
        began = time.monotonic()
        os.kill(_process(victim, process), number)
        event, seconds = stage.seen("EngineCrashed", before, began)
        stage.wait("the engine to be ready again", lambda: _again(stage, victim, restarts), START_SECONDS)
    assert report["failures"] == []
    assert report["answered"] > 0
    assert victim["metadata"]["name"] in event["message"]
    status, reason = stage.scene.condition("RemedyInForce")
    assert (status, reason) == ("False", "EngineCrashed")
    incident = event["message"].partition("incident ")[2].partition(";")[0]
    record = json.loads(
        json.loads(stage.scene.kubectl("get", "configmap", "chat-incidents", "-o=json"))["data"][incident]
    )
    print(json.dumps(record, indent=1))
    assert record["log"], "the last lines of the container that ended"
    how = event["message"].partition(": ")[2].partition(" at ")[0]
    code = event["message"].partition("exit code ")[2].partition(" ")[0]
    done = f"told and recorded; the kubelet starts it anew ({how}, exit code {code})"
    beside = f"0 of {report['answered']}"
    tell(fault, Seen(seconds, done, f"RemedyInForce {status}, {reason}", event["reason"], beside, REAL))


def _hung(stage: Stage, healthy: Object) -> None:
    victim = _victim(stage, healthy)
    with stage.load(healthy) as report:
        with stage.load(victim):
            time.sleep(6)
            began = time.monotonic()
            os.kill(_process(victim, "VLLM::EngineCore"), signal.SIGSTOP)
            event, seconds = stage.seen("EngineHung", set(), began)
            stage.seen("EngineReplaced", set(), began)
        stage.wait("another in its place", lambda: len(stage.ready()) == 2, START_SECONDS)
    assert report["failures"] == []
    assert victim["metadata"]["uid"] not in {pod["metadata"]["uid"] for pod in stage.ready()}
    status, reason = stage.scene.condition("RemedyInForce")
    tell("hang", Seen(
        seconds, "the pod is deleted and another takes its place", f"RemedyInForce {status}, {reason}",
        f"{event['reason']}, EngineReplaced", f"0 of {report['answered']}", REAL,
    ))  # fmt: skip


def _taken_back(stage: Stage) -> None:
    began = time.monotonic()
    patch = json.dumps({"spec": {"safety": {"crashes": 2}}})
    stage.scene.kubectl("patch", "speculativeserving", "chat", "--type=merge", f"--patch={patch}")
    event, seconds = stage.seen("BreakerOpen", set(), began)

    def plain() -> bool:
        pods = [pod for pod in stage.ready() if pod["metadata"]["labels"][naming.LABEL_TRACK] == "stable"]
        return len(pods) == 2 and not any("--speculative-config" in json.dumps(pod["spec"]) for pod in pods)

    stage.wait("all to serve without speculation", plain, START_SECONDS)
    status, reason = stage.scene.condition("RemedyInForce")
    assert status == "True"
    assert stage.scene.condition("Ready")[0] == "True"
    tell("two crashes", Seen(
        seconds, "all pods boot without speculation, one by one, and serve; a rung is tried on one pod",
        f"RemedyInForce {status}, {reason}", event["reason"], "not counted: all pods are replaced", REAL,
    ))  # fmt: skip


def _with(spec: dict[str, Any], change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    found = copy.deepcopy(spec)
    change(found["spec"])
    return found


def _model(name: str) -> Callable[[dict[str, Any]], None]:
    return lambda spec: spec["model"].update(source=f"{BROKEN}/{name}", servedName="chat")


def _vocabulary(spec: dict[str, Any]) -> None:
    del spec["speculation"]["ngram"]
    spec["speculation"] |= {"method": "draft_model", "draft": {"source": f"{BROKEN}/vocabulary"}}


def _looked_at(spec: dict[str, Any]) -> None:
    _vocabulary(spec)
    spec["engine"]["preflight"] = "Checks"


def _port(spec: dict[str, Any]) -> None:
    engine = spec["engine"]["podTemplate"]["spec"]["containers"][0]
    python = str(engine_environment() / "bin" / "python")
    other = {"name": "other", "image": spec["engine"]["image"], "volumeMounts": engine["volumeMounts"][:-2],
             "command": [python, "-m", "http.server", str(naming.SERVING_PORT), "--directory", "/tmp"]}  # fmt: skip
    spec["engine"]["podTemplate"]["spec"]["containers"].append(other)


def _memory(spec: dict[str, Any]) -> None:
    spec["engine"]["resources"]["limits"] = {"memory": "256Mi"}


def _disk(spec: dict[str, Any]) -> None:
    spec["model"] |= {"source": SOURCE, "servedName": "chat", "cache": {"claimName": CLAIM}}
    spec["engine"]["env"].append(ENDPOINT)
    pod = spec["engine"]["podTemplate"]["spec"]
    # The puller runs in the engine's image, which here is the host's own /usr.
    mounts = [mount for mount in pod["containers"][0]["volumeMounts"] if mount["name"] not in ("models", "broken")]
    pod["initContainers"] = [{"name": "paceline-pull", "volumeMounts": mounts}]


CANARIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "corrupted weights": _model("weights"),
    "wrong tokenizer": _model("tokenizer"),
    "draft of another vocabulary": _vocabulary,
    "port taken": _port,
    "out of memory": _memory,
    "the same, with preflight": _looked_at,
    "model token Secret missing": lambda spec: spec["model"].update(tokenSecretName="not-there"),
}
TURNS = (
    ("corrupted weights", "wrong tokenizer"),
    ("draft of another vocabulary",),
    ("the same, with preflight",),
    ("port taken",),
    ("out of memory",),
    ("model token Secret missing",),
)
"""What one stage is for: a run of all of them takes longer than one test may."""
NEVER_STARTED = {
    "model token Secret missing": "CanaryNotReady", "the same, with preflight": "CheckFailed",
    "claim too small for the weights": "CanaryNotReady",
}  # fmt: skip
"""Faults without an engine that ended, and the event that tells of them."""
STUCK_SECONDS = 420.0
"""Until the operator gives up on what a container waits for, and more."""


@pytest.mark.parametrize("faults", TURNS, ids=" and ".join)
def test_a_canary_that_cannot_start_is_named_recorded_and_taken_back(
    node: Node, node_namespace: str, tmp_path: Path, faults: tuple[str, ...]
) -> None:
    damaged(tmp_path)
    spec = serving(tmp_path, replicas=1, safety={"crashes": 16}, rollout={"canary": {"observeSeconds": 8}})
    with staged(node, node_namespace, spec, 1) as stage:
        (healthy,) = stage.ready()
        unseen = []
        for fault in faults:
            try:
                _canary(stage, spec, healthy, fault, CANARIES[fault])
            except (TimeoutError, AssertionError) as error:
                unseen.append(f"{fault}: {error}")
                _back(stage, spec)
    assert unseen == []


def test_a_canary_whose_model_cache_is_full_is_named_and_taken_back(
    node: Node, node_namespace: str, tmp_path: Path
) -> None:
    spec = serving(tmp_path, replicas=1, safety={"crashes": 16}, rollout={"canary": {"observeSeconds": 8}})
    hub, _ = served(node, tmp_path)
    try:
        with staged(node, node_namespace, spec, 1) as stage:
            _small(stage.scene, tmp_path)
            (healthy,) = stage.ready()
            _canary(stage, spec, healthy, "claim too small for the weights", _disk)
    finally:
        hub.stop()


def _small(scene: Scene, folder: Path) -> None:
    """A claim of a volume that is too small for the model: mounted where the node alone sees it, gone with the node."""
    held = folder / "claim"
    held.mkdir()
    assert scene.node.daemon is not None
    inside = ["nsenter", f"--mount=/proc/{scene.node.daemon.process.pid}/ns/mnt"]
    subprocess.run([*inside, "mount", "-t", "tmpfs", "-o", "size=64m,mode=777", "tmpfs", str(held)], check=True)
    size, modes = {"storage": "64Mi"}, ["ReadWriteMany"]
    volume = {"capacity": size, "accessModes": modes, "hostPath": {"path": str(held)}}
    named = {"storageClassName": "", "volumeName": scene.namespace}
    _apply(scene, "PersistentVolume", scene.namespace, volume)
    _apply(scene, "PersistentVolumeClaim", CLAIM, {"accessModes": modes, "resources": {"requests": size}, **named})


def _apply(scene: Scene, kind: str, name: str, spec: Object) -> None:
    body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
    scene.kubectl("apply", "-f", "-", input=json.dumps(body))


def test_an_engine_that_ends_with_its_own_exception_is_named_recorded_and_taken_back(
    node: Node, node_namespace: str, tmp_path: Path
) -> None:
    spec = serving(tmp_path, replicas=1, safety={"crashes": 16}, rollout={"canary": {"observeSeconds": 8}})
    with staged(node, node_namespace, spec, 1) as stage:
        (healthy,) = stage.ready()
        _exception(stage, spec, healthy)


def test_a_control_token_that_is_deleted_comes_back_and_the_pod_that_waits_for_it_starts(
    node: Node, node_namespace: str, tmp_path: Path
) -> None:
    """Of another serving: a kubelet keeps an immutable Secret that one of its pods mounts, whoever deletes it."""
    spec = serving(tmp_path, replicas=1)
    other = {**spec, "metadata": {"name": "lone"}}
    with staged(node, node_namespace, spec, 1) as stage:
        lone = Scene(node, node_namespace, "lone")
        stage.scene.kubectl("apply", "-f", "-", input=json.dumps(other))
        stage.wait("the other to serve", lambda: lone.condition("Ready")[0] == "True", START_SECONDS)
        (healthy,) = stage.ready()
        (name,) = (one["secret"]["secretName"] for one in lone.pod()["spec"]["volumes"] if "secret" in one)
        lone.kubectl("scale", "speculativeserving", "lone", "--replicas=0")
        stage.wait("its pod to go", lambda: not lone.pods())
        before = stage.names("ChildCreated")
        with stage.load(healthy) as report:
            lone.kubectl("delete", "secret", name)
            began = time.monotonic()
            lone.kubectl("scale", "speculativeserving", "lone", "--replicas=1")
            event, seconds = stage.seen("ChildCreated", before, began)
            status, reason = lone.condition("Available")
            stage.wait("it to serve again", lambda: lone.condition("Ready")[0] == "True", START_SECONDS)
        assert f"{name} again" in event["message"]
        assert status == "False"
        assert report["failures"] == []
        assert report["answered"] > 0
        tell("control token Secret missing", Seen(
            seconds, "the Secret is made anew, with the token that it had, and the pod starts",
            f"Available {status}, {reason}, until it is ready", event["reason"], f"0 of {report['answered']}", REAL,
        ))  # fmt: skip


def _canary(
    stage: Stage, spec: dict[str, Any], healthy: Object, fault: str, change: Callable[[dict[str, Any]], None]
) -> None:
    before = stage.names(NEVER_STARTED.get(fault, "EngineCrashed"))
    with stage.load(healthy) as report:
        began = time.monotonic()
        stage.scene.kubectl("apply", "-f", "-", input=json.dumps(_with(spec, change)))
        _told(stage, fault, before, began)
        _back(stage, spec)
    _beside(stage, fault, report, healthy)


def _back(stage: Stage, spec: dict[str, Any]) -> None:
    stage.scene.kubectl("apply", "-f", "-", input=json.dumps(spec))
    stage.wait("the canary to go", lambda: len(stage.scene.pods()) == 1)
    stage.wait("it to be told", lambda: stage.scene.condition("RolledBack")[0] == "False")


def _exception(stage: Stage, spec: dict[str, Any], healthy: Object) -> None:
    """vLLM's own: it answers /health, and dies at its first request."""

    def change(found: dict[str, Any]) -> None:
        found["speculation"]["extraConfig"] = {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_length": 2.0,
        }

    before = stage.names("EngineCrashed")
    with stage.load(healthy) as report:
        stage.scene.kubectl("apply", "-f", "-", input=json.dumps(_with(spec, change)))

        def canary() -> Object | None:
            found = [pod for pod in stage.ready() if pod["metadata"]["uid"] != healthy["metadata"]["uid"]]
            return found[0] if found else None

        found = stage.wait("the canary to be ready", canary, START_SECONDS)
        began = time.monotonic()
        with stage.load(found):
            _told(stage, "own exception", before, began)
        _back(stage, spec)
    _beside(stage, "own exception", report, healthy)


_FOUND: dict[str, tuple[float, str, str]] = {}


def _told(stage: Stage, fault: str, before: set[str], began: float) -> None:
    patience = STUCK_SECONDS if fault in NEVER_STARTED else FAULT_SECONDS
    event, seconds = stage.seen(NEVER_STARTED.get(fault, "EngineCrashed"), before, began, patience)
    rolled = stage.wait("it to be taken back", lambda: stage.scene.condition("RolledBack")[0] == "True")
    assert rolled
    _FOUND[fault] = (seconds, event["message"], stage.scene.condition("RolledBack")[1])


def _beside(stage: Stage, fault: str, report: Object, healthy: Object) -> None:
    seconds, message, reason = _FOUND[fault]
    print(fault, message)
    assert report["failures"] == []
    assert report["answered"] > 0
    assert _same(stage.scene.pod(), healthy), "the pod that serves was not touched"
    told = NEVER_STARTED.get(fault, "EngineCrashed")
    named = message.partition("restarts): ")[2].partition("; ")[0] or message.partition("taken back: ")[2]
    done, beside = f"the canary is taken back; named: {short(named)}", f"0 of {report['answered']}"
    events = ", ".join(dict.fromkeys([told, reason]))
    tell(fault, Seen(seconds, done, f"RolledBack True, {reason}", events, beside, REAL))
