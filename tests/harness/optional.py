"""Bare definitions of the kinds that a cluster may lack: the fields that the operator sets, so that a typo is refused.

Written after the public APIs: LeaderWorkerSet v1 (lws.sigs.k8s.io), InferencePool v1
(gateway-api-inference-extension.sigs.k8s.io), HTTPRoute v1 (gateway-api.sigs.k8s.io), ScaledObject v1alpha1 (keda.sh).
Nothing acts on these objects here.
"""

from __future__ import annotations

import json
from typing import Any

from paceline_operator.kinds import OPTIONAL, crd_of
from tests.harness.controlplane import ControlPlane

Schema = dict[str, Any]
ANY: Schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
COUNT: Schema = {"type": "integer", "format": "int32", "minimum": 0}
PORT: Schema = {"type": "integer", "format": "int32", "minimum": 1, "maximum": 65535}
BOOLEAN: Schema = {"type": "boolean"}
INT_OR_STRING: Schema = {"x-kubernetes-int-or-string": True}


def text(*among: str, **more: Any) -> Schema:
    return {"type": "string", **({"enum": list(among)} if among else {}), **more}


def fields(*required: str, **properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, **({"required": list(required)} if required else {})}


def items(of: Schema, key: str = "", **more: Any) -> Schema:
    keyed = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]} if key else {}
    return {"type": "array", "items": of, **(keyed or {"x-kubernetes-list-type": "atomic"}), **more}


def mapping(of: Schema) -> Schema:
    return {"type": "object", "additionalProperties": of}


def _template() -> Schema:
    """The outline of a pod template: the lists that merge by name, and the rest as it comes."""
    named = {**fields("name", name=text()), "x-kubernetes-preserve-unknown-fields": True}
    lists = {name: items(named, "name") for name in ("containers", "initContainers", "volumes")}
    spec = {**fields("containers", **lists), "x-kubernetes-preserve-unknown-fields": True}
    return fields("spec", metadata=fields(labels=mapping(text()), annotations=mapping(text())), spec=spec)


def _leader_worker_set() -> Schema:
    rolling = fields(
        maxSurge={**INT_OR_STRING, "default": 0}, maxUnavailable={**INT_OR_STRING, "default": 1}, partition=COUNT
    )
    restart = ("Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None")
    return fields(
        "leaderWorkerTemplate",
        replicas={**COUNT, "default": 1},
        startupPolicy=text("LeaderCreated", "LeaderReady", default="LeaderCreated"),
        rolloutStrategy=fields("type", type=text("RollingUpdate"), rollingUpdateConfiguration=rolling),
        leaderWorkerTemplate=fields(
            "workerTemplate",
            size={**COUNT, "default": 1},
            restartPolicy=text(*restart, default="RecreateGroupOnPodRestart"),
            leaderTemplate=_template(),
            workerTemplate=_template(),
        ),
    )


def _inference_pool() -> Schema:
    number = fields("number", number=PORT)
    picker = fields(
        "name",
        group=text(default=""),
        kind=text(default="Service"),
        name=text(minLength=1),
        port=number,
        failureMode=text("FailOpen", "FailClose", default="FailClose"),
    )
    rule = {"rule": "self.kind != 'Service' || has(self.port)", "message": "port is required when kind is 'Service'"}
    return fields(
        "selector",
        "targetPorts",
        "endpointPickerRef",
        selector=fields("matchLabels", matchLabels=mapping(text(maxLength=63))),
        targetPorts=items(number, minItems=1, maxItems=8),
        endpointPickerRef={**picker, "x-kubernetes-validations": [rule]},
    )


def _http_route() -> Schema:
    parent = fields(
        "name",
        group=text(default="gateway.networking.k8s.io"),
        kind=text(default="Gateway"),
        name=text(minLength=1),
        namespace=text(),
        sectionName=text(),
        port=PORT,
    )
    backend = fields(
        "name",
        group=text(default=""),
        kind=text(default="Service"),
        name=text(minLength=1),
        namespace=text(),
        port=PORT,
        weight={**COUNT, "default": 1, "maximum": 1_000_000},
    )
    matches = {**items(ANY), "default": [{"path": {"type": "PathPrefix", "value": "/"}}]}
    duration = text(pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")
    rule = fields(backendRefs=items(backend), matches=matches, timeouts=fields(request=duration))
    return fields(parentRefs=items(parent, maxItems=32), hostnames=items(text()), rules=items(rule, minItems=1))


def _scaled_object() -> Schema:
    policy = fields("type", "value", "periodSeconds", type=text("Pods", "Percent"), value=COUNT, periodSeconds=COUNT)
    direction = fields(
        stabilizationWindowSeconds=COUNT, selectPolicy=text("Max", "Min", "Disabled"), policies=items(policy)
    )
    behaviour = text("static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower")
    autoscaler = fields(behavior=fields(scaleUp=direction, scaleDown=direction))
    metric_types = ("AverageValue", "Value", "Utilization")
    trigger = fields("type", "metadata", type=text(), metricType=text(*metric_types), metadata=mapping(text()))
    return fields(
        "scaleTargetRef",
        "triggers",
        scaleTargetRef=fields("name", apiVersion=text(), kind=text(), name=text()),
        minReplicaCount=COUNT,
        maxReplicaCount=COUNT,
        pollingInterval=COUNT,
        cooldownPeriod=COUNT,
        initialCooldownPeriod=COUNT,
        fallback=fields("failureThreshold", "replicas", failureThreshold=COUNT, replicas=COUNT, behavior=behaviour),
        advanced=fields(restoreToOriginalReplicaCount=BOOLEAN, horizontalPodAutoscalerConfig=autoscaler),
        triggers=items(trigger),
    )


SPECS = {
    "LeaderWorkerSet": _leader_worker_set,
    "InferencePool": _inference_pool,
    "HTTPRoute": _http_route,
    "ScaledObject": _scaled_object,
}


def definition(kind: str) -> dict[str, Any]:
    """The CustomResourceDefinition of an optional kind. Its status holds whatever a test says."""
    group_version, plural = OPTIONAL[kind]
    group, _, version = group_version.partition("/")
    root = fields("spec", spec=SPECS[kind](), status=ANY)
    metadata: dict[str, Any] = {"name": crd_of(kind)}
    if group.endswith(".k8s.io"):  # the API server refuses the group of others unless it is said to be approved
        metadata["annotations"] = {"api-approved.kubernetes.io": "unapproved, for tests"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"},
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": root},
                    "subresources": {"status": {}},
                }
            ],
        },
    }


def install(cluster: ControlPlane, *kinds: str) -> None:
    """Let the cluster have these kinds."""
    for kind in kinds:
        cluster.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(definition(kind)))
        cluster.established(f"crd/{crd_of(kind)}")


def remove(cluster: ControlPlane, *kinds: str) -> None:
    """Let it lose them, and all their objects."""
    cluster.kubectl("delete", "crd", "--ignore-not-found", *map(crd_of, kinds))
