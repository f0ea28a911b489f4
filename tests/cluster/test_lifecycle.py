"""The life of a serving under a real operator process on a real API server: made, edited, scaled, mended, gone."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.protocol import derive_token
from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from tests.cluster.operators import KEY, NAMED, Place

# The minute that test_two_operators.py looks back on passes while these tests run.
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("quiet_minute")]

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "minimal.yaml"
SECRET = f"token-{key_version(KEY.encode())}"


def _settled(place: Place, name: str) -> dict[str, str]:
    """Wait until all children are there and status is written; the children's versions."""
    for kind in NAMED:
        place.child(kind, name)
    place.condition(name, "Accepted", "Valid")
    place.wait("the pods", lambda: len(place.list("Pod")) == _replicas(place, name))
    place.wait("status.replicas", lambda: (place.get(naming.KIND_SERVING, name) or {})["status"]["replicas"])
    return place.children()


def _replicas(place: Place, name: str) -> int:
    return int((place.get(naming.KIND_SERVING, name) or {})["spec"]["replicas"])


def test_apply_of_the_example_makes_the_children_and_says_so(place: Place) -> None:
    place.kubectl("apply", "-f", EXAMPLE)
    _settled(place, "minimal")
    serving = place.get(naming.KIND_SERVING, "minimal") or {}
    uid = serving["metadata"]["uid"]
    for kind in NAMED:
        (owner,) = place.child(kind, "minimal")["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["controller"]) == (uid, True)
    secret = place.child("Secret", f"minimal-{SECRET}")
    token = base64.b64decode(secret["data"]["current"]).decode()
    assert token == derive_token(KEY.encode(), uid, key_version(KEY.encode()))
    assert "finalizers" not in serving["metadata"]
    assert set(serving["metadata"]["annotations"]) == {"kubectl.kubernetes.io/last-applied-configuration"}
    managers = {(m["manager"], m.get("subresource", "")) for m in serving["metadata"]["managedFields"]}
    assert {manager for manager in managers if manager[0] == naming.FIELD_MANAGER} == {(naming.FIELD_MANAGER, "status")}
    conditions = place.conditions("minimal")
    assert {c["observedGeneration"] for c in conditions.values()} == {1}
    assert conditions["Ready"]["status"] == "False"
    reasons = {
        event["reason"] for event in place.list("Event") if event["source"].get("component") == naming.FIELD_MANAGER
    }
    assert reasons == {"ChildCreated"}


def test_an_edit_reaches_the_children_it_concerns_and_no_other(place: Place) -> None:
    place.serve("chat")
    before = _settled(place, "chat")
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"speculation": {"maxTokens": 3}}})

    def arguments() -> list[str]:
        template = place.child("Deployment", "chat")["spec"]["template"]
        return list(template["spec"]["containers"][0]["args"])

    place.wait("the new k", lambda: any('"num_speculative_tokens":3' in a.replace(" ", "") for a in arguments()))
    place.wait("status of generation 2", lambda: place.conditions("chat")["Accepted"]["observedGeneration"] == 2)
    after = place.children()
    assert {key for key in before if after.get(key) != before[key]} == {"Deployment/chat"}
    serving = place.get(naming.KIND_SERVING, "chat") or {}
    assert serving["status"]["observedGeneration"] == 2


def test_scale_moves_pods_and_gives_their_selector(place: Place) -> None:
    place.serve("chat")
    _settled(place, "chat")
    place.kubectl("scale", f"{naming.PLURAL_SERVING}/chat", "--replicas=3")
    place.wait("three pods", lambda: len(place.list("Pod")) == 3)

    def scale() -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(place.cluster.get(place.path(naming.KIND_SERVING, "chat", "scale")))
        return answer

    place.wait("/scale to count them", lambda: scale()["status"]["replicas"] == 3)
    names = place.kubectl("get", "pods", "-o", "name", "-l", scale()["status"]["selector"]).split()
    assert len(names) == 3
    place.kubectl("scale", f"{naming.PLURAL_SERVING}/chat", "--replicas=0")
    place.condition("chat", "Available", "ScaledToZero")


def test_a_deleted_child_comes_back(place: Place) -> None:
    place.serve("chat")
    _settled(place, "chat")
    before = {kind: place.child(kind, "chat")["metadata"]["uid"] for kind in NAMED}
    for kind in NAMED:
        place.kubectl("delete", kind, "chat", "--wait=false")
    for kind in NAMED:
        place.wait(f"a new {kind}", lambda kind=kind: place.child(kind, "chat")["metadata"]["uid"] != before[kind])


def test_a_hand_edited_child_is_corrected(place: Place) -> None:
    place.serve("chat")
    _settled(place, "chat")

    def image() -> str:
        template = place.child("Deployment", "chat")["spec"]["template"]
        return str(template["spec"]["containers"][0]["image"])

    good = image()
    place.kubectl("set", "image", "deployment/chat", "engine=somebody/else:1")
    place.wait("the image to be as it was", lambda: image() == good)
    place.kubectl("scale", "deployment/chat", "--replicas=4")
    place.patch("Service", "chat", {"spec": {"selector": {"app": "other"}}})
    place.patch("NetworkPolicy", "chat", {"spec": {"ingress": [{}]}})
    place.patch(
        "ServiceAccount", "chat", {"metadata": {"labels": {naming.LABEL_MANAGED_BY: "me"}, "annotations": {"a": "b"}}}
    )

    def corrected() -> bool:
        deployment, service = place.child("Deployment", "chat"), place.child("Service", "chat")
        account = place.child("ServiceAccount", "chat")["metadata"]
        return (
            deployment["spec"]["replicas"] == 1
            and service["spec"]["selector"].items() >= naming.selector("chat").items()
            and len(place.child("NetworkPolicy", "chat")["spec"]["ingress"]) == 2
            and account["labels"][naming.LABEL_MANAGED_BY] == naming.FIELD_MANAGER
        )

    place.wait("the children to be as they were", corrected)
    assert place.child("ServiceAccount", "chat")["metadata"]["annotations"] == {"a": "b"}, "what others add is theirs"
    field = "spec.template.spec.containers[engine].image"
    place.wait("the event", lambda: any(field in event["message"] for event in place.events("ChildCorrected")))


def test_a_key_that_somebody_adds_to_a_selector_is_taken_away(place: Place) -> None:
    """A selector is one value: with a key more it selects nothing."""
    place.serve("chat")
    _settled(place, "chat")
    wider = {"matchLabels": {"evil": "1"}}
    place.patch("Service", "chat", {"spec": {"selector": {"evil": "1"}}})
    place.patch("NetworkPolicy", "chat", {"spec": {"podSelector": wider}})
    place.patch("PodDisruptionBudget", "chat", {"spec": {"selector": wider}})

    def healed() -> bool:
        service, policy, budget = (
            place.child(kind, "chat")["spec"] for kind in ("Service", "NetworkPolicy", "PodDisruptionBudget")
        )
        found = (service["selector"], policy["podSelector"]["matchLabels"], budget["selector"]["matchLabels"])
        return not any("evil" in labels for labels in found)

    place.wait("the selectors to be as they were", healed)


def test_delete_takes_the_children_along_and_a_new_object_of_the_name_gets_its_own(place: Place) -> None:
    place.serve("chat")
    _settled(place, "chat")
    old = {kind: place.child(kind, "chat")["metadata"]["uid"] for kind in NAMED}
    place.kubectl("delete", naming.PLURAL_SERVING, "chat", "--wait=true", "--timeout=5s")
    place.serve("chat")
    uid = (place.get(naming.KIND_SERVING, "chat") or {})["metadata"]["uid"]

    def new() -> bool:
        found = [place.get(kind, "chat") for kind in NAMED]
        owners = [body["metadata"]["ownerReferences"] for body in found if body]
        return len(owners) == len(NAMED) and all([o["uid"] for o in owner] == [uid] for owner in owners)

    place.wait("children of the new object", new)
    assert not set(old.values()) & {place.child(kind, "chat")["metadata"]["uid"] for kind in NAMED}
    secret = place.child("Secret", f"chat-{SECRET}")
    token = base64.b64decode(secret["data"]["current"]).decode()
    assert token == derive_token(KEY.encode(), uid, key_version(KEY.encode()))
    place.kubectl("delete", naming.PLURAL_SERVING, "chat", "--wait=true", "--timeout=5s")
    place.wait("nothing to be left", lambda: not any(place.get(kind, "chat") for kind in NAMED))
    place.wait("the Secret to be gone", lambda: place.get("Secret", f"chat-{SECRET}") is None)


def test_suspended_no_child_is_written(place: Place) -> None:
    place.serve("chat")
    _settled(place, "chat")
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"suspend": True, "replicas": 3}})
    place.condition("chat", "Suspended", "Suspended")
    before = place.children()
    place.kubectl("delete", "service", "chat")
    place.kubectl("annotate", "deployment", "chat", "touched=1")  # wakes the object
    place.wait("the pass", lambda: place.conditions("chat")["Progressing"]["status"] == "True")
    assert place.get("Service", "chat") is None
    after = place.children()
    assert {key for key in before if after.get(key) != before[key]} == {"Service/chat", "Deployment/chat"}
    assert place.child("Deployment", "chat")["spec"]["replicas"] == 1
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"suspend": False, "replicas": 1}})
    place.child("Service", "chat")
    place.condition("chat", "Suspended", "Active")


def test_a_spec_that_cannot_work_is_refused_by_field_and_touches_no_child(place: Place) -> None:
    place.serve("chat")
    before = _settled(place, "chat")
    bad = {"replicas": 2, "engine": {"extraArgs": ["--max-num-seqs", "9"]}}
    place.patch(naming.KIND_SERVING, "chat", {"spec": bad})
    accepted = place.condition("chat", "Accepted", "OwnedArgument")
    assert accepted["status"] == "False"
    assert "spec.engine.extraArgs" in accepted["message"]
    assert place.conditions("chat")["Ready"]["reason"] == "OwnedArgument"
    assert place.children() == before
    place.wait("the event", lambda: place.events("OwnedArgument"))
    runner = [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "1"}]
    bad = {"speculation": {"method": "suffix"}, "engine": {"extraArgs": [], "env": runner}}
    place.patch(naming.KIND_SERVING, "chat", {"spec": bad})
    accepted = place.condition("chat", "Accepted", "Incompatible")
    assert "rule suffix-v2, https://github.com/vllm-project/vllm/" in accepted["message"]
    assert place.children() == before
    good = {"speculation": {"method": "ngram"}, "engine": {"env": []}}
    place.patch(naming.KIND_SERVING, "chat", {"spec": good})
    place.condition("chat", "Accepted", "Valid")
    place.wait("two pods", lambda: len(place.list("Pod")) == 2)


def test_a_child_of_somebody_else_is_not_taken(place: Place) -> None:
    place.kubectl("create", "service", "clusterip", "chat", "--tcp=80:80")
    place.serve("chat")
    accepted = place.condition("chat", "Accepted", "ChildConflict")
    assert "Service chat exists" in accepted["message"]
    assert place.child("Service", "chat")["spec"]["ports"][0]["port"] == 80
    assert place.get("Deployment", "chat") is None


def test_a_manifest_that_the_server_refuses_is_said_and_mended_by_an_edit(place: Place) -> None:
    place.serve("chat", engine={"podTemplate": {"spec": {"restartPolicy": "Sometimes"}}})
    failed = place.condition("chat", "Progressing", "ApplyFailed")
    assert "restartPolicy" in failed["message"]
    place.child("Service", "chat")
    serving = place.get(naming.KIND_SERVING, "chat") or {}
    assert serving["status"]["observedGeneration"] == 0
    place.patch(naming.KIND_SERVING, "chat", {"spec": {"engine": {"podTemplate": None}}})
    place.condition("chat", "Progressing", "RollingOut")
    place.child("Deployment", "chat")


def test_a_secret_that_a_pod_misses_is_written_again(place: Place) -> None:
    place.serve("chat")
    _settled(place, "chat")
    name = f"chat-{SECRET}"
    old = place.child("Secret", name)["metadata"]["uid"]
    place.kubectl("delete", "secret", name)
    (pod,) = place.list("Pod")
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod["metadata"]["name"]}}
    target = {"apiVersion": "v1", "kind": "Node", "name": "no-such-node"}
    place.kubectl("create", "--raw", place.path("Pod", pod["metadata"]["name"], "binding"), "-f", "-",
                  input=json.dumps({**binding, "target": target}))  # fmt: skip
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "missing", "namespace": place.namespace},
        "involvedObject": {
            "kind": "Pod",
            "namespace": place.namespace,
            **{k: pod["metadata"][k] for k in ("name", "uid")},
        },
        "reason": "FailedMount",
        "message": f'MountVolume.SetUp failed for volume "paceline-token" : secret "{name}" not found',
        "type": "Warning",
    }
    place.kubectl("create", "-f", "-", input=json.dumps(event))
    waiting = {"name": "engine", "image": "i", "imageID": "", "ready": False, "restartCount": 0}
    waiting["state"] = {"waiting": {"reason": "ContainerCreating"}}
    place.patch("Pod", pod["metadata"]["name"], {"status": {"containerStatuses": [waiting]}}, "status")
    assert place.child("Secret", name)["metadata"]["uid"] != old
