"""A stored template that is gone is made again from what runs."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_operator.resources import pod, revision, workload
from paceline_operator.rollout.diff import boot_spec
from paceline_operator.rollout.revision import changes
from tests.servings import DEFAULTS, TOKENS, serving, table_of

GROUPS: dict[str, Any] = {
    "tensorParallelSize": 4,
    "multiNode": {"nodes": 2, "exclusiveTopologyKey": "example.com/rack"},
}


@pytest.mark.parametrize("engine", [{}, GROUPS, {"tensorParallelSize": 4, "multiNode": {"nodes": 2}}])
def test_what_runs_is_applied_again_as_it_is(engine: dict[str, Any]) -> None:
    given = serving(engine=engine)
    template = pod.build(given, table_of(given), DEFAULTS, TOKENS)
    live = workload.build(given, template, track="stable", replicas=2, annotations={})
    found = revision.rebuilt(live, "demo-1")
    other = serving(engine={"tensorParallelSize": 8, "multiNode": {"nodes": 8}})
    made_from = other.model_copy(update={"spec": revision.shaped(other.spec, found)})
    assert workload.build(made_from, found.template, track="stable", replicas=2, annotations={}) == live


@pytest.mark.parametrize(
    "boot", [{"engine": "x"}, {"engine": {"multiNode": 5}}, {"engine": {"multiNode": {"nodes": 1}}}]
)
def test_a_shape_that_is_none_is_not_taken(boot: dict[str, Any]) -> None:
    spec = serving().spec
    assert revision.shaped(spec, revision.Revision("demo-1", 0, "", boot, "", {})).engine.multi_node is None


def test_what_it_was_made_from_is_not_claimed_to_be_known() -> None:
    given = serving()
    live = {"metadata": {"name": "demo"}, "spec": {"template": {"metadata": {"creationTimestamp": None}, "spec": {}}}}
    found = revision.rebuilt(live, "demo-1")
    assert (found.is_whole, found.template) == (False, {"metadata": {}, "spec": {}})
    assert changes(found, boot_spec(given.spec), ""), "no spec is taken for the one it was made from"
    assert revision.read(revision.build(given, found)) == found
