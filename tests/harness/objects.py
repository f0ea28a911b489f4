"""Objects of the three kinds for tests: the smallest valid ones, with changes laid over them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from kubernetes import client

from paceline_operator.naming import API_VERSION, GROUP, KIND_EXPERIMENT, KIND_PROFILE, KIND_SERVING, VERSION

EXPERIMENT, PROFILE = KIND_EXPERIMENT, KIND_PROFILE
DIGEST = "sha256:" + 64 * "0"
SPECS: dict[str, dict[str, Any]] = {
    KIND_SERVING: {"model": {"source": "hf://Qwen/Qwen3-8B"}, "speculation": {"method": "ngram"}},
    EXPERIMENT: {"servingRef": {"name": "chat"}, "load": {"concurrency": [1, 16], "prompts": {"random": {}}}},
    PROFILE: {
        "key": {
            "gpu": "NVIDIA H200",
            "modelDigest": DIGEST,
            "method": "ngram",
            "maxTokens": 5,
            "engineVersion": "0.33.0",
            "graphMode": "FULL_AND_PIECEWISE",
        },
        "measuredAt": "2026-01-01T00:00:00Z",
        "cost": [{"k": 0, "fromRequests": 1, "stepMicroseconds": 9000, "deviationMicroseconds": 90, "steps": 500}],
    },
}
Change = Mapping[str, Any]
EAGLE: Change = {"speculation": {"method": "eagle3", "draft": {"source": "hf://org/draft"}}}
ROWS = [{"fromRequests": 1, "k": 5}, {"fromRequests": 8, "k": 2}, {"fromRequests": 64, "k": 0}]
"""A table for mode Manual."""
VARIANT: Change = {"name": "k3", "change": {"maxTokens": 3}}


def merged(base: Any, change: Any) -> Any:
    """`base` with `change` laid over it, objects by field; None removes a field."""
    if not isinstance(base, Mapping) or not isinstance(change, Mapping):
        return change
    both = {**base, **{name: merged(base.get(name, {}), value) for name, value in change.items()}}
    return {name: value for name, value in both.items() if value is not None}


def thing(kind: str, change: Change, name: str = "chat") -> dict[str, Any]:
    """An object of `kind`: the smallest one with `change` laid over its spec."""
    spec = merged(SPECS[kind], change)
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}


def create(objects: client.CustomObjectsApi, namespace: str, body: dict[str, Any], **options: Any) -> dict[str, Any]:
    """Create with strict field validation; returns what was stored."""
    plural = f"{body['kind'].lower()}s"
    created: dict[str, Any] = objects.create_namespaced_custom_object(
        GROUP, VERSION, namespace, plural, body, field_validation="Strict", **options
    )
    return created


def causes(refusal: client.ApiException) -> str:
    """The refusal as `field: message` lines."""
    assert refusal.status == 422, refusal.body
    return "\n".join(f"{cause['field']}: {cause['message']}" for cause in json.loads(refusal.body)["details"]["causes"])
