"""Going back: which revision it is, and that the patch of the spec leads there from wherever it is."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.serving import ServingSpec
from paceline_operator.resources.revision import Revision
from paceline_operator.rollout import undo
from paceline_operator.rollout.diff import boot_spec, changed
from tests.servings import serving


def revision(name: str, number: int) -> Revision:
    return Revision(name, number, "1:x", {"model": {"source": "hf://a/b"}}, "", {})


STORED = [revision(name, number) for number, name in enumerate("abcd", 1)]


@pytest.mark.parametrize(
    ("stable", "target", "failed", "found"),
    [
        ("d", "", (), "c"),
        ("c", "", (), "d"),
        ("d", "", ("c",), "b"),
        ("c", "d", (), "c"),
        ("c", "d", ("d",), "c"),
        ("d", "d", (), "c"),
    ],
)
def test_what_was_before(stable: str, target: str, failed: tuple[str, ...], found: str) -> None:
    answer = undo.previous(STORED, stable, target, failed)
    assert isinstance(answer, Revision)
    assert answer.name == found


def test_where_there_is_none_it_is_said() -> None:
    assert undo.previous(STORED[:1], "a", "", ()) == "no other template is stored: pods ran none before this one"
    rebuilt = dataclasses.replace(STORED[1], boot={"engine": {}})
    assert isinstance(undo.previous([STORED[0], rebuilt], "a", "", ()), str), "of a rebuilt one no spec is known"
    assert undo.previous(STORED, "d", "", (), "x") == "there is no stored revision x; there are: a, b, c, d"
    assert undo.previous(STORED, "d", "", (), "a") == STORED[0]


SPECS = st.fixed_dictionaries(
    {},
    optional={
        "speculation": st.sampled_from(
            [{"maxTokens": 3}, {"method": "ngram", "draft": None, "ngram": {"promptLookupMax": 8}}, {"enabled": False}]
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "maxNumSeqs": st.sampled_from([64, 256]),
                "extraArgs": st.sampled_from([[], ["--seed", "1"]]),
                "env": st.sampled_from([[{"name": "A", "value": "1"}], [{"name": "B", "value": "2"}]]),
                "plugin": st.sampled_from([{"injection": "None"}, {"injection": "InitContainer"}]),
            },
        ),
        "tuning": st.sampled_from([{"ladder": [3, 0]}, {"ladder": [3, 2, 1, 0]}, {}]),
        "replicas": st.integers(1, 9),
    },
)


def merged(base: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    found = dict(base) if isinstance(base, dict) else {}
    for name, value in change.items():
        if value is None:
            found.pop(name, None)
        else:
            found[name] = merged(found.get(name), value)
    return found


@given(SPECS, SPECS)
def test_the_patch_leads_back_and_touches_nothing_else(first: dict[str, Any], second: dict[str, Any]) -> None:
    then, now = serving(**first).spec, serving(**second).spec
    raw = now.model_dump(mode="json", by_alias=True, exclude_none=True)
    patch = undo.patch(boot_spec(now), boot_spec(then))
    after = ServingSpec.model_validate(merged(raw, patch))
    assert changed(boot_spec(after), boot_spec(then)) == ()
    assert (after.replicas, after.tuning.mode) == (now.replicas, now.tuning.mode)
    assert undo.patch(boot_spec(after), boot_spec(then)) == {}
