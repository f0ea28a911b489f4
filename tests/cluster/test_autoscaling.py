"""Who scales a serving: a HorizontalPodAutoscaler, a person, KEDA, the operator itself; never two at once.

Engines are stand-ins that decode; the API server, the controllers and the operator are real.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from paceline_operator.kinds import crd_of
from paceline_operator.resources.scaledobject import KIND
from tests.cluster.decoding import LADDER, SPEC, Decoding
from tests.cluster.operators import KEY, Object, Operator, Place
from tests.cluster.stand_ins import control, run_pod, token
from tests.harness.controlplane import ControlPlane
from tests.harness.externalmetrics import ExternalMetrics, external_metrics

pytestmark = pytest.mark.cluster

SECRET = f"chat-token-{key_version(KEY.encode())}"
TUNING = {"ladder": list(LADDER), "intervalSeconds": 2}
MANUAL = {**TUNING, "intervalSeconds": 1, "mode": "Manual", "table": [{"fromRequests": 1, "k": 0}]}
BUILTIN = {
    "mode": "Builtin",
    "maxReplicas": 2,
    "targetRunningRequests": 4,
    "behavior": {"scaleDown": {"stabilizationWindowSeconds": 3}},
}
KEDA = {
    "mode": "KEDA",
    "maxReplicas": 4,
    "targetRunningRequests": 8,
    "keda": {"serverAddress": "http://prometheus.monitoring:9090"},
}
HPA = "system:serviceaccount:kube-system:horizontal-pod-autoscaler"
SCALER = "kube-controller-manager"


class Engines:
    """Stand-ins of the serving `chat` in `place`, one a pod, at addresses of their own."""

    def __init__(self, place: Place, stack: ExitStack) -> None:
        self._place, self._stack = place, stack
        self._prefix = f"127.{random.randint(64, 250)}.{random.randint(1, 250)}"
        self.made: list[Decoding] = []

    def start(self) -> Decoding:
        """One more, for a pod that has none yet."""
        engine, address = Decoding(), f"{self._prefix}.{len(self.made) + 1}"
        self._stack.enter_context(control(address, engine, (token(self._place, SECRET),)))  # type: ignore[arg-type]
        self.made.append(engine)

        def pod() -> str | None:
            pods = [pod for pod in self._place.list("Pod") if not pod["status"].get("podIP")]
            return str(pods[0]["metadata"]["name"]) if pods else None

        run_pod(self._place, str(self._place.wait("a pod without an engine", pod)), address)
        return engine


@pytest.fixture
def engines(place: Place) -> Iterator[Engines]:
    with ExitStack() as stack:
        yield Engines(place, stack)


@pytest.fixture(scope="module")
def metrics(crds: ControlPlane, module_namespace: str) -> Iterator[ExternalMetrics]:
    with external_metrics(crds, module_namespace) as served:
        yield served


def replicas(place: Place) -> int:
    return int((place.get(naming.KIND_SERVING, "chat") or {})["spec"]["replicas"])


def scaling(place: Place) -> Object:
    return dict((place.get(naming.KIND_SERVING, "chat") or {}).get("status", {}).get("scaling", {}))


def deployed(place: Place, count: int) -> bool:
    return bool(place.child("Deployment", "chat")["spec"]["replicas"] == count)


def scaled_by_us(operator: Operator) -> float:
    """Writes of replicas: of all that the operator writes of a serving, status is a PATCH and these are PUTs."""
    return sum(count for labels, count in operator.writes().items() if {naming.KIND_SERVING, "PUT"} <= set(labels))


def set_spec(place: Place, **spec: Any) -> None:
    place.patch(naming.KIND_SERVING, "chat", {"spec": spec})


def autoscaler(target: int) -> Object:
    """An HPA on the serving by the external metric `requests`."""
    metric = {"metric": {"name": "requests"}, "target": {"type": "AverageValue", "averageValue": str(target)}}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": "chat"},
        "spec": {
            "scaleTargetRef": {"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING, "name": "chat"},
            "minReplicas": 1,
            "maxReplicas": 5,
            "metrics": [{"type": "External", "external": metric}],
            "behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}},
        },
    }


def test_builtin_turns_k_off_first_then_buys_a_pod_and_gives_it_back(
    place: Place, operator: Operator, engines: Engines
) -> None:
    observing = {**TUNING, "mode": "Observe", "probing": {"mode": "Enabled"}}
    place.serve("chat", **SPEC, tuning=observing, autoscaling=BUILTIN)
    before = scaled_by_us(operator)
    first = engines.start()
    first.running = 2

    def known() -> bool:
        status = (place.get(naming.KIND_SERVING, "chat") or {}).get("status", {})
        recommended = [row for row in status.get("recommendedTable", []) if row["fromRequests"] <= 2]
        return bool(status.get("loadRequests") == 2 and recommended and recommended[-1]["k"] == 0)

    place.wait("k=0 to be recommended", known)
    assert first.engine.table[2] == 5, "mode Observe changes nothing"
    place.condition("chat", "ScalingActive", "WithinTarget")
    readings = len(first.read)
    place.wait("a reading", lambda: len(first.read) > readings)
    first.waiting = 6  # from the next reading on, which the change of mode brings about
    set_spec(place, tuning={"mode": "Auto"})
    waits = place.condition("chat", "ScalingActive", "BetterKFirst")
    assert (first.engine.table[2], replicas(place)) == (0, 1), f"k is changed and no pod bought: {waits}"
    place.wait("a pod to be bought", lambda: replicas(place) == 2)
    assert min(at for at, policy in first.pushed if policy.table[2] == 0) < time.time()
    (event,) = place.wait("the event", lambda: place.events("AboveTarget") or None)
    assert event["message"].startswith("replicas 1 to 2: 8.0 requests a pod for a target of 4")
    place.wait("the Deployment", lambda: deployed(place, 2))
    place.condition("chat", "ScalingActive", "PodsPending")
    first.running, first.waiting = 1, 0
    engines.start()
    place.wait("the pod to be given back", lambda: replicas(place) == 1)
    place.condition("chat", "ScalingActive", "WithinTarget")
    assert scaled_by_us(operator) - before == 2
    assert scaling(place)["writer"] == naming.FIELD_MANAGER
    held = (place.get(naming.KIND_SERVING, "chat") or {})["metadata"]["managedFields"]
    ours = [entry for entry in held if "f:replicas" in entry.get("fieldsV1", {}).get("f:spec", {})]
    assert [(entry["manager"], entry.get("subresource")) for entry in ours] == [(naming.FIELD_MANAGER, "scale")]


def test_an_autoscaler_of_the_clusters_scales_and_builtin_steps_back(
    place: Place, operator: Operator, engines: Engines, metrics: ExternalMetrics
) -> None:
    metrics.values["requests"] = 9
    place.serve("chat", **SPEC, tuning=MANUAL)
    place.child("Deployment", "chat")
    place.kubectl("apply", "-f", "-", input=json.dumps(autoscaler(10)))
    metrics.values["requests"] = 35
    place.wait("four replicas", lambda: deployed(place, 4))
    assert HPA in metrics.askers
    assert "ScalingActive" not in place.conditions("chat"), "mode Disabled has nothing to say"
    before = scaled_by_us(operator)
    patient = {"scaleDown": {"stabilizationWindowSeconds": 300}}
    set_spec(place, autoscaling={**BUILTIN, "maxReplicas": 8, "behavior": patient})
    engine = engines.start()
    engine.running = 8
    place.condition("chat", "ScalingActive", "Stabilizing")
    assert scaling(place)["writer"] == SCALER, "who wrote before the mode was on is accepted"
    metrics.values["requests"] = 45
    place.condition("chat", "ScalingActive", "ForeignReplicasWriter")
    place.wait("five replicas", lambda: deployed(place, 5))
    assert scaling(place)["foreignWriter"] == SCALER
    assert len(place.wait("the event", lambda: place.events("ForeignReplicasWriter") or None)) == 1
    engine.running = 0  # now mode Builtin would take pods away, and at once
    set_spec(place, autoscaling={"behavior": {"scaleDown": {"stabilizationWindowSeconds": 0}}})
    metrics.values["requests"] = 12
    place.wait("two replicas", lambda: deployed(place, 2))
    readings = len(engine.read)
    place.wait("readings", lambda: len(engine.read) >= readings + 5)
    assert (replicas(place), scaled_by_us(operator)) == (2, before)


def test_a_person_who_scales_is_left_alone_until_they_hand_back(
    place: Place, operator: Operator, engines: Engines
) -> None:
    place.serve("chat", **SPEC, tuning=MANUAL, autoscaling=BUILTIN)
    engine = engines.start()
    engine.running = 2
    place.condition("chat", "ScalingActive", "WithinTarget")
    before = scaled_by_us(operator)
    place.kubectl("scale", f"{naming.PLURAL_SERVING}/chat", "--replicas=2")
    told = place.condition("chat", "ScalingActive", "ForeignReplicasWriter")
    assert told["message"].startswith("kubectl set replicas to 2 through /scale")
    readings = len(engine.read)
    place.wait("readings beyond the window", lambda: len(engine.read) >= readings + 5)
    assert (replicas(place), scaled_by_us(operator)) == (2, before)
    set_spec(place, autoscaling={"mode": "Disabled"})
    place.wait("nothing to say", lambda: "ScalingActive" not in place.conditions("chat"))
    set_spec(place, autoscaling=BUILTIN)
    engines.start()
    place.wait("one replica", lambda: replicas(place) == 1)
    # A write is counted when its answer is there, after the cluster shows it.
    place.wait("the write to be counted", lambda: scaled_by_us(operator) > before)
    assert scaled_by_us(operator) == before + 1


@contextmanager
def scaled_objects(crds: ControlPlane) -> Iterator[None]:
    """KEDA's kind without KEDA: any spec, any status."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = {"type": "object", "properties": {"spec": anything, "status": anything}}
    version = {
        "name": "v1alpha1",
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": schema},
    }
    definition = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": crd_of(KIND)},
        "spec": {
            "group": "keda.sh",
            "scope": "Namespaced",
            "names": {"kind": KIND, "listKind": f"{KIND}List", "plural": "scaledobjects", "singular": "scaledobject"},
            "versions": [version],
        },
    }
    crds.kubectl("apply", "-f", "-", input=json.dumps(definition))
    try:
        crds.established(f"crd/{crd_of(KIND)}")
        yield
    finally:
        crds.kubectl("delete", "crd", crd_of(KIND))


def test_kedas_object_is_made_when_its_kind_comes_follows_the_spec_and_goes(place: Place, crds: ControlPlane) -> None:
    place.serve("chat", **SPEC, tuning=MANUAL, autoscaling=KEDA)
    place.condition("chat", "ScalingActive", "KindNotServed")
    assert place.conditions("chat")["Accepted"]["status"] == "True"
    place.child("Deployment", "chat")
    with scaled_objects(crds):
        made = place.child(KIND, "chat")
        assert made["spec"]["scaleTargetRef"] == {
            "apiVersion": naming.API_VERSION,
            "kind": naming.KIND_SERVING,
            "name": "chat",
        }
        assert (made["spec"]["minReplicaCount"], made["spec"]["maxReplicaCount"]) == (1, 4)
        place.condition("chat", "ScalingActive", "ScaledObjectNotReady")
        place.patch(KIND, "chat", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "status")
        set_spec(place, autoscaling={"maxReplicas": 6})
        place.wait("it to follow", lambda: place.child(KIND, "chat")["spec"]["maxReplicaCount"] == 6)
        place.condition("chat", "ScalingActive", "ScaledObjectReady")
        place.kubectl("scale", f"{naming.PLURAL_SERVING}/chat", "--replicas=3")  # as KEDA's autoscaler does
        place.wait("three replicas", lambda: deployed(place, 3))
        place.wait("who wrote them", lambda: scaling(place)["writer"] == "kubectl")
        assert place.conditions("chat")["ScalingActive"]["reason"] == "ScaledObjectReady"
        set_spec(place, autoscaling={"mode": "Disabled"})
        place.wait("it to go", lambda: place.get(KIND, "chat") is None)
        assert replicas(place) == 3
