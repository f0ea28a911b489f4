"""Rollouts under operator processes that are killed, on a real API server with its own controllers.

What a kubelet and an engine would do is done by stand-ins: every pod is given an address, a decoding engine behind the
plugin's own control server, and, a moment later, its Ready condition.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from paceline_operator.clock import rfc3339
from tests.cluster.decoding import BOOT, LADDER, SPEC, Decoding, step_seconds
from tests.cluster.operators import KEY, Object, Place
from tests.cluster.relay import Relay
from tests.cluster.stand_ins import control, token
from tests.unit.simulated import SimulatedEngine

pytestmark = pytest.mark.cluster

SERVING: dict[str, Any] = {
    **SPEC,
    "replicas": 2,
    "tuning": {"ladder": list(LADDER), "intervalSeconds": 1, "probing": {"mode": "Disabled"}},
    "rollout": {"canary": {"observeSeconds": 5, "deadlineSeconds": 600}},
}
FIELD = "engine.maxModelLen"
CHANGE = {"spec": {"engine": {"maxModelLen": 4096}}}


class Kubelet:
    """Gives pods what they need to be ready, until it is stopped. `bad`: canaries take twice as long for a step."""

    def __init__(self, place: Place, name: str) -> None:
        self.place, self.name, self.bad = place, name, False
        self.born: dict[str, str] = {}
        """Every pod that was ever there -> its track."""
        self._stop = threading.Event()
        # Not of the random that hypothesis seeds: lives beside walks would share addresses.
        draw = random.SystemRandom()
        self._net = f"127.{draw.randint(64, 250)}.{draw.randint(1, 250)}"

    def run(self) -> None:
        hosts = itertools.count(1)
        with ExitStack() as stack:
            secret = token(self.place, f"{self.name}-token-{key_version(KEY.encode())}")
            while not self._stop.wait(0.3):
                for pod in self.pods():
                    name, track = pod["metadata"]["name"], pod["metadata"]["labels"][naming.LABEL_TRACK]
                    if name in self.born:
                        continue
                    self.born[name] = track
                    engine = Decoding()
                    engine.running = 4
                    if self.bad and track == naming.TRACK_CANARY:
                        engine.engine = SimulatedEngine(_slow, engine.engine.survival, BOOT, LADDER, engine.engine.rng)
                        engine.running = 4
                    address = f"{self._net}.{next(hosts)}"
                    stack.enter_context(control(address, engine, (secret,)))  # type: ignore[arg-type]
                    with suppress(AssertionError):  # it may be gone again
                        _ready(self.place, name, address)

    def pods(self) -> list[Object]:
        return [pod for pod in self.place.list("Pod") if "deletionTimestamp" not in pod["metadata"]]

    @contextmanager
    def running(self) -> Iterator[Kubelet]:
        thread = threading.Thread(target=self.run, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            thread.join()


def _ready(place: Place, name: str, address: str) -> None:
    """As run_pod, since now: a canary is watched from there on."""
    since = rfc3339(datetime.now(UTC))
    condition = {"type": "Ready", "status": "True", "lastTransitionTime": since}
    body = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
    place.patch("Pod", name, {"status": body}, "status")


def _slow(requests: int, k: int) -> float:
    return 2 * step_seconds(requests, k)


def rollout(place: Place) -> dict[str, Any]:
    status = (place.get(naming.KIND_SERVING, "chat") or {}).get("status", {})
    return dict(status.get("rollout", {}))


def until(place: Place, phase: str) -> None:
    try:
        place.wait(f"phase {phase}", lambda: rollout(place).get("phase") == phase, 90)
    except TimeoutError as error:
        raise AssertionError(f"{error}; {json.dumps(rollout(place))}; {place.conditions('chat')}") from None


def template(place: Place) -> Object:
    return dict(place.child("Deployment", "chat")["spec"]["template"])


def test_a_good_canary_is_promoted_though_the_operator_is_killed_in_every_phase(relay: Relay) -> None:
    place = relay.place
    place.serve("chat", **SERVING)
    with Kubelet(place, "chat").running() as kubelet:
        place.condition("chat", "Available", "ReplicasReady")
        place.wait(
            "two ready pods", lambda: (place.get("Deployment", "chat") or {})["status"].get("readyReplicas") == 2
        )
        old, first = rollout(place)["revision"], set(kubelet.born)
        place.patch(naming.KIND_SERVING, "chat", CHANGE)
        place.wait("the canary", lambda: place.get("Deployment", "chat-canary"))
        relay.kill()
        until(place, "Canary")
        assert FIELD in place.condition("chat", "Progressing", "CanaryStarted")["message"]
        assert place.child("Deployment", "chat")["metadata"]["annotations"][naming.ANNOTATION_REVISION] == old
        until(place, "Promoting")
        (event,) = place.wait("its event", lambda: place.events("CanaryPromoted") or None)
        assert "of that of the other pods" in event["message"], "by what was measured"
        relay.kill()
        place.condition("chat", "Progressing", "Settled")
        place.wait("the canary to go", lambda: place.get("Deployment", "chat-canary") is None)
        place.wait("two pods", lambda: len(kubelet.pods()) == 2)
        assert (rollout(place)["phase"], rollout(place)["fields"]) == ("Steady", [FIELD])
        assert "4096" in json.dumps(template(place))
        tracks = sorted(track for pod, track in kubelet.born.items() if pod not in first)
        assert tracks == ["canary", "stable", "stable"], "no pod was restarted but once"
        assert place.conditions("chat")["RolledBack"]["status"] == "False"
        before = place.children()
        place.condition("chat", "Tuned", "Observing")
        assert place.children() == before


def test_a_bad_canary_is_taken_back_by_itself_and_stays_so(relay: Relay) -> None:
    place = relay.place
    place.serve("chat", **SERVING)
    with Kubelet(place, "chat").running() as kubelet:
        kubelet.bad = True
        place.wait(
            "two ready pods", lambda: (place.get("Deployment", "chat") or {})["status"].get("readyReplicas") == 2
        )
        before, first, made = template(place), set(kubelet.born), rollout(place)["revision"]
        place.patch(naming.KIND_SERVING, "chat", CHANGE)
        told = place.condition("chat", "RolledBack", "GoodputLost")
        assert told["status"] == "True"
        assert FIELD in told["message"]
        relay.kill()
        place.wait("the canary to go", lambda: place.get("Deployment", "chat-canary") is None)
        assert template(place) == before, "byte for byte"
        place.wait("its pod to go", lambda: len(kubelet.pods()) == len(first))  # the garbage collector comes later
        assert {pod["metadata"]["name"] for pod in kubelet.pods()} == first, "no pod of the others was touched"
        (event,) = place.events("GoodputLost")
        assert event["type"] == "Warning"
        kubelet.bad = False
        place.kubectl("annotate", f"{naming.PLURAL_SERVING}/chat", f"{naming.ANNOTATION_RETRY}=again")
        until(place, "Canary")
        place.patch(naming.KIND_SERVING, "chat", {"spec": {"engine": {"maxModelLen": None}}})
        place.condition("chat", "Progressing", "Settled")
        assert (rollout(place)["phase"], rollout(place)["revision"]) == ("Steady", made)
        place.wait("its pod to go again", lambda: len(kubelet.pods()) == len(first))
        assert {pod["metadata"]["name"] for pod in kubelet.pods()} == first
