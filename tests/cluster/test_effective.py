"""What was declared against what engines do, in conditions: stand-ins answer as engines that fell back would."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest

from paceline_engine.protocol import Feature, Samples, State
from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from paceline_operator.effective import seen
from tests.cluster.decoding import BOOT, LADDER, Decoding
from tests.cluster.operators import KEY, Place
from tests.cluster.stand_ins import control, metrics, pod_of, run_pod, token

pytestmark = pytest.mark.cluster

SPEC: dict[str, Any] = {
    "engine": {"maxNumSeqs": len(BOOT) - 1},
    "speculation": {"method": "eagle3", "draft": {"source": "hf://owner/draft"}, "maxTokens": LADDER[0]},
    "tuning": {"ladder": list(LADDER), "intervalSeconds": 1, "mode": "Observe"},
}
AV = {**SPEC, "speculation": {**SPEC["speculation"], "adaptiveVerification": "Enabled"}}
SECRET = f"chat-token-{key_version(KEY.encode())}"
GRAPHS = dict.fromkeys(LADDER, len(BOOT) - 1)
Change = Callable[[State], State]


@pytest.fixture
def address() -> str:
    """Of loopback, and nobody else's: the ports are fixed."""
    return f"127.{random.randint(64, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"


def able(**capabilities: Any) -> Change:
    """With other capabilities."""
    given = {"method": "eagle3", "runner": "V2", "graph_requests": GRAPHS, **capabilities}
    return lambda state: state.model_copy(update={"capabilities": state.capabilities.model_copy(update=given)})


class Quirky(Decoding):
    """An engine at six requests, with good drafts, that may say and do something else than was asked."""

    def __init__(self, change: Change, verified: int | None = None) -> None:
        super().__init__()
        self.change, self.verified = change, verified
        self.running = 6

    def state(self) -> State:
        return self.change(super().state())

    def samples(self, cursor: str | None) -> Samples:
        found = super().samples(cursor)
        if self.verified is None:
            return found
        cells = [cell.model_copy(update={"k_verified": self.verified}) for cell in found.cells]
        return found.model_copy(update={"cells": tuple(cells)})


DROPPED = able(ladder=(5,), live_k=Feature(supported=False, reason="vLLM dropped it: data_parallel_size is 2"))


@pytest.mark.parametrize(
    ("spec", "change", "verified", "reason", "says"),
    [
        (SPEC, DROPPED, None, "ScheduleDropped", "data_parallel_size is 2"),
        (SPEC, able(), 5, "KIgnored", "upgrade vLLM"),
        (SPEC, able(graph_requests=dict.fromkeys(LADDER, 2)), None, "GraphsMissed", "k 5 up to 2 requests"),
        (AV, able(), None, "VerificationRefused", "speculation.adaptiveVerification"),
        (SPEC, able(method="ngram"), None, "MethodFellBack", "it drafts with method ngram"),
    ],
)
def test_a_silent_fallback_ends_in_its_condition_and_what_was_put_right_in_effective(
    place: Place, address: str, spec: dict[str, Any], change: Change, verified: int | None, reason: str, says: str
) -> None:
    place.serve("chat", **spec)
    pod = pod_of(place, "chat")
    engine = Quirky(change, verified)
    with control(address, engine, (token(place, SECRET),)):  # type: ignore[arg-type]
        run_pod(place, pod, address)
        condition = place.condition("chat", "SpeculationEffective", reason)
        assert condition["status"] == "False"
        assert condition["message"].startswith(f"{pod}: declared: eagle3 with a schedule of the ks 5 3 1 0")
        assert says in condition["message"]
        assert place.conditions("chat")["Ready"]["status"] == "True"
        status = (place.get(naming.KIND_SERVING, "chat") or {})["status"]
        tier = "Restart" if reason == "ScheduleDropped" else "Live"
        assert (status["tier"], status["pods"][0]["tier"]) == (tier, tier)
        if spec is SPEC:
            engine.change, engine.verified = able(), None
            place.condition("chat", "SpeculationEffective", "Effective")
            place.wait("tier Live", lambda: (place.get(naming.KIND_SERVING, "chat") or {})["status"]["tier"] == "Live")


def test_without_the_plugin_the_engines_own_counters_tell(place: Place, address: str) -> None:
    place.serve("chat", **SPEC)
    pod, tokens = pod_of(place, "chat"), itertools.count(0, 1000)
    with metrics(address, lambda: f"{seen.GENERATED_TOKENS} {next(tokens)}\n{seen.RUNNING} 6\n"):
        run_pod(place, pod, address)
        condition = place.condition("chat", "SpeculationEffective", "CountersAbsent")
        assert condition["status"] == "False"
        assert "--speculative-config" in condition["message"]


def ended(place: Place, pod: str, address: str, message: str) -> None:
    """Say, as a kubelet would, that the engine ended at its start and is not started again yet."""
    run_pod(place, pod, address, ready=False)
    container = {
        "name": "engine", "image": "x", "imageID": "x", "ready": False, "restartCount": 2,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": {"exitCode": 1, "reason": "Error", "message": message}},
    }  # fmt: skip
    place.patch("Pod", pod, {"status": {"containerStatuses": [container]}}, "status")


def test_an_engine_that_ended_at_its_start_says_why(place: Place, address: str) -> None:
    place.serve("chat", **AV)
    pod = pod_of(place, "chat")
    ended(place, pod, address, "ValueError: Adaptive verification is not currently compatible with LoRA\n")
    condition = place.condition("chat", "SpeculationEffective", "VerificationRefused")
    assert "not currently compatible with LoRA" in condition["message"]
    place.condition("chat", "Available", "CrashLoop")
    ended(place, pod, address, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    condition = place.condition("chat", "Available", "OutOfMemory")
    assert "Tried to allocate 2.00 GiB" in condition["message"]
    place.condition("chat", "SpeculationEffective", "Holding")


def test_an_override_that_weakens_pods_is_told_and_done(place: Place) -> None:
    place.serve("chat", **SPEC)
    assert place.condition("chat", "PodSecurity", "Restricted")["status"] == "True"
    engine = {**SPEC["engine"], "podTemplate": {"spec": {"shareProcessNamespace": True}}}
    place.serve("chat", **{**SPEC, "engine": engine, "replicas": 0})
    condition = place.condition("chat", "PodSecurity", "Weakened")
    assert condition["status"] == "False"
    assert "spec.engine.podTemplate.spec.shareProcessNamespace" in condition["message"]
    assert place.child("Deployment", "chat")["spec"]["template"]["spec"]["shareProcessNamespace"] is True
