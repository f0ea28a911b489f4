"""The fields of spec.engine.podTemplate against Kubernetes' own: no schema of ours knows them, an API server does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from paceline_operator.api.conditions import Reason
from paceline_operator.cli.mistake import bring
from paceline_operator.examined import Examined, Level, Remark

FREE = {"podTemplate": "V1PodTemplateSpec", "resources": "V1ResourceRequirements"}
"""Fields of spec.engine whose shape the CRD leaves to Kubernetes."""
PLAIN: dict[str, tuple[type, ...]] = {"str": (str,), "bool": (bool,), "int": (int,), "float": (int, float)}
QUANTITIES = frozenset({"limits", "requests", "overhead", "sizeLimit", "divisor", "storage"})
"""Fields that the client calls texts, and an API server also takes as numbers (resource.Quantity)."""


def checked(document: Mapping[str, Any], found: Examined) -> Examined:
    """`found` of a serving's `document`, and what of its pods an API server would not take."""
    spec = document.get("spec")
    engine = spec.get("engine") if isinstance(spec, Mapping) else None
    if not found.version or not isinstance(engine, Mapping) or not FREE.keys() & engine.keys():
        return found
    try:
        wrong = [Remark(Level.REFUSED, Reason.INVALID_SPEC, text) for text in mistakes(engine)]
    except ImportError:
        text = f"fields of spec.engine.podTemplate were not looked at: {bring('operator,cli')}"
        return found._replace(remarks=(*found.remarks, Remark(Level.NOTE, "not-checked", text)))
    return found._replace(accepted=found.accepted and not wrong, remarks=(*wrong, *found.remarks))


def mistakes(engine: Mapping[str, Any]) -> Iterator[str]:
    """Messages for fields that pods have not, and for values of another type. A null removes what is rendered.

    Raises ImportError where the Kubernetes client, whose models say what there is, is not installed.
    """
    from kubernetes.client import models

    for field, kind in FREE.items():
        yield from _of(models, kind, engine.get(field), f"spec.engine.{field}")


def _of(models: Any, kind: str, value: Any, where: str) -> Iterator[str]:
    if value is None or kind == "object":
        return
    if kind == "datetime":
        kind = "str"
    if kind in PLAIN:
        number = isinstance(value, int | float) and where.rpartition(".")[2] in QUANTITIES
        right = isinstance(value, PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))
        if not right and not number:
            quote = ": put it in quotes" if kind == "str" and isinstance(value, int | float) else ""
            yield f"{where} is {_shown(value)}, which is no {kind}{quote}"
    elif kind.lower().startswith("list"):
        if not isinstance(value, list):
            yield f"{where} must be a list"
            return
        for index, item in enumerate(value):
            name = item.get("name") if isinstance(item, dict) else None
            yield from _of(models, kind[5:-1], item, f"{where}[{name if isinstance(name, str) else index}]")
    elif not isinstance(value, dict):
        yield f"{where} must be a map"
    elif kind.lower().startswith("dict"):
        inner = re.split(r",\s*", kind[5:-1], maxsplit=1)[1]
        for key, item in value.items():
            quantity = where.rpartition(".")[2] in QUANTITIES and isinstance(item, int | float)
            if not (quantity and not isinstance(item, bool)):
                yield from _of(models, inner, item, f"{where}[{key}]")
    else:
        yield from _model(models, getattr(models, kind), value, where)


def _model(models: Any, model: Any, value: dict[Any, Any], where: str) -> Iterator[str]:
    known = {name: model.openapi_types[attribute] for attribute, name in model.attribute_map.items()}
    for key, item in value.items():
        if key in known:
            yield from _of(models, known[key], item, f"{where}.{key}")
        else:
            like = next((name for name in known if name.lower() == str(key).lower()), "")
            yield f"{where}.{key}: pods have no such field" + (f": it is {like}" if like else "")


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."
