"""The compatibility matrix and the security findings against a real API server: both say what it says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client

from paceline_operator.naming import API_VERSION, KIND_SERVING
from paceline_operator.preflight.matrix import Rule
from paceline_operator.preflight.security import weaknesses
from paceline_operator.resources import pod
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import causes, create
from tests.rules import REFUSALS, spec_of
from tests.servings import DEFAULTS, TOKENS, serving, table_of

pytestmark = pytest.mark.cluster

OF_ENGINE: list[dict[str, Any]] = [
    {"securityContext": {"privileged": True, "allowPrivilegeEscalation": True}},
    {"securityContext": {"allowPrivilegeEscalation": None}},
    {"securityContext": {"capabilities": {"drop": None}}},
    {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}},
    {"securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}}},
    {"securityContext": {"readOnlyRootFilesystem": False}},
    {"securityContext": {"runAsNonRoot": False}},
    {"securityContext": {"runAsUser": 0}},
    {"securityContext": {"runAsUser": 1234}},
    {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    {"securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "p"}}},
    {"securityContext": {"appArmorProfile": {"type": "Unconfined"}}},
    {"securityContext": {"seLinuxOptions": {"type": "spc_t"}}},
    {"securityContext": {"seLinuxOptions": {"type": "container_t"}}},
    {"ports": [{"name": "http", "containerPort": 8000, "hostPort": 8000}]},
    {"envFrom": [{"secretRef": {"name": "s"}}]},
    {},
]
OF_POD: list[dict[str, Any]] = [
    {"hostNetwork": True},
    {"hostPID": True},
    {"hostIPC": True},
    {"shareProcessNamespace": True},
    {"automountServiceAccountToken": True},
    {"securityContext": {"runAsNonRoot": None}},
    {"securityContext": {"runAsNonRoot": False}},
    {"securityContext": {"seccompProfile": None}},
    {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
    {"securityContext": {"runAsUser": 0}},
    {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    {"securityContext": {"sysctls": [{"name": "net.ipv4.tcp_keepalive_time", "value": "60"}]}},
    {"volumes": [{"name": "tmp", "hostPath": {"path": "/tmp"}}]},
    {"volumes": [{"name": "tmp", "nfs": {"server": "s", "path": "/"}}]},
    {"volumes": [{"name": "tmp", "csi": {"driver": "d"}}]},
    {"containers": [{"name": "proxy", "image": "proxy"}]},
    {"initContainers": [{"name": "first", "image": "first", "securityContext": {"privileged": True}}]},
]
OVERRIDES = [*({"containers": [{"name": "engine", **fields}]} for fields in OF_ENGINE), *OF_POD]


@pytest.fixture(scope="module")
def restricted(control_plane: ControlPlane, module_namespace: str) -> str:
    """A namespace that enforces the Pod Security Standard `restricted`."""
    control_plane.kubectl("label", "namespace", module_namespace, "pod-security.kubernetes.io/enforce=restricted")
    return module_namespace


@pytest.mark.parametrize("rule", REFUSALS, ids=lambda rule: rule.id)
def test_the_crd_refuses_what_the_matrix_says_it_refuses(crds: ControlPlane, module_namespace: str, rule: Rule) -> None:
    spec = spec_of(rule).spec.model_dump(by_alias=True, exclude_unset=True, exclude_none=True, mode="json")
    body = {"apiVersion": API_VERSION, "kind": KIND_SERVING, "metadata": {"name": "chat"}, "spec": spec}
    objects = client.CustomObjectsApi(crds.api)
    if not rule.cel:
        create(objects, module_namespace, body, dry_run="All")
        return
    with pytest.raises(client.ApiException) as refusal:
        create(objects, module_namespace, body, dry_run="All")
    assert f"spec.{rule.field}: " in causes(refusal.value)


CASES = [(override, True) for override in OVERRIDES] + [(OVERRIDES[0], False), ({}, False)]


@pytest.mark.parametrize(
    ("override", "drafter"), CASES, ids=[f"{json.dumps(one)[:60]} {'' if draft else 'plain'}" for one, draft in CASES]
)
def test_pods_that_restricted_refuses_are_those_found_weak_in_that_way(
    control_plane: ControlPlane, restricted: str, override: dict[str, Any], drafter: bool
) -> None:
    given = serving(engine={"podTemplate": {"spec": override}})
    template = pod.build(given, table_of(given), DEFAULTS, TOKENS, drafter=drafter)
    # Admission asks for the account before it looks at the pod's security.
    body = {**template, "metadata": {**template["metadata"], "name": "pod"}}
    body["spec"] = {**template["spec"], "serviceAccountName": "default"}
    said = answer(control_plane, restricted, body)
    found = weaknesses(template, given.spec.engine)
    assert ("violates PodSecurity" in said) is any(one.restricted for one in found), (said, found)
    assert not said or "violates PodSecurity" in said


def answer(cluster: ControlPlane, namespace: str, body: dict[str, Any]) -> str:
    """What the API server says against the pod; empty if nothing."""
    try:
        client.CoreV1Api(cluster.api).create_namespaced_pod(namespace, body, dry_run="All")
    except client.ApiException as error:
        return str(error.body)
    return ""
