"""Rules for the free-form parts of a spec: podTemplate, resources, env. The CRD preserves any shape there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from paceline_operator.api.engine import DEV_MODE, Engine, identified

QUANTITY = re.compile(r"\+?(\d+\.?\d*|\.\d+)([numkMGTPE]|[KMGTPE]i|[eE][-+]?\d+)?")
"""As Kubernetes reads them (apimachinery, api/resource/quantity.go); none below 0. The API server answers another text
with an error of its own (500), which would be tried again for ever."""
NAMED_LISTS = ("containers", "initContainers", "volumes", "imagePullSecrets")
RESERVED_ENV_PREFIX = "PACELINE_"
ENGINE_CONTAINER = "engine"
IDENTIFIED = {"env": "name", "volumeMounts": "mountPath"}
"""Lists in a container that are merged item by item -> key of an item. Any other list takes the place of what is
rendered, and with it the plugin's variables or the model's volume."""
RENDERED = ("command", "args")
"""Fields of the engine's container that are the operator's alone: arguments come from the spec."""


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
        if field in ("requests", "limits"):
            yield from _quantities(value, f"spec.engine.resources.{field}")
    for variable in engine.env:
        if variable.name.startswith(RESERVED_ENV_PREFIX):
            yield f"spec.engine.env sets {variable.name}: names that begin with {RESERVED_ENV_PREFIX} are the plugin's"
        if variable.name == DEV_MODE:
            yield _dev_mode("spec.engine.env")


def _quantities(value: Any, where: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{where} must be a map of quantities"
        return
    for name, quantity in value.items():
        number = isinstance(quantity, int | float) and not isinstance(quantity, bool) and quantity >= 0
        if not number and not (isinstance(quantity, str) and QUANTITY.fullmatch(quantity)):
            yield f"{where}.{name} is {quantity!r}, which is no quantity: write 8, 500m or 16Gi"


def _lists(pod: dict[str, Any]) -> Iterator[str]:
    for field in NAMED_LISTS:
        items = pod.get(field, [])
        where = f"spec.engine.podTemplate.spec.{field}"
        if items is None and field == "containers":
            yield f"{where} is null: the engine's container cannot be removed"
        elif items is not None and not isinstance(items, list):
            yield f"{where} must be a list"
        elif items and not identified(items, "name"):
            yield f"{where} has an item without a name; items are merged by name (the engine's container is `engine`)"
        else:
            yield from _containers(items or [], where)


def _containers(items: list[dict[str, Any]], where: str) -> Iterator[str]:
    for item in items:
        at = f"{where}[{item['name']}]"
        ours = where.endswith(".containers") and item["name"] == ENGINE_CONTAINER
        if not isinstance(item.get("image", ""), str):
            yield f"{at}.image must be the name of an image, in quotes where it looks like a number"
        for field, key in IDENTIFIED.items():
            value = item.get(field, [])
            if value is None and ours:
                yield f"{at}.{field} is null: the engine needs what is rendered there; leave it out"
            elif value is not None and not identified(value, key):
                yield f"{at}.{field} must be a list of maps, each with its {key}"
        env = item.get("env")
        if isinstance(env, list) and any(isinstance(one, dict) and one.get("name") == DEV_MODE for one in env):
            yield _dev_mode(f"{at}.env")
        if ours:
            for field in RENDERED:
                if field in item:
                    yield f"{at}.{field} replaces vLLM's arguments: use spec.engine.extraArgs"


def _dev_mode(where: str) -> str:
    return f"{where} sets {DEV_MODE}: its routes run anybody's code in the engine, and it is never set; remove it"
