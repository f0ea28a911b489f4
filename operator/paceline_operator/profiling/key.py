"""The key of a profile: what its numbers hold for, from what engines say of themselves; and how two keys differ."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import ValidationError

from paceline_operator.api.learned import ProfileKey
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.speculation import DRAFT_METHODS
from paceline_operator.tuning.model import Engine

FIELDS = ProfileKey.model_fields
NO_ANSWER = "no engine with a drafter answered yet"
_NEEDED = ("gpu", "tensor_parallel_size", "model_digest", "graph_mode")


def key_of(spec: ServingSpec, engines: Iterable[Engine]) -> ProfileKey | str:
    """Of the engines that speculate and answered, which were booted with `spec`; else why it is not known."""
    method = spec.speculation.method
    keys: dict[str, dict[str, Any]] = {}
    for engine in engines:
        state = engine.state
        if state is None or engine.failure or not state.capabilities.max_k:
            continue
        told = state.capabilities.identity.model_dump()
        missing = [name for name in _NEEDED if not told[name]]
        if method in DRAFT_METHODS and not told["draft_digest"]:
            missing.append("draft_digest")
        if missing:
            return f"{engine.name} does not tell its {_listed(missing)}"
        keys[engine.name] = told | {
            "draft_digest": told["draft_digest"] or None,
            "engine_version": state.engine_version,
            "method": method,
            "max_tokens": spec.speculation.max_tokens,
        }
    if not keys:
        return NO_ANSWER
    (first, one), *others = keys.items()
    for name, other in others:
        if differing := [field for field in one if one[field] != other[field]]:
            return f"{first} and {name} differ in their {_listed(differing)}"
    try:
        return ProfileKey.model_validate(one)
    except ValidationError as error:
        fields = [_alias(str(detail["loc"][0])) for detail in error.errors()]
        return f"{first} tells what cannot be: {', '.join(fields)}"


def differing(profile: ProfileKey, engines: ProfileKey) -> tuple[str, ...]:
    """Each field in which the keys differ, with both values; empty where the profile holds for these engines."""
    return tuple(
        f"{_alias(name)} is {_text(mine)} in the profile and {_text(theirs)} in the engines"
        for name in FIELDS
        if (mine := getattr(profile, name)) != (theirs := getattr(engines, name))
    )


def _alias(name: str) -> str:
    return (FIELDS[name].alias or name) if name in FIELDS else name


def _listed(names: Sequence[str]) -> str:
    return ", ".join(map(_alias, names))


def _text(value: Any) -> str:
    return "absent" if value is None else str(value)
