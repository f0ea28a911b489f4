"""YAML is read as kubectl reads it: texts stay texts, and no key is set twice."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.local.loader import Loader, TwiceError


def read(text: str) -> Any:
    return yaml.load(text, Loader)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01", "2026-01-01"),
        ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
        ("22:30", "22:30"),
        ("1:30.5", "1:30.5"),
        ("12", 12),
        ("-0x1F", -31),
        ("0o17", 15),
        ("017", 15),
        ("1_000", 1000),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("1.25", 1.25),
        ("1.2.3", "1.2.3"),
        ("true", True),
        ("off", False),
        ("~", None),
        ('"12"', "12"),
        ("08", 8.0),
        ("+", "+"),
    ],
)
def test_a_scalar_is_what_kubectl_sends(text: str, value: object) -> None:
    found = read(f"a: {text}")["a"]
    assert (found, type(found)) == (value, type(value))


def test_a_key_that_is_set_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(TwiceError, match=r"^line 4: replicas is set already in line 2: remove one$"):
        read("spec:\n  replicas: 1\n  model: a\n  replicas: 2\n")
    with pytest.raises(TwiceError, match="line 2"):
        read("{a: 1,\n 'a': 2}")
    assert read("a: 1\nb: {a: 2}\nc: [{a: 3}, {a: 4}]") == {"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]}


def test_a_merged_map_may_be_overridden() -> None:
    assert read("x: &x {a: 1, b: 2}\ny: {<<: *x, a: 3}")["y"] == {"a": 3, "b": 2}


TEXT = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=8)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(JSON)
def test_json_is_read_as_it_is(value: Any) -> None:
    assert read(json.dumps(value)) == value


@given(st.text(alphabet=st.sampled_from("a:-_.0123456789oxbeE+{}[]&*<, \n"), max_size=24))
def test_nonsense_is_a_yaml_error_or_a_value_error(text: str) -> None:
    try:
        read(text)
    except (yaml.YAMLError, ValueError, TypeError):
        return
