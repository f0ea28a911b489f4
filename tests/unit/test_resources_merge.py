"""Overrides over rendered fields: the laws, and what users rely on."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.resources.merge import merge

SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=3)
FIELDS = st.sampled_from(["name", "mountPath", "env", "volumeMounts", "volumes", "containers", "x"])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=4),
    max_leaves=12,
)
MAPS = st.dictionaries(FIELDS, JSON, max_size=4)
BUILT = MAPS.map(lambda value: merge({}, value))
"""What builders give: maps without nulls."""


def has_null(value: Any) -> bool:
    """Some map, at any depth, has a null value."""
    match value:
        case dict():
            return any(item is None or has_null(item) for item in value.values())
        case list():
            return any(has_null(item) for item in value)
        case _:
            return False


@given(BUILT)
def test_an_empty_override_changes_nothing(base: dict[str, Any]) -> None:
    assert merge(base, {}) == base


@given(BUILT, MAPS)
def test_an_override_laid_over_twice_is_laid_over_once(base: dict[str, Any], override: dict[str, Any]) -> None:
    once = merge(base, override)
    assert merge(once, override) == once


@given(BUILT, MAPS)
def test_the_arguments_stay_as_they_were(base: dict[str, Any], override: dict[str, Any]) -> None:
    before = copy.deepcopy((base, override))
    merged = merge(base, override)
    merged["x"] = "changed"
    assert (base, override) == before


@given(BUILT, st.dictionaries(FIELDS, SCALARS, max_size=4))
def test_a_scalar_wins_and_null_removes(base: dict[str, Any], override: dict[str, Any]) -> None:
    merged = merge(base, override)
    for key, value in override.items():
        assert merged.get(key, None) == value
        assert (key in merged) == (value is not None)
    for key in base.keys() - override.keys():
        assert merged[key] == base[key]


@given(BUILT, MAPS)
def test_no_null_reaches_a_map(base: dict[str, Any], override: dict[str, Any]) -> None:
    assert not has_null(merge(base, override))


def test_lists_of_named_things_merge_by_name_and_keep_their_order() -> None:
    base = {"containers": [{"name": "engine", "image": "a", "args": ["x"]}, {"name": "sidecar", "image": "s"}]}
    override = {"containers": [{"name": "proxy", "image": "p"}, {"name": "engine", "image": "b"}]}
    assert merge(base, override)["containers"] == [
        {"name": "engine", "image": "b", "args": ["x"]},
        {"name": "sidecar", "image": "s"},
        {"name": "proxy", "image": "p"},
    ]


def test_mounts_are_told_apart_by_their_path() -> None:
    base = {"volumeMounts": [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b"}]}
    override = {"volumeMounts": [{"name": "w", "mountPath": "/b"}, {"name": "v", "mountPath": "/c"}]}
    assert merge(base, override)["volumeMounts"] == [
        {"name": "v", "mountPath": "/a"},
        {"name": "w", "mountPath": "/b"},
        {"name": "v", "mountPath": "/c"},
    ]


def test_a_volume_or_variable_replaces_its_namesake() -> None:
    base = {"volumes": [{"name": "cache", "emptyDir": {}}], "env": [{"name": "A", "value": "1"}]}
    override = {
        "volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}],
        "env": [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    assert merge(base, override) == override


def test_lists_of_anything_else_are_replaced() -> None:
    assert merge({"args": ["a", "b"]}, {"args": ["c"]}) == {"args": ["c"]}
    assert merge({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}) == {"tolerations": [{"key": "b"}]}
