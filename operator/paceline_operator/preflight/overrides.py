"""Rules for the free-form parts of a spec: podTemplate, resources, env. The CRD preserves any shape there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paceline_operator.api.engine import Engine

NAMED_LISTS = ("containers", "initContainers", "volumes", "imagePullSecrets")
RESERVED_ENV_PREFIX = "PACELINE_"


def problems(engine: Engine) -> Iterator[str]:
    """Messages for what no pod could come of."""
    template = engine.pod_template or {}
    for field in ("metadata", "spec"):
        if not isinstance(template.get(field, {}), dict):
            yield f"spec.engine.podTemplate.{field} must be a map"
    pod = template.get("spec")
    if isinstance(pod, dict):
        yield from _lists(pod)
    for field, value in (engine.resources or {}).items():
        if field in ("requests", "limits") and not isinstance(value, dict):
            yield f"spec.engine.resources.{field} must be a map of quantities"
    for variable in engine.env:
        if variable.name.startswith(RESERVED_ENV_PREFIX):
            yield f"spec.engine.env sets {variable.name}: names that begin with {RESERVED_ENV_PREFIX} are the plugin's"


def _lists(pod: dict[str, Any]) -> Iterator[str]:
    for field in NAMED_LISTS:
        items = pod.get(field, [])
        where = f"spec.engine.podTemplate.spec.{field}"
        if items is None and field == "containers":
            yield f"{where} is null: the engine's container cannot be removed"
        elif items is not None and not isinstance(items, list):
            yield f"{where} must be a list"
        elif items and not all(isinstance(item, dict) and isinstance(item.get("name"), str) for item in items):
            yield f"{where} has an item without a name; items are merged by name (the engine's container is `engine`)"
