"""What an API server refuses of a manifest beyond its types: version, name, fields that nobody reads, loose types."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from paceline_operator import naming
from paceline_operator.api.base import NAME_LENGTH, NAME_PATTERN, NAME_RULE, ApiModel
from paceline_operator.api.model import SOURCE_PATTERN
from paceline_operator.api.serving import MULTI_NODE_NAME_LENGTH, MULTI_NODE_NAME_RULE, SpeculativeServing

SOURCES = "hf://owner/name, s3://bucket/path, pvc://claim/path, oci://image or /path"
LIKE = 0.8
"""Share of letters in common (difflib) from which a name is another misspelt; no kind of Kubernetes is one of ours."""


def mistakes(document: Mapping[str, Any], parsed: ApiModel) -> Iterator[str]:
    """Of one object of a kind of ours, and what it was parsed to: each mistake with its place."""
    version = document.get("apiVersion")
    if version != naming.API_VERSION:
        yield f"apiVersion: {version!r} is not {naming.API_VERSION}"
    yield from misnamed(parsed)
    yield from unread(document, parsed)


def misnamed(parsed: ApiModel) -> Iterator[str]:
    """What is wrong with its name."""
    name = getattr(getattr(parsed, "metadata", None), "name", "")
    if len(name) > NAME_LENGTH or not re.fullmatch(NAME_PATTERN, name):
        yield f"metadata.name {name[:64]!r}: {NAME_RULE[1]}"
    elif (
        isinstance(parsed, SpeculativeServing) and parsed.spec.engine.multi_node and len(name) > MULTI_NODE_NAME_LENGTH
    ):
        yield f"metadata.name {name!r}: {MULTI_NODE_NAME_RULE[1]}"


def unread(document: Mapping[str, Any], parsed: ApiModel) -> list[str]:
    """What was written but is not in what was understood: a field that nobody reads, or of another type."""
    try:
        return list(_misread(document, parsed.model_dump(mode="json", by_alias=True, exclude_unset=True), ()))
    except (ValueError, RecursionError):
        return ["a value contains itself (`&` and `*`)"]


def refusals(document: Mapping[str, Any], model: type[ApiModel]) -> list[str]:
    """Why `document` is no `model`: what is wrong or missing, and fields that nobody reads: one may be what is missing.

    For a document that is refused: of one that is not, `unread` knows more.
    """
    try:
        model.model_validate(document, extra="forbid", by_alias=True, by_name=False)
    except ValidationError as error:
        details = error.errors(include_url=False)
    else:
        return []
    missing = {detail["loc"] for detail in details if detail["type"] == "missing"}
    return [
        _unknown(detail["loc"], missing) if detail["type"] == "extra_forbidden" else _refusal(detail)
        for detail in details
        if detail["type"] != "extra_forbidden" or detail["loc"][0] != "metadata"
    ]


def meant(name: str, names: Collection[str]) -> str:
    """`is method meant?` where `name` is one of `names` misspelt; empty: it is like none."""
    near = difflib.get_close_matches(name, names, 1, LIKE)
    return f"is {near[0]} meant?" if near else ""


def _unknown(location: tuple[str | int, ...], missing: Collection[tuple[str | int, ...]]) -> str:
    *parent, name = location
    near = meant(str(name), [str(key) for *beside, key in missing if beside == parent])
    return f"unknown field {place(location)}" + (f": {near}" if near else "")


def _refusal(detail: Mapping[str, Any]) -> str:
    said = detail["msg"]
    if (detail.get("ctx") or {}).get("pattern") == SOURCE_PATTERN:
        given = str(detail["input"])
        near = f"; is hf://{given} meant?" if re.fullmatch(SOURCE_PATTERN, f"hf://{given}") else ""
        said = f"not a source: write {SOURCES}{near}"
    return f"{place(detail['loc'])}: {said}"


def place(location: tuple[str | int, ...]) -> str:
    """`spec.phases.0.text`."""
    return ".".join(map(str, location)) or "document"


def _misread(written: Any, understood: Any, at: tuple[str | int, ...]) -> Iterator[str]:
    if at == ("metadata",):
        return
    if isinstance(written, Mapping) and isinstance(understood, dict):
        for key, value in written.items():
            if key in understood:
                yield from _misread(value, understood[key], (*at, key))
            else:
                yield f"unknown field {place((*at, key))}"
    elif isinstance(written, list) and isinstance(understood, list):
        for number, pair in enumerate(zip(written, understood, strict=False)):
            yield from _misread(*pair, (*at, number))
    elif (wanted := _json_type(understood)) and (found := _json_type(written)) and found != wanted:
        yield f"{place(at)}: {written!r} is {found}, and must be {wanted}"


def _json_type(value: Any) -> str:
    """As an API server tells them apart. Empty for null and for what YAML has beyond JSON."""
    kinds = {bool: "true or false", int: "a number", float: "a number", str: "a text"}
    return kinds.get(type(value), "")
