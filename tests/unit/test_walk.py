"""Oracles of the walk fail where they should, and a failure is made small: on a pretended cluster that has faults."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.cluster.bundles import _rendered as rendered
from tests.cluster.bundles import accepted
from tests.cluster.lives import Answer, Children
from tests.harness.objects import Change
from tests.walk.steps import BASES, Step, walks
from tests.walk.walker import LostError, Object, Sight, Walker, unlikeness


class Pretended:
    """A cluster whose operator does what the builders say. `fault` is laid over what it does."""

    def __init__(self, fault: Callable[[Pretended, Change], None] = lambda *_: None) -> None:
        self.fault = fault

    def begin(self, spec: Change) -> Answer:
        self.spec, self.generation, self.children = spec, 1, made(spec)
        self.is_failed = False
        return 201, ""

    def replace(self, spec: Change) -> Answer:
        if spec.get("replicas") == 3:
            return 422, "three are too many"
        self.spec, self.generation = spec, self.generation + 1
        if accepted(spec) and not spec.get("suspend"):
            self.children = made(spec)
        self.fault(self, spec)
        return 200, ""

    def end(self) -> None:
        pass

    def fresh(self, spec: Change) -> None:
        self._fresh = Sight(serving(spec, 1), made(spec))

    def look(self) -> Sight:
        return self.now()

    def look_at_fresh(self) -> Sight:
        return self._fresh

    def now(self) -> Sight:
        return Sight(serving(self.spec, self.generation), self.children)

    def both(self) -> tuple[Sight, Sight]:
        return self.now(), self._fresh

    def soon(self, done: Callable[[], bool]) -> bool:
        return done()


def made(spec: Change) -> Children:
    found = {}
    for manifest in rendered(spec) if accepted(spec) and not spec.get("suspend") else ():
        version = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
        meta = {**manifest["metadata"], "resourceVersion": version}
        found[f"{manifest['kind']}/{meta['name']}"] = {**manifest, "metadata": meta}
    return found


def serving(spec: Change, generation: int) -> Object:
    told = {"Accepted": accepted(spec), "Suspended": bool(spec.get("suspend"))}
    conditions = [{"type": name, "status": str(value), "reason": "Told"} for name, value in told.items()]
    return {"metadata": {"generation": generation}, "status": {"conditions": conditions}}


def walked(ground: Pretended, examples: int = 12) -> Counter[str]:
    walker = Walker(ground, Counter())

    @seed(3)
    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck),
              phases=(Phase.generate, Phase.shrink), report_multiple_bugs=False)  # fmt: skip
    @given(walks(12))
    def walk(walk: tuple[str, list[Step]]) -> None:
        walker.walk(*walk)

    walk()
    return walker.counts


def manifests(error: LostError) -> list[Any]:
    """The specs before and after, as the failure prints them."""
    _, *texts = str(error).split("\n# ")
    return [yaml.safe_load(f"# {text}")["spec"] for text in texts]


def test_nothing_is_lost_where_nothing_is_wrong() -> None:
    counts = walked(Pretended())
    assert all(counts[what] for what in ("valid", "refused", "not accepted", "gone back")), counts


def test_a_job_is_compared_by_what_it_does_and_not_by_its_name() -> None:
    def seen(digest: str, source: str) -> Sight:
        job = {"metadata": {"name": f"the-serving-pull-{digest}", "namespace": "n"}, "spec": {"source": source}}
        return Sight(serving({}, 1), {f"Job/the-serving-pull-{digest}": job})

    assert unlikeness(seen("1", "a"), seen("2", "a")) == []
    assert unlikeness(seen("1", "a"), seen("2", "b")) == [".Job/the-serving-pull.spec.source: a instead of b"]


def test_a_change_that_is_not_made_is_found_and_made_small() -> None:
    def forgets(ground: Pretended, spec: Change) -> None:
        if spec.get("replicas") == 2 and accepted(spec):
            ground.children = made({**spec, "replicas": 1})

    with pytest.raises(LostError, match="not as a fresh apply") as caught:
        walked(Pretended(forgets))
    before, after = manifests(caught.value)
    assert before == BASES["small"]
    assert after == {**before, "replicas": 2}


def test_children_that_go_for_a_spec_that_is_not_accepted_are_missed() -> None:
    def prunes(ground: Pretended, spec: Change) -> None:
        if not accepted(spec):
            ground.children = {}

    with pytest.raises(LostError, match="not accepted, and yet"):
        walked(Pretended(prunes))


def test_a_state_of_error_that_stays_is_found() -> None:
    def sticks(ground: Pretended, spec: Change) -> None:
        if not accepted(spec):
            ground.is_failed = True
        if ground.is_failed:
            ground.children = {**ground.children, "Service/left": next(iter(ground.children.values()))}

    with pytest.raises(LostError):
        walked(Pretended(sticks))
