"""One serving led through a sequence of specs, and what must hold after each of them, whatever it is.

Three oracles. The cluster is as a fresh apply of the last valid spec makes it. A state of error is left by going back
to the spec before it. Nothing crashes, and writes are bounded: a few for a change, none for what is refused, none at
rest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import yaml

from tests.cluster.bundles import accepted
from tests.cluster.lives import Answer, Children, differences, stamps, told, unlike
from tests.harness.objects import Change
from tests.walk.steps import BASES, Step

Object = dict[str, Any]
MAX_WRITES = 100
"""Of the operator for a step, in the mean: two servings with a dozen children each, and what is told of them."""
LOOSE = ("--speculative-config", "--compilation-config", "--asked")
"""Arguments that hold the table of the boot: a change of it is live, so pods keep the one that they came with."""
DIGESTS = ("/revision", "/template-hash")
"""Annotations that name what workloads show besides."""
TABLE = ("num_speculative_tokens_per_batch_size", "cudagraph_capture_sizes", "captureSizes", "ladder")


@dataclass
class Sight:
    """What the cluster shows of a serving."""

    serving: Object
    children: Children

    @property
    def conditions(self) -> dict[str, Object]:
        return {each["type"]: each for each in self.serving.get("status", {}).get("conditions", [])}

    @property
    def failed(self) -> bool:
        """Some child was refused."""
        return self.conditions.get("Progressing", {}).get("reason") == "ApplyFailed"


class Ground(Protocol):
    """Where a walk takes place: a cluster with an operator."""

    def begin(self, spec: Change) -> Answer:
        """Make the serving that walks."""

    def end(self) -> None:
        """It goes, and so does the one to compare with."""

    def replace(self, spec: Change) -> Answer:
        """Write its whole spec."""

    def fresh(self, spec: Change) -> None:
        """Make another with `spec`, to compare with."""

    def look(self) -> Sight:
        """At the serving that walks, once a whole pass over its present spec is over, with or without success, and the
        weights that pods wait for are there."""

    def look_at_fresh(self) -> Sight:
        """The same of the one to compare with."""

    def now(self) -> Sight:
        """The serving that walks, unwaited."""

    def both(self) -> tuple[Sight, Sight]:
        """The two, unwaited."""

    def soon(self, done: Callable[[], bool]) -> bool:
        """Whether `done()` comes to hold within what a machine that is shared may take."""


class LostError(AssertionError):
    """An oracle that does not hold."""


@dataclass
class Walker:
    """One walk after the other on a ground."""

    ground: Ground
    counts: Counter[str]
    """What became of the steps; may be shared."""

    def walk(self, base: str, steps: Sequence[Step]) -> None:
        """Raises LostError with the specs before and after as a manifest."""
        spec = BASES[base]
        what, wanted = "begin", spec
        try:
            status, text = self.ground.begin(spec)
            assert status == 201, text
            sight = self.ground.look()
            for step in steps:
                what, wanted = step.what, step.applied(spec)
                if wanted == spec:
                    self.counts["unchanged"] += 1
                    continue
                spec, sight = self._step(spec, wanted, sight)
        except AssertionError as error:
            raise LostError(f"{what}: {error}\n\n{_manifest('before', spec)}\n{_manifest('after', wanted)}") from error
        finally:
            self.ground.end()

    def _step(self, spec: Change, wanted: Change, sight: Sight) -> tuple[Change, Sight]:
        """The spec that is in force after it, and what is seen then."""
        ground = self.ground
        status, text = ground.replace(wanted)
        if status != 200:
            self.counts["refused"] += 1
            assert 400 <= status < 500, f"HTTP {status}: {text}"
            now = ground.now()
            assert now.serving["metadata"]["generation"] == sight.serving["metadata"]["generation"]
            assert not (moved := _moved(sight, now)), f"refused, and yet {moved} changed"
            return spec, sight
        if not accepted(wanted):
            self.counts["not accepted"] += 1
            now = ground.look()
            condition = now.conditions["Accepted"]
            assert condition["status"] == "False", f"Accepted is {condition}"
            assert not (moved := _moved(sight, now)), f"not accepted, and yet {moved} changed"
            return spec, self._back(spec, sight, kept=True)
        if wanted.get("suspend"):
            self.counts["valid"] += 1
            now = ground.look()
            assert now.conditions["Suspended"]["status"] == "True", now.conditions
            assert not (moved := _moved(sight, now)), f"suspended, and yet {moved} changed"
            return wanted, now
        ground.fresh(wanted)
        now, fresh = ground.look(), ground.look_at_fresh()
        if fresh.failed:
            self.counts["failed"] += 1
            failed = ground.soon(lambda: ground.now().failed)  # where pods wait for weights, a pass later
            assert failed, f"a fresh apply fails, this does not: {now.conditions['Progressing']}"
            return spec, self._back(spec, sight, kept=False)
        self.counts["valid"] += 1
        return wanted, self._like_fresh()

    def _like_fresh(self) -> Sight:
        """Once it is as a fresh apply makes it."""
        ground = self.ground
        found: list[tuple[Sight, list[str]]] = []

        def like() -> bool:
            here, fresh = ground.both()
            found.append((here, unlikeness(here, fresh)))
            return not found[-1][1]

        assert ground.soon(like), "not as a fresh apply:\n" + "\n".join(found[-1][1])
        return found[-1][0]

    def _back(self, spec: Change, sight: Sight, *, kept: bool) -> Sight:
        """From a state of error to the spec before it; `kept`: no child may be written for it."""
        status, text = self.ground.replace(spec)
        assert status == 200, f"no way back: HTTP {status}: {text}"
        now = self.ground.look()
        if not kept and not spec.get("suspend"):
            self.ground.fresh(spec)
            self.ground.look_at_fresh()
            now = self._like_fresh()
        assert now.conditions["Accepted"]["status"] == "True", f"back, and Accepted is {now.conditions['Accepted']}"
        assert not now.failed, f"back, and {now.conditions['Progressing']}"
        if kept:
            assert not (moved := _moved(sight, now)), f"back, and yet {moved} changed"
        self.counts["gone back"] += 1
        return now


def transitions(counts: Mapping[str, int]) -> int:
    """Specs that were written, those to begin with and those to go back left out."""
    return sum(counts.get(what, 0) for what in ("refused", "not accepted", "failed", "valid"))


def unlikeness(here: Sight, fresh: Sight) -> list[str]:
    """What is not as a fresh apply makes it: children, and what conditions say."""
    mine, theirs = ({key: _loosened(item) for key, item in one.children.items()} for one in (here, fresh))
    return [
        *unlike(_counted(mine), _counted(theirs)),
        *differences(told(here.serving), told(fresh.serving), "conditions"),
    ]


def _counted(children: Children) -> Children:
    """Without stored templates, and without the digest in a Job's name: it is of what workloads, or the Job, show, the
    serving's own name included."""
    return dict(_undigested(*each) for each in children.items() if not each[0].startswith("ControllerRevision/"))


def _undigested(key: str, item: Object) -> tuple[str, Object]:
    if not key.startswith("Job/"):
        return key, item
    meta = item["metadata"]
    return key.rpartition("-")[0], {**item, "metadata": {**meta, "name": meta["name"].rpartition("-")[0]}}


def _loosened(item: Object) -> Object:
    """A workload without the table of its boot, and without the digest of its template."""
    if item.get("kind") not in (None, "Deployment", "LeaderWorkerSet") and "template" not in item.get("spec", {}):
        return item
    return dict(_walked(item))


def _walked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _walked(v) for k, v in value.items() if not k.endswith(DIGESTS)}
    if isinstance(value, list):
        return [
            _table_less(value[i - 1], one) if i and value[i - 1] in LOOSE else _walked(one)
            for i, one in enumerate(value)
        ]
    return value


def _table_less(_: str, text: str) -> str:
    config = json.loads(text)
    return json.dumps({name: value for name, value in config.items() if name not in TABLE}, sort_keys=True)


def _moved(before: Sight, now: Sight) -> list[str]:
    """Children that were written, or came or went."""
    these, those = stamps(before.children), stamps(now.children)
    return sorted(key for key in these.keys() | those.keys() if these.get(key) != those.get(key))


def _manifest(what: str, spec: Change) -> str:
    body = {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "SpeculativeServing",
        "metadata": {"name": "walks"},
        "spec": json.loads(json.dumps(spec)),
    }
    return f"# {what}\n{yaml.safe_dump(body, sort_keys=False, allow_unicode=False)}"
