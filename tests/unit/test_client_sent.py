"""What is sent is the value, whether it is read as JSON or as YAML."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.clients import sent

TEXTS = st.text(st.characters(codec="utf-8")) | st.text("\\ud8349abcdef\U0001f600\x7f\x85\ufeff\u2028\"'", max_size=30)
TREES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(TEXTS.filter(lambda t: len(t) < 100), inner, max_size=3)
    ),
)


@given(TREES)
def test_any_value_comes_through(value: Any) -> None:
    assert json.loads(sent.body(value)) == value
    assert yaml.safe_load(sent.body(value)) == value


@pytest.mark.parametrize("text", ["\U0001f600", "a\x7fb", r"\ud83d\ude00", "\\\U0001f600", "\ud7ff", "\x00\n"])
def test_no_escape_is_half_a_character(text: str) -> None:
    assert yaml.safe_load(sent.body([text])) == [text]
    assert sent.body(["\U0001f600"]) == '["\U0001f600"]'.encode()
