"""/scale, /status and the columns of `kubectl get` on the real API server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kubernetes import client

from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.clients.kube import InvalidError, Kube
from paceline_operator.naming import API_VERSION, FIELD_MANAGER, GROUP, KIND_SERVING, PLURAL_SERVING, VERSION
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import causes, create, thing

pytestmark = pytest.mark.cluster


@pytest.fixture
def objects(crds: ControlPlane) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(crds.api)


def test_scale_reads_and_writes_replicas_and_gives_the_selector(crds: ControlPlane, namespace: str) -> None:
    objects = client.CustomObjectsApi(crds.api)
    create(objects, namespace, thing(KIND_SERVING, {}))
    where = (GROUP, VERSION, namespace, PLURAL_SERVING, "chat")
    objects.patch_namespaced_custom_object_status(*where, {"status": {"replicas": 1, "selector": "a=b"}})
    assert objects.get_namespaced_custom_object_scale(*where)["status"] == {"replicas": 1, "selector": "a=b"}
    crds.kubectl("-n", namespace, "scale", "ss/chat", "--replicas=3")
    assert objects.get_namespaced_custom_object(*where)["spec"]["replicas"] == 3
    with pytest.raises(client.ApiException) as refusal:
        objects.patch_namespaced_custom_object_scale(*where, {"spec": {"replicas": 10_001}})
    assert "spec.replicas" in causes(refusal.value)


def status(**fields: Any) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND_SERVING, "metadata": {"name": "chat"}, "status": fields}


def condition(**changes: Any) -> dict[str, Any]:
    ready = {"type": "Ready", "status": "True", "reason": "ReplicasReady", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    return {**ready, **changes}


def apply_status(objects: client.CustomObjectsApi, namespace: str, body: dict[str, Any]) -> dict[str, Any]:
    stored: dict[str, Any] = objects.patch_namespaced_custom_object_status(
        *(GROUP, VERSION, namespace, PLURAL_SERVING, "chat", body),
        field_manager=FIELD_MANAGER,
        force=True,
        _content_type="application/apply-patch+yaml",
    )
    return stored


def test_status_is_its_own_door(objects: client.CustomObjectsApi, namespace: str) -> None:
    created = create(objects, namespace, {**thing(KIND_SERVING, {}), "status": {"k": "5"}})
    assert "status" not in created
    stored = apply_status(objects, namespace, status(k="5", tier="Live", conditions=[condition()]) | {"spec": {}})
    assert stored["status"] == {"k": "5", "tier": "Live", "conditions": [condition()]}
    assert (stored["spec"], stored["metadata"]["generation"]) == (created["spec"], 1)
    assert SpeculativeServing.model_validate(stored).status.conditions[0].type == "Ready"


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"tier": "Fast"}, "status.tier"),
        ({"pods": [{"name": "a"}]}, "status.pods[0].tier"),
        ({"conditions": [condition(status="Yes")]}, "status.conditions[0].status"),
        ({"conditions": [condition(reason="two words")]}, "status.conditions[0].reason"),
        ({"conditions": [condition(lastTransitionTime="now")]}, "status.conditions[0].lastTransitionTime"),
        ({"buckets": 25 * [{"fromRequests": 1, "k": 1, "observed": True}]}, "status.buckets"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_status_that_lies_about_its_types_is_refused(
    objects: client.CustomObjectsApi, module_namespace: str, fields: dict[str, Any], field: str
) -> None:
    apply = status() | {"spec": thing(KIND_SERVING, {})["spec"]}
    objects.patch_namespaced_custom_object(
        *(GROUP, VERSION, module_namespace, PLURAL_SERVING, "chat", apply),
        field_manager="test",
        _content_type="application/apply-patch+yaml",
    )
    with pytest.raises(client.ApiException) as refusal:
        apply_status(objects, module_namespace, status(**fields))
    assert f"{field}: " in causes(refusal.value)


def test_a_status_value_of_another_type_is_invalid_to_our_client(crds: ControlPlane, namespace: str) -> None:
    """The API server answers 500: it is told by its text."""
    create(client.CustomObjectsApi(crds.api), namespace, thing(KIND_SERVING, {}))
    body = status(policyGeneration="many") | {"metadata": {"name": "chat", "namespace": namespace}}

    async def apply() -> None:
        async with Kube(crds.api) as kube:
            await kube.apply(body, "status")

    with pytest.raises(InvalidError) as refusal:
        asyncio.run(apply())
    assert refusal.value.status == 500
    assert ".status.policyGeneration" in str(refusal.value)


def test_an_unknown_status_field_is_pruned(objects: client.CustomObjectsApi, namespace: str) -> None:
    create(objects, namespace, thing(KIND_SERVING, {}))
    where = (GROUP, VERSION, namespace, PLURAL_SERVING, "chat")
    stored = objects.patch_namespaced_custom_object_status(*where, {"status": {"k": "3", "phase": "Running"}})
    assert stored["status"] == {"k": "3"}


def test_what_people_see(crds: ControlPlane, namespace: str) -> None:
    objects = client.CustomObjectsApi(crds.api)
    create(objects, namespace, thing(KIND_SERVING, {}))
    apply_status(objects, namespace, status(k="3", tier="Live", replicas=2, conditions=[condition()]))
    head, row = crds.kubectl("-n", namespace, "get", "ss").stdout.splitlines()
    assert head.split() == ["NAME", "READY", "K", "REPLICAS", "TIER", "AGE"]
    assert row.split()[:5] == ["chat", "True", "3", "2", "Live"]
    of_category = crds.kubectl("-n", namespace, "get", "paceline", "-o", "name").stdout
    assert of_category.split() == ["speculativeserving.paceline.dev/chat"]
    assert "Largest k the engine boots with" in crds.kubectl("explain", "ss.spec.speculation.maxTokens").stdout
