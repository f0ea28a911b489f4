"""Kinds of other products on a real API server: absent they are told, later they are taken up, and gone they are
survived; plain pods and the route's weights follow the spec."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.kinds import OPTIONAL, crd_of
from tests.cluster.operators import Operator, Place
from tests.cluster.stand_ins import run_pod
from tests.harness.controlplane import ControlPlane
from tests.harness.optional import install, remove
from tests.harness.processes import wait_until

pytestmark = pytest.mark.cluster

CONDITION = "IntegrationsAvailable"
ROUTING: dict[str, Any] = {
    "inferencePool": {"endpointPicker": {"name": "epp"}},
    "plain": {"replicas": 1, "weightPercent": 30},
    "gateway": {"parentRefs": [{"name": "gate"}]},
}
GROUP = {"tensorParallelSize": 2, "multiNode": {"nodes": 2}}


@pytest.fixture(scope="module")
def bare(crds: ControlPlane, operator: Operator) -> Iterator[ControlPlane]:
    """A cluster without any of the kinds, also after."""
    remove(crds, *OPTIONAL)
    yield crds
    remove(crds, *OPTIONAL)
    operator.daemon.check()


def told(place: Place, name: str, status: str, *words: str) -> None:
    """Wait for the condition to have this status and all of these words, and none of `kinds` that it must not name."""

    def found() -> bool:
        condition = place.conditions(name).get(CONDITION, {})
        return condition.get("status") == status and all(word in condition.get("message", "") for word in words)

    place.wait(f"{CONDITION} of {name} to be {status} with {words}", found, seconds=100)


def pods(place: Place, name: str, component: str) -> list[dict[str, Any]]:
    labels = {naming.LABEL_SERVING: name, naming.LABEL_COMPONENT: component}
    return [pod for pod in place.list("Pod") if labels.items() <= pod["metadata"]["labels"].items()]


def weights(place: Place, name: str) -> dict[str, int]:
    route = place.get("HTTPRoute", name) or {"spec": {"rules": [{"backendRefs": []}]}}
    return {ref["name"]: ref["weight"] for ref in route["spec"]["rules"][0]["backendRefs"]}


def test_kinds_come_and_go(bare: ControlPlane, place: Place) -> None:
    place.serve("wide", engine=GROUP)
    place.serve("chat", routing=ROUTING)
    told(place, "chat", "False", "InferencePool chat", "HTTPRoute chat", crd_of("HTTPRoute"))
    told(place, "wide", "False", "LeaderWorkerSet wide-group", crd_of("LeaderWorkerSet"))
    for name in ("chat", "wide"):
        conditions = place.conditions(name)
        assert conditions["Accepted"]["status"] == "True"
        assert conditions[CONDITION]["reason"] == "KindNotServed"
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        place.child(kind, "chat")
        place.child(kind, "chat-plain")
    started = [pod["metadata"]["uid"] for pod in place.list("Pod")]

    install(bare, *OPTIONAL)
    told(place, "chat", "True")
    told(place, "wide", "True")
    pool = place.child("InferencePool", "chat")
    assert pool["spec"]["selector"]["matchLabels"][naming.LABEL_TRACK] == naming.TRACK_STABLE
    assert weights(place, "chat") == {"chat": 70, "chat-plain": 30}
    group = place.child("LeaderWorkerSet", "wide-group")
    assert group["spec"]["leaderWorkerTemplate"]["size"] == 2
    assert place.get("Deployment", "wide") is None
    before = place.children()

    remove(bare, "HTTPRoute", "InferencePool")
    told(place, "chat", "False", "HTTPRoute chat")
    assert place.children() == before, "no other child was written"
    assert [pod["metadata"]["uid"] for pod in place.list("Pod")] == started, "no pod was restarted"
    install(bare, "HTTPRoute", "InferencePool")
    told(place, "chat", "True")
    assert weights(place, "chat") == {"chat": 70, "chat-plain": 30}


def test_weights_follow_the_spec_and_the_pods_that_answer(bare: ControlPlane, place: Place) -> None:
    install(bare, *OPTIONAL)
    place.serve("chat", routing=ROUTING)
    (plain,) = place.wait("a plain pod", lambda: pods(place, "chat", naming.COMPONENT_PLAIN) or None)
    (engine,) = place.wait("an engine", lambda: pods(place, "chat", naming.COMPONENT_ENGINE) or None)

    def split(speculating: int, without: int) -> None:
        wanted = {"chat": speculating, "chat-plain": without}
        place.wait(f"weights {wanted}", lambda: weights(place, "chat") == wanted)

    arguments = next(c for c in plain["spec"]["containers"] if c["name"] == "engine")["args"]
    assert "--speculative-config" not in arguments
    split(70, 30)
    run_pod(place, engine["metadata"]["name"], "127.0.7.1")
    split(100, 0)
    run_pod(place, plain["metadata"]["name"], "127.0.7.2")
    split(70, 30)
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"routing": {"plain": {"weightPercent": 55}}}})
    split(45, 55)
    selector = (place.get(naming.KIND_SERVING, "chat") or {})["status"]
    assert selector["replicas"] == 1, "plain pods are no replicas"
    assert naming.COMPONENT_PLAIN not in selector["selector"]


def test_plain_pods_scale_and_go(bare: ControlPlane, place: Place) -> None:
    install(bare, *OPTIONAL)
    place.serve("chat", routing=ROUTING)
    place.child("Deployment", "chat-plain")
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"routing": {"plain": {"replicas": 3}}}})
    place.wait("three plain pods", lambda: len(pods(place, "chat", naming.COMPONENT_PLAIN)) == 3)
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"replicas": 2}})
    place.wait("two engines", lambda: len(pods(place, "chat", naming.COMPONENT_ENGINE)) == 2)
    assert place.child("Deployment", "chat-plain")["spec"]["replicas"] == 3
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"routing": None}})
    for kind in ("Deployment", "Service", "PodDisruptionBudget"):
        place.wait(f"{kind} chat-plain to go", lambda kind=kind: place.get(kind, "chat-plain") is None)
    place.wait("the pool to go", lambda: place.get("InferencePool", "chat") is None)
    place.wait("the route to go", lambda: place.get("HTTPRoute", "chat") is None)
    assert len(pods(place, "chat", naming.COMPONENT_ENGINE)) == 2


def test_a_group_is_made_scaled_and_gone_with_its_serving(bare: ControlPlane, place: Place) -> None:
    install(bare, *OPTIONAL)
    place.serve("wide", engine=GROUP)
    place.child("LeaderWorkerSet", "wide-group")
    before = place.child("LeaderWorkerSet", "wide-group")["metadata"]["generation"]
    place.patch(naming.KIND_SERVING, "wide", {"spec": {"replicas": 3}}, "scale")
    place.wait("three groups", lambda: place.child("LeaderWorkerSet", "wide-group")["spec"]["replicas"] == 3)
    assert place.child("LeaderWorkerSet", "wide-group")["metadata"]["generation"] == before + 1
    place.condition("wide", "Progressing", "RollingOut")
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), 3)
    place.patch("LeaderWorkerSet", "wide-group", {"status": {**counts, "observedGeneration": before + 1}}, "status")
    place.kubectl("annotate", naming.PLURAL_SERVING, "wide", "nudge=1")  # it looks by itself, but not at once
    place.condition("wide", "Progressing", "Settled")
    # One engine on one node again: the set goes, a Deployment comes.
    place.patch(naming.KIND_SERVING, "wide", {"spec": {"engine": {"multiNode": None}}})
    place.child("Deployment", "wide")
    place.wait("the set to go", lambda: place.get("LeaderWorkerSet", "wide-group") is None)


def test_rights_that_are_not_granted_are_told(bare: ControlPlane, place: Place, operator: Operator) -> None:
    install(bare, *OPTIONAL)
    (role,) = [
        each
        for each in json.loads(bare.kubectl("get", "clusterroles", "-o", "json").stdout)["items"]
        if each["metadata"]["name"].startswith("test-") and any("httproutes" in r["resources"] for r in each["rules"])
        and operator.daemon.log.name.endswith(f"{each['metadata']['name'].partition(':')[0]}.log")
    ]  # fmt: skip
    whole = json.dumps({"rules": role["rules"]})
    rest = json.dumps({"rules": [rule for rule in role["rules"] if "httproutes" not in rule["resources"]]})
    name = role["metadata"]["name"]
    bare.kubectl("patch", "clusterrole", name, "--type=merge", "-p", rest)
    try:
        place.serve("chat", routing={"gateway": ROUTING["gateway"]})
        told(place, "chat", "False", "HTTPRoute chat", "forbidden")
        assert place.conditions("chat")[CONDITION]["reason"] == "KindForbidden"
        place.child("Deployment", "chat")
    finally:
        bare.kubectl("patch", "clusterrole", name, "--type=merge", "-p", whole)
    place.kubectl("annotate", naming.PLURAL_SERVING, "chat", "nudge=1")
    told(place, "chat", "True")
    wait_until(lambda: place.get("HTTPRoute", "chat"), "the route", timeout_seconds=30)
