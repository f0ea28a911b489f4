"""The breaker, the ladder and hung pods under operators that are killed, on a real API server with its own controllers.

What a kubelet and an engine would do is done by stand-ins. Engines follow the grid published in vllm#59970: with
adaptive verification and full graphs of mixed steps they die soon, with either changed they stay up.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.protocol import Gauges
from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from paceline_operator.clock import rfc3339
from paceline_operator.effective.declared import of_pod
from tests.cluster.operators import KEY, Object, Operator, Place, account, start, wait_for_leader
from tests.cluster.relay import LEASE_SECONDS, Relay
from tests.cluster.shell import Shell
from tests.cluster.stand_ins import SPEC, AtRest, control, metrics, token
from tests.harness.controlplane import ControlPlane
from tests.harness.faultbook import STAND_IN, Seen, tell

pytestmark = pytest.mark.cluster

GRID: dict[str, Any] = {
    **SPEC,
    "replicas": 2,
    "speculation": {
        "method": "eagle3", "draft": {"source": "hf://owner/draft"}, "maxTokens": 5, "adaptiveVerification": "Enabled",
    },
    "engine": {**SPEC["engine"], "cudagraphMode": "FULL_AND_PIECEWISE"},
    "safety": {"stableSeconds": 10, "hangSeconds": 10},
}  # fmt: skip
LIFE_SECONDS = 1.0
"""Until an engine of the bad corner of the grid dies."""
TRIAL_SECONDS = 120.0
"""Until a rung is on trial: a canary fails, and another starts."""


class Busy(AtRest):
    """With requests, and tokens as it is told."""

    running, tokens = 0, 0

    def gauges(self) -> Gauges:
        return super().gauges().model_copy(update={"running": self.running, "generation_tokens": self.tokens})


CLOCK = """\
import os
from datetime import timedelta

from paceline_operator import clock

of_the_machine = clock.SystemClock.now


def now(self):
    try:
        with open(os.environ["CLOCK_FILE"]) as file:
            return of_the_machine(self) + timedelta(seconds=float(file.read()))
    except (OSError, ValueError):
        return of_the_machine(self)


clock.SystemClock.now = now
"""
"""As sitecustomize of an operator: its wall clock is off by what a file says."""


class Grid:
    """A kubelet: pods become ready, and those whose engine cannot live end and are started again."""

    def __init__(self, place: Place, name: str, dies: Callable[[Object], bool]) -> None:
        self.place, self.name, self.dies = place, name, dies
        self.ready: dict[str, float] = {}
        self.engines: dict[str, Busy] = {}
        self.boots: dict[str, str] = {}
        """Every pod that ever ran -> track and what it was booted with."""
        self._ports: dict[str, ExitStack] = {}
        self._stop = threading.Event()
        self._net = f"127.{random.randint(64, 250)}.{random.randint(1, 250)}"

    def run(self) -> None:
        hosts = itertools.count(1)
        with ExitStack() as stack:
            secret = token(self.place, f"{self.name}-token-{key_version(KEY.encode())}")
            while not self._stop.wait(0.2):
                for pod in self.pods():
                    name = pod["metadata"]["name"]
                    with suppress(AssertionError):  # it may be gone again
                        if name not in self.ready:
                            engine = self.engines[name] = Busy()
                            address = f"{self._net}.{next(hosts)}"
                            port = self._ports[name] = ExitStack()
                            stack.callback(port.close)
                            port.enter_context(control(address, engine, (secret,)))
                            self.boots[name] = f"{pod['metadata']['labels'][naming.LABEL_TRACK]} {of_pod(pod)}"
                            self._told(name, address)
                            self.ready[name] = time.monotonic()
                        elif self.dies(pod) and time.monotonic() - self.ready[name] > LIFE_SECONDS:
                            self._died(pod)

    def pods(self) -> list[Object]:
        pods = [pod for pod in self.place.list("Pod") if "deletionTimestamp" not in pod["metadata"]]
        return [pod for pod in pods if pod["status"].get("phase") != "Failed"]

    def _told(self, name: str, address: str) -> None:
        condition = {"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(datetime.now(UTC))}
        status = {"name": "engine", "restartCount": 0, "ready": True, "image": "i", "imageID": "i",
                  "state": {"running": {"startedAt": rfc3339(datetime.now(UTC))}}}  # fmt: skip
        body = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
        self.place.patch("Pod", name, {"status": {**body, "containerStatuses": [status]}}, "status")

    def address(self, name: str) -> str:
        pod = self.place.get("Pod", name) or {}
        return str(pod["status"]["podIP"])

    def shut(self, name: str) -> None:
        """The control port of a pod answers nobody from now on."""
        self._ports[name].close()

    def ended(self, name: str, reason: str, message: str) -> None:
        """The kubelet ended the whole pod, which stays."""
        now = rfc3339(datetime.now(UTC))
        ended = {"reason": "Error", "exitCode": 137, "startedAt": now, "finishedAt": now}
        status = {"name": "engine", "restartCount": 0, "ready": False, "image": "i", "imageID": "i",
                  "state": {"terminated": ended}}  # fmt: skip
        body = {"phase": "Failed", "reason": reason, "message": message, "containerStatuses": [status]}
        self.place.patch("Pod", name, {"status": body}, "status")

    def _died(self, pod: Object) -> None:
        """As a crashed `vllm serve`: exit code 0."""
        name = pod["metadata"]["name"]
        (status,) = pod["status"]["containerStatuses"]
        now = rfc3339(datetime.now(UTC))
        said = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
        ended = {"reason": "Completed", "exitCode": 0, "startedAt": status["state"]["running"]["startedAt"],
                 "finishedAt": now, "message": said}  # fmt: skip
        status |= {"restartCount": status["restartCount"] + 1, "lastState": {"terminated": ended}}
        status["state"] = {"running": {"startedAt": now}}
        self.place.patch("Pod", name, {"status": {"containerStatuses": [status]}}, "status")
        self.ready[name] = time.monotonic()

    @contextmanager
    def running(self) -> Iterator[Grid]:
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()


def published(pod: Object) -> bool:
    declared = of_pod(pod)
    return declared is not None and declared.verification and "FULL_DECODE_ONLY" not in json.dumps(pod["spec"])


def safety(place: Place) -> Object:
    found: Object = (place.get(naming.KIND_SERVING, "chat") or {}).get("status", {}).get("safety", {})
    return found


def test_the_published_grid_is_taken_to_the_right_rung_though_operators_are_killed(
    relay: Relay, tmp_path: Path
) -> None:
    place = relay.place
    place.serve("chat", **GRID)
    with Grid(place, "chat", published).running() as grid:
        opened = place.condition("chat", "RemedyInForce", "BreakerOpen")
        assert "2 speculative engines died within 30 minutes" in opened["message"]
        relay.kill()
        place.condition("chat", "RemedyInForce", "RemedyTried")
        assert [boot for boot in grid.boots.values() if boot == "stable no speculation"], "service first"
        assert place.conditions("chat")["Ready"]["status"] == "True"
        relay.kill()
        told = place.condition("chat", "RemedyInForce", "StableUnderChange")
        assert "stable under this change: adaptive verification absent" in told["message"]
        assert "not proven" in told["message"]
        place.condition("chat", "Progressing", "Settled")
        place.wait("the canary to go", lambda: place.get("Deployment", "chat-canary") is None)
        found = safety(place)
        assert (found["breaker"], found["phase"], found["rung"], found["tried"]) == (
            "Closed", "Stable", "WithoutAdaptiveVerification", [],
        )  # fmt: skip
        declared = [of_pod(pod) for pod in grid.pods()]
        assert [(one.max_k, one.verification) for one in declared if one] == [(5, False)] * 2
        canaries = [boot for boot in grid.boots.values() if boot.startswith("canary")]
        assert len(canaries) == 1, "one change, on one pod"
        for reason in ("EngineCrashed", "BreakerOpen", "StableUnderChange"):
            assert place.events(reason), reason
        spec = (place.get(naming.KIND_SERVING, "chat") or {})["spec"]
        assert spec["speculation"]["adaptiveVerification"] == "Enabled", "the user's word is not written over"
        before, shell = place.children(), Shell(place.cluster, place.namespace, tmp_path)
        _records(place, shell)
        assert place.children() == before
        shell("retry", "chat")
        place.condition("chat", "RemedyInForce", "NoFault")


def stubborn(pod: Object) -> bool:
    """An engine that lives under the last rung with speculation alone."""
    declared = of_pod(pod)
    return declared is not None and bool(declared.method) and "FULL_DECODE_ONLY" not in json.dumps(pod["spec"])


@pytest.mark.long
def test_a_standby_that_takes_over_within_a_trial_tries_nothing_twice_and_one_that_wakes_up_does_nothing(
    crds: ControlPlane, namespace: str
) -> None:
    place, failing = Place(crds, namespace), threading.Event()
    config = account(crds, namespace, watch=namespace)

    def operator(name: str) -> Operator:
        return start(crds, f"{name}-{namespace}", namespace, config, watch=namespace, lease_seconds=LEASE_SECONDS)

    def dies(pod: Object) -> bool:
        return stubborn(pod) and (not _is_canary(pod) or failing.is_set())

    with ExitStack() as ends:
        first, second = operator("first"), operator("second")
        for one in (first, second):
            ends.callback(one.daemon.stop)
        leader, _ = wait_for_leader(first, second)
        standby = second if leader is first else first
        place.serve("chat", **GRID)
        grid = ends.enter_context(Grid(place, "chat", dies).running())
        _on_trial(place, grid, "WithoutAdaptiveVerification", 1)
        os.kill(leader.daemon.process.pid, signal.SIGSTOP)
        ends.callback(os.kill, leader.daemon.process.pid, signal.SIGCONT)
        failing.set()
        place.wait("its engine to end", lambda: any(_is_canary(pod) and _ends(pod) for pod in grid.pods()))
        failing.clear()
        wait_for_leader(standby)
        _on_trial(place, grid, "FewerTokens", 2)
        os.kill(leader.daemon.process.pid, signal.SIGCONT)
        place.wait("it to find out", lambda: "Stepping down" in leader.log())
        failing.set()
        _on_trial(place, grid, "DecodeOnlyGraphs", 3)
        standby.daemon.process.kill()
        wait_for_leader(leader)
        told = place.condition("chat", "RemedyInForce", "StableUnderChange")
        place.condition("chat", "Progressing", "Settled")
        found = safety(place)
        assert found["tried"] == ["WithoutAdaptiveVerification", "FewerTokens"], told
        assert (found["breaker"], found["rung"]) == ("Closed", "DecodeOnlyGraphs")
        canaries = [boot for boot in grid.boots.values() if boot.startswith("canary")]
        assert len(canaries) == len(set(canaries)) == 3, "each rung on one pod, once"
        failed = {event["message"].partition(" ")[0] for event in place.events("RemedyFailed")}
        assert failed == {"WithoutAdaptiveVerification", "FewerTokens"}
        for one in (first, second):
            assert "Traceback" not in one.log(), one.log()


def _is_canary(pod: Object) -> bool:
    return bool(pod["metadata"]["labels"][naming.LABEL_TRACK] == naming.TRACK_CANARY)


def _ends(pod: Object) -> int:
    return sum(int(one["restartCount"]) for one in pod.get("status", {}).get("containerStatuses", []))


def _on_trial(place: Place, grid: Grid, rung: str, canaries: int) -> None:
    """The rung is the one in trial, and its pod runs."""

    def there() -> bool:
        pods = [boot for boot in list(grid.boots.values()) if boot.startswith("canary")]
        found = safety(place)
        return len(pods) == canaries and (found.get("rung"), found.get("phase")) == (rung, "Trial")

    place.wait(f"a pod under {rung}", there, TRIAL_SECONDS)


def _records(place: Place, shell: Shell) -> None:
    rows = shell("incidents", "list", "chat").splitlines()
    assert len(rows) >= 3
    assert "adaptive-verification-illegal-access" in rows[1]
    newest = json.loads(shell("incidents", "list", "chat", "-o", "json"))[0]
    text = shell("incidents", "show", "chat", newest["id"])
    assert "need not be where it arose" in text
    assert "exitCode: 0" in text
    bundle = json.loads(shell("incidents", "export", "chat"))
    assert bundle["safety"]["rung"] == "WithoutAdaptiveVerification"
    assert bundle["incidents"][0] == newest
    assert "no incident x" in shell("incidents", "show", "chat", "x", status=2)
    owner = place.child("ConfigMap", "chat-incidents")["metadata"]["ownerReferences"][0]
    assert owner["kind"] == naming.KIND_SERVING


def test_a_pod_that_stands_still_is_replaced_and_one_that_moves_slowly_is_not(relay: Relay) -> None:
    place = relay.place
    place.serve("chat", **{**GRID, "safety": {"hangSeconds": 10, "crashes": 9}})
    with Grid(place, "chat", lambda _: False).running() as grid:
        place.wait("two pods", lambda: len(grid.ready) == 2)
        stands, slow = sorted(grid.ready)
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in grid.pods()}
        for engine in (grid.engines[stands], grid.engines[slow]):
            engine.running, engine.tokens = 3, 100
        began = time.monotonic()
        while not place.events("EngineReplaced"):
            assert time.monotonic() - began < 60, place.conditions("chat")
            grid.engines[slow].tokens += 1
            time.sleep(4)
        assert time.monotonic() - began >= 10
        (told,) = place.events("EngineHung")
        assert stands in told["message"]
        place.wait("another pod", lambda: len(grid.ready) == 3 and len(grid.pods()) == 2)
        left = {pod["metadata"]["uid"] for pod in grid.pods()}
        assert uids[slow] in left
        assert uids[stands] not in left
        record = json.loads(next(iter(place.child("ConfigMap", "chat-incidents")["data"].values())))
        assert (record["kind"], record["pod"], record["load"]) == ("Hang", stands, 3)


def test_pods_that_are_evicted_are_told_in_the_kubelet_s_words_and_open_no_breaker(relay: Relay) -> None:
    place = relay.place
    place.serve("chat", **GRID)
    with Grid(place, "chat", lambda _: False).running() as grid:
        place.wait("two pods", lambda: len(grid.ready) == 2)
        gone = [pod["metadata"]["name"] for pod in grid.pods()]
        full = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. "
        for name, reason, message in zip(gone, ("Evicted", "Preempting"), (full, "Preempted"), strict=True):
            grid.ended(name, reason, message)
        place.wait("two others", lambda: len(grid.ready) == 4)
        place.wait("both to be told", lambda: len(safety(place).get("deaths", [])) == 2)
        relay.kill()
        place.wait("whoever follows", lambda: place.conditions("chat")["Ready"]["status"] == "True")
        told = {(one["pod"], one["kind"], one["fingerprint"]) for one in safety(place)["deaths"]}
        assert told == {(gone[0], "Evicted", "storage-limit"), (gone[1], "Evicted", "evicted")}
        assert safety(place)["breaker"] == "Closed"
        said = " ".join(event["message"] for event in place.events("EngineCrashed"))
        assert all(f"{name}: engine ended" in said for name in gone)


PAGES: dict[str, tuple[str, str]] = {
    "/metrics garbage": ("\x00\x01vllm:{{{\n" * 50, "EngineSeriesMissing"),
    "/metrics of 10 MB": ('vllm:num_requests_running{engine="0"} 1\n' * 250_000, "MalformedAnswer"),
    "/metrics nothing": ("", "EngineSeriesMissing"),
}
"""What a page says, and the reason that it is told by."""


def test_pages_of_metrics_that_are_none_are_told_and_nothing_else_happens(relay: Relay) -> None:
    place = relay.place
    place.serve("chat", **{**GRID, "replicas": 4, "safety": {"hangSeconds": 10}})
    with Grid(place, "chat", lambda _: False).running() as grid, ExitStack() as pages:
        place.wait("four pods that answer", lambda: len(_answering(place)) == 4)
        beside, *broken = sorted(grid.ready)
        for name in broken:
            grid.engines[name].running = 2
        time.sleep(2)  # the operator sees that requests run there
        seen: dict[str, float] = {}
        for name, (fault, (text, reason)) in zip(broken, PAGES.items(), strict=True):
            began = time.monotonic()
            pages.enter_context(metrics(grid.address(name), text))
            grid.shut(name)  # the page first: a look in between would find neither, and tell that

            def told(name: str = name, reason: str = reason) -> bool:
                said = [event["message"] for event in place.events("EngineLost")]
                return any(f"{name}: {reason}" in message for message in said)

            place.wait(f"an event about {name}", told)
            seen[fault] = time.monotonic() - began
        time.sleep(12)  # longer than a hang would take
        found = place.conditions("chat")["MetricsAvailable"]
        assert (found["status"], _answering(place)) == ("True", {beside})
        assert not place.events("EngineHung")
        assert {pod["metadata"]["name"] for pod in grid.pods()} == {beside, *broken}
        assert relay.operator.healthy()
        for fault, seconds in seen.items():
            done = f"k holds in that pod ({PAGES[fault][1]}); nothing is restarted"
            condition = f"MetricsAvailable {found['status']}, and the pod by name"
            beside_it = "none: no request passes the operator"
            tell(fault, Seen(seconds, done, condition, "EngineLost", beside_it, STAND_IN))


def _answering(place: Place) -> set[str]:
    status = (place.get(naming.KIND_SERVING, "chat") or {}).get("status", {})
    return {pod["name"] for pod in status.get("pods", []) if pod["tier"] == "Live" and not pod.get("message")}


def test_a_clock_that_jumps_an_hour_makes_no_rung_stable_and_ends_nothing(
    crds: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    place = Place(crds, namespace)
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    offset = tmp_path / "offset"
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    more = {"PYTHONPATH": path, "CLOCK_FILE": offset}
    config = account(place.cluster, place.namespace, watch=place.namespace)
    operator = start(
        place.cluster, f"jumps-{place.namespace}", place.namespace, config, watch=place.namespace, more=more
    )
    try:
        wait_for_leader(operator)
        place.serve("chat", **{**GRID, "safety": {"stableSeconds": 12}})
        with Grid(place, "chat", published).running():
            place.condition("chat", "RemedyInForce", "RemedyTried")
            began = time.monotonic()
            offset.write_text("3600")
            time.sleep(5)
            assert place.conditions("chat")["RemedyInForce"]["reason"] == "RemedyTried"
            offset.write_text("-3600")
            place.condition("chat", "RemedyInForce", "StableUnderChange")
            assert time.monotonic() - began > 10, "as long as it takes without a jump"
            place.condition("chat", "Progressing", "Settled")
            assert place.conditions("chat")["Ready"]["status"] == "True"
            assert operator.leads()
        done = "nothing: a rung in trial is watched by a clock that cannot jump, and so is the Lease"
        tell("clock jump of an hour", Seen(None, done, "as without it", "none", "0: no pod is touched", STAND_IN))
    finally:
        operator.daemon.stop()
    assert "Traceback" not in operator.log(), operator.log()
