"""The fields of a spec as the CRD's schema has them, and values that the schema takes and refuses. Pure."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from paceline_operator.api.crd import KINDS, crd
from paceline_operator.naming import KIND_SERVING

Schema = Mapping[str, Any]
TEXTS = (
    "a-name",
    "b-name",
    "hf://owner/first",
    "hf://owner/second",
    "images.example/first:1",
    "images.example/second:2",
    "1Gi",
    "2Gi",
    "http://first.example:9090",
    "http://second.example:9090",
    "first.example",
    "second.example",
    "A_NAME",
    "B_NAME",
    "Mon",
    "Tue",
    "02:00",
    "03:00",
)
"""Tried in turn where a field takes texts of a form: those that have it are taken."""
SENTINEL = "no-such-value"


@dataclass(frozen=True)
class Field:
    """A field that holds a value of its own, or a list of them. Fields of a list's items have `[]` in their path."""

    path: str
    """Below spec: `engine.maxNumSeqs`."""
    node: Schema
    required: bool
    """Wherever the object around it is there."""

    @property
    def of_items(self) -> bool:
        """Whether it is set as part of its list alone."""
        return "[]" in self.path


@cache
def spec_schema() -> Schema:
    """Of a SpeculativeServing's spec, as it is installed."""
    (kind,) = (kind for kind in KINDS if kind.name == KIND_SERVING)
    schema: Schema = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return schema


def fields(node: Schema | None = None, path: str = "", *, required: bool = True) -> Iterator[Field]:
    """All of them, in the order of the schema."""
    node = spec_schema() if node is None else node
    members = node.get("properties", {})
    if path and (not members or node["type"] == "array"):
        yield Field(path, node, required)
    if node["type"] == "array" and "properties" in node["items"]:
        yield from (f for f in fields(node["items"], f"{path}[]") if f.path != f"{path}[]")
    for name, member in members.items():
        yield from fields(member, f"{path}.{name}".lstrip("."), required=name in node.get("required", ()))


def laid(spec: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """`spec` with `value` at `path`; what the objects on the way require is filled in. None takes the field out."""
    whole: dict[str, Any] = copy.deepcopy(dict(spec))
    node, at = spec_schema(), whole
    *way, last = path.split(".")
    for name in way:
        node = node["properties"][name]
        if name not in at:
            at[name] = {need: values(node["properties"][need])[0] for need in node.get("required", ())}
        at = at[name]
    if value is None:
        at.pop(last, None)
    else:
        at[last] = value
    return whole


def values(node: Schema) -> list[Any]:
    """Values that a field takes by its schema, its default last; two and more where there are as many.

    Empty where nobody can guess one.
    """
    found = _values(node)
    return [v for v in found if v != node.get("default")] + [v for v in found if v == node.get("default")]


def _values(node: Schema) -> list[Any]:
    if "enum" in node:
        return list(node["enum"])
    kind = node["type"]
    if kind == "boolean":
        return [True, False]
    if kind == "integer":
        low, high = node.get("minimum", 0), node.get("maximum", 2**31)
        near = node.get("default", low)
        return [number for number in (near + 1, near + 2, near - 1, near - 2, near) if low <= number <= high]
    if kind == "string":
        return [text for text in TEXTS if _takes(node, text)]
    if kind == "array":
        items = _values(node["items"])
        return [[item] for item in items[:2]] if node.get("minItems", 0) <= 1 else [items]
    if "additionalProperties" in node:
        return [{"a-name": value} for value in _values(node["additionalProperties"])[:2]]
    if "properties" in node:
        return _objects(node)
    return []


def _objects(node: Schema) -> list[Any]:
    """Of an object with fields: with what it requires, or its first field where it requires nothing."""
    needs = node.get("required") or list(node["properties"])[:1]
    of = {name: _values(node["properties"][name]) for name in needs}
    if not all(of.values()):
        return []
    return [{name: found[min(i, len(found) - 1)] for name, found in of.items()} for i in range(2)]


def _takes(node: Schema, text: str) -> bool:
    fits = node.get("minLength", 0) <= len(text) <= node.get("maxLength", len(text))
    return fits and re.search(node.get("pattern", ""), text) is not None


def refused(node: Schema) -> list[Any]:
    """Values that the schema refuses: beyond each bound, of no known word, and of another type."""
    kind = node["type"]
    found: list[Any] = [{"integer": "1", "string": 1, "boolean": "yes", "array": {}, "object": 1}[kind]]
    if "enum" in node:
        return [*found, SENTINEL]
    for bound, step in (("minimum", -1), ("maximum", 1)):
        if bound in node:
            found.append(node[bound] + step)
    if kind == "string":
        found += [""] if node.get("minLength") else []
        found += ["x" * (node["maxLength"] + 1)] if "maxLength" in node else []
        found += [text for text in (" ", "-", "*", "a b") if not _takes(node, text)][:1]
    if kind == "array":
        item = (_values(node["items"]) or [None])[0]
        found += [[]] if node.get("minItems") else []
        if "maxItems" in node and item is not None:
            found.append([item] * (node["maxItems"] + 1))
        found += [[bad] for bad in refused(node["items"])]
    return found
