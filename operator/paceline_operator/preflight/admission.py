"""What an API server refuses by the CRD and legality.py does not repeat: for manifests that have not met one yet."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, cast

from pydantic import BaseModel

from paceline_operator.api.autoscaling import AutoscalingMode
from paceline_operator.api.engine import Device, PluginInjection
from paceline_operator.api.rollout import CanaryMode
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.structural import Schema, structural
from paceline_operator.clock import moment

LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
LABEL_LENGTH = 64


def problems(spec: ServingSpec) -> Iterator[str]:
    """Messages, each with its field."""
    engine = spec.engine
    gpus = engine.tensor_parallel_size * engine.pipeline_parallel_size
    if engine.multi_node and (engine.device is not Device.GPU or gpus % engine.multi_node.nodes):
        yield (
            f"spec.engine.multiNode.nodes {engine.multi_node.nodes} must divide tensorParallelSize * "
            f"pipelineParallelSize ({gpus}) of a GPU engine: each node has as many GPUs"
        )
    cache = spec.model.cache
    if cache and (cache.claim_name is None) == (cache.claim is None):
        yield "spec.model.cache: set one of claimName (a claim that is there) and claim (one to make)"
    prometheus = spec.metrics.prometheus
    for name in prometheus.labels if prometheus else ():
        if len(name) > LABEL_LENGTH or not LABEL.fullmatch(name):
            yield f"spec.metrics.prometheus.labels: {name[:64]!r}: a label's name is of letters, digits and _"
    if spec.rollout.require_canary and spec.rollout.canary.mode is CanaryMode.DISABLED:
        yield "spec.rollout.requireCanary and canary.mode Disabled exclude each other: remove one"
    if spec.rollout.windows_for_user_changes and not spec.rollout.maintenance_windows:
        yield "spec.rollout.windowsForUserChanges needs a window in spec.rollout.maintenanceWindows"
    yield from _autoscaling(spec)


def of_schema(model: type[BaseModel], spec: Any) -> Iterator[str]:
    """Messages for what the CRD's schema of `model`'s spec asks beyond types: no item twice, times that are times."""
    yield from _of_schema(_schema(model), spec, "spec")


@cache
def _schema(model: type[BaseModel]) -> Schema:
    return structural(cast(type[BaseModel], model.model_fields["spec"].annotation), "spec")


def _of_schema(schema: Mapping[str, Any], value: Any, where: str) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, inner in schema.get("properties", {}).items():
            yield from _of_schema(inner, value.get(name), f"{where}.{name}")
        if isinstance(rest := schema.get("additionalProperties"), Mapping):
            for name, item in value.items():
                yield from _of_schema(rest, item, f"{where}[{name}]")
    elif isinstance(value, list):
        keys, seen = schema.get("x-kubernetes-list-map-keys"), set[str]()
        alone = schema.get("x-kubernetes-list-type") in ("set", "map")
        for index, item in enumerate(value):
            same = repr([item.get(key) for key in keys] if keys and isinstance(item, Mapping) else item)
            if alone and same in seen:
                yield f"{where}[{index}] is there twice: remove one"
            seen.add(same)
            yield from _of_schema(schema.get("items", {}), item, f"{where}[{index}]")
    elif schema.get("format") == "date-time" and value is not None and moment(value) is None:
        yield f"{where} is {str(value)[:40]!r}, which is no time: write 2026-01-01T00:00:00Z"


def _autoscaling(spec: ServingSpec) -> Iterator[str]:
    asked, at = spec.autoscaling, "spec.autoscaling"
    if asked.max_replicas is not None and asked.min_replicas > asked.max_replicas:
        yield f"{at}.minReplicas {asked.min_replicas} exceeds maxReplicas {asked.max_replicas}"
    if asked.mode is AutoscalingMode.DISABLED:
        return
    if asked.max_replicas is None:
        yield f"{at}.mode {asked.mode} needs {at}.maxReplicas"
    if asked.mode is AutoscalingMode.BUILTIN:
        if asked.min_replicas == 0:
            yield f"{at}.minReplicas: mode Builtin cannot wake from zero pods: use mode KEDA with keda.wakeUpQuery"
        if asked.target_running_requests is None and spec.slo.tpot_milliseconds is None:
            yield f"{at}.mode Builtin needs {at}.targetRunningRequests or spec.slo.tpotMilliseconds"
        if spec.engine.plugin.injection is PluginInjection.NONE:
            yield f"{at}.mode Builtin counts requests through the plugin: use a HorizontalPodAutoscaler or KEDA"
        return
    if asked.min_replicas == 0 and asked.keda.wake_up_query is None:
        yield f"{at}.minReplicas 0 needs {at}.keda.wakeUpQuery"
    if asked.target_running_requests is None:
        yield f"{at}.mode KEDA needs {at}.targetRunningRequests"
    if asked.keda.server_address is None and (spec.metrics.prometheus is None or spec.metrics.prometheus.url is None):
        yield f"{at}.mode KEDA needs {at}.keda.serverAddress or spec.metrics.prometheus.url"
