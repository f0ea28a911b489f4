"""JSON of any depth is read, and a spec of too many levels is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import naming
from paceline_operator.acceptance import MAX_DEPTH, accept
from paceline_operator.clients import shallow
from tests.harness.objects import thing

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('[]{}"\\,:\n ä'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('[{"}\\'), inner, max_size=3),
)


@pytest.fixture
def installed() -> Iterator[None]:
    before = json._default_decoder  # type: ignore[attr-defined]
    shallow.install()
    yield
    json._default_decoder = before  # type: ignore[attr-defined]


def nested(depth: int) -> str:
    return '{"spec":' * depth + "[]" + "}" * depth


@pytest.mark.usefixtures("installed")
def test_of_a_document_that_is_too_deep_the_rest_is_read() -> None:
    found = json.loads(f'{{"items": [{nested(20_000)}, {{"name": "well"}}]}}')
    assert found["items"][1] == {"name": "well"}
    assert json.loads(nested(3)) == {"spec": {"spec": {"spec": []}}}
    with pytest.raises(json.JSONDecodeError):
        json.loads("{" * 10)


@pytest.mark.parametrize("depth", [10, 300, 900, 20_000])
def test_an_answer_of_any_depth_is_read(depth: int) -> None:
    assert shallow.loads(f'{{"name": "deep", "spec": {nested(depth)}}}'.encode())["name"] == "deep"
    for wrong in (b"{", b"", b"\xff", nested(depth).encode()[:-1]):
        with pytest.raises(ValueError, match=r"."):
            shallow.loads(wrong)


@given(TREES, st.integers(0, 6))
def test_a_cut_document_is_the_document_to_its_depth(tree: Any, depth: int) -> None:
    assert json.loads(shallow.cut(json.dumps(tree), depth)) == pruned(tree, depth)


def pruned(tree: Any, depth: int) -> Any:
    if not isinstance(tree, dict | list):
        return tree
    if depth == 0:
        return None
    if isinstance(tree, list):
        return [pruned(item, depth - 1) for item in tree]
    return {name: pruned(item, depth - 1) for name, item in tree.items()}


@pytest.mark.parametrize(("depth", "good"), [(8, True), (MAX_DEPTH, False), (900, False)])
def test_a_spec_of_too_many_levels_is_refused(depth: int, good: bool) -> None:
    body = thing(naming.KIND_SERVING, {})
    body["spec"]["engine"] = {"podTemplate": json.loads(nested(depth))}
    serving, verdict = accept({**body, "metadata": {"name": "chat", "namespace": "team", "uid": "1"}})
    assert (serving is not None, "nested deeper" in verdict.message) == (good, not good)


def test_what_is_cut_is_refused() -> None:
    in_a_list = len(("items", "item", "spec"))
    assert MAX_DEPTH + in_a_list < shallow.MAX_DEPTH
