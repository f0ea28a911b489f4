"""Every field of a spec through its life, on a real API server with an operator: set, refused, changed, rolled back,
unset. After each step the cluster holds what a fresh apply of the same spec gives.

Fields travel in bundles, one serving each, all step by step; each test then looks at one field's.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from hack.fields import restarts
from paceline_operator.kinds import OPTIONAL, crd_of
from tests.cluster.bundles import Bundle, accepted, alone, bad_specs, bundles
from tests.cluster.lives import Answer, Children, Key, Lives, differences, looked_at, says, stamps, told, unlike
from tests.cluster.operators import Object, account, start, wait_for_leader
from tests.cluster.transitions import GROWS, journey
from tests.harness.controlplane import ControlPlane
from tests.harness.fields import fields, laid
from tests.harness.objects import Change
from tests.harness.optional import definition

pytestmark = pytest.mark.cluster

BUNDLES = {bundle.name: bundle for bundle in bundles()}
OF_FIELD = {each.field.path: (bundle, each) for bundle in BUNDLES.values() for each in bundle.journeys}
SETTLE_SECONDS = 15.0
"""For what follows from a pass that is over: prunings, and what other controllers make of it."""


VOLUMES = ("first", "second", "third")
GROWING: list[Object] = [
    {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": GROWS},
        "provisioner": "none.invalid/none",
        "allowVolumeExpansion": True,
    },
    *(
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                "storageClassName": GROWS,
                "capacity": {"storage": "10Gi"},
                "accessModes": ["ReadWriteMany"],
                "hostPath": {"path": f"/nowhere/{name}"},
            },
        }
        for name in VOLUMES
    ),
]
"""Only a claim that is bound, of a class that allows it, may grow."""


@dataclass
class Stop:
    """What was seen of one serving after one step, and of one to which its spec was applied afresh."""

    here: Sight
    fresh: Sight | None = None


@dataclass
class Sight:
    """A serving and its children."""

    serving: Object
    children: Children


@dataclass
class Seen:
    """Of one bundle."""

    stops: dict[str, Stop] = field(default_factory=dict)
    answers: dict[str, list[tuple[Change, Answer]]] = field(default_factory=dict)
    """Field -> what the API server said of each spec that it should refuse."""
    trouble: str = ""
    """Why its life ended early."""


class Travel:
    """All bundles' lives: in namespace `life`, and afresh in one for each state."""

    def __init__(self, lives: Lives, life: str, first: str, second: str) -> None:
        self.lives, self.life, self.fresh = lives, life, {"first": first, "second": second}
        self.seen = {name: Seen() for name in BUNDLES}

    def go(self) -> None:
        for state, namespace in {"base": self.life, **self.fresh}.items():
            self._taken(state, self.lives.create({(namespace, b.name): getattr(b, state) for b in self._going()}))
        self._settle("base", None, *self.fresh.values())
        self._step("set", "first")
        self._refusals()
        self._not_accepted()
        self._step("changed", "second")
        self._step("rolled back", "first")
        self._step("unset", "base")

    def _going(self) -> list[Bundle]:
        return [bundle for name, bundle in BUNDLES.items() if not self.seen[name].trouble]

    def _step(self, step: str, state: str) -> None:
        answers = self.lives.replace({(self.life, b.name): getattr(b, state) for b in self._going()})
        one_way = {bundle.name for bundle in self._going() if step in bundle.refused_steps}
        self._taken(step, {key: answer for key, answer in answers.items() if key[1] not in one_way})
        for name in one_way:
            self.seen[name].answers[step] = [({}, answers[self.life, name])]
        self._settle(step, state)

    def _taken(self, what: str, answers: dict[Key, Answer]) -> None:
        for (_, name), (status, text) in answers.items():
            if status not in (200, 201):
                self.seen[name].trouble = f"{what}: the spec is not taken: {text}"

    def _late(self, what: str, late: dict[Key, object]) -> None:
        for (_, name), conditions in late.items():
            self.seen[name].trouble = f"{what}: {conditions}"

    def _settle(self, step: str, state: str | None, *besides: str) -> None:
        """Wait for a whole pass over each, then for what follows from it."""
        keys = [(namespace, bundle.name) for namespace in (self.life, *besides) for bundle in self._going()]
        self._late(f"{step}: no whole pass over it", self.lives.wait(looked_at, keys))
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            self.lives.end_jobs()
            self._look(step, state)
            if all(_same(self.seen[b.name].stops[step]) for b in self._going()) or time.monotonic() > deadline:
                return
            time.sleep(0.5)

    def _look(self, step: str, state: str | None) -> None:
        servings, children = self.lives.servings(), self.lives.children()

        def sight(namespace: str, name: str) -> Sight:
            return Sight(servings[namespace, name], children[namespace, name])

        for bundle in self._going():
            stop = self.seen[bundle.name].stops[step] = Stop(sight(self.life, bundle.name))
            if state == "base" and step not in bundle.refused_steps:
                stop.fresh = self.seen[bundle.name].stops["base"].here
            elif state and step not in bundle.frozen | bundle.refused_steps:
                stop.fresh = sight(self.fresh[state], bundle.name)

    def _refusals(self) -> None:
        for bundle in self._going():
            for each in bundle.journeys:
                specs = bad_specs(each)
                said = self.lives.refusals((self.life, bundle.name), specs)
                self.seen[bundle.name].answers[each.field.path] = list(zip(specs, said, strict=True))
        self._look("refused", None)

    def _not_accepted(self) -> None:
        turns = {bundle.name: _turns(bundle) for bundle in self._going()}
        while turns := {name: rest for name, rest in turns.items() if rest and not self.seen[name].trouble}:
            now = {name: rest.pop() for name, rest in turns.items()}
            self.lives.replace({(self.life, name): spec for name, (spec, _) in now.items()})

            def refused(serving: Object, now: dict[str, tuple[Change, str]] = now) -> bool:
                return says(now[serving["metadata"]["name"]][1])(serving)

            late = self.lives.wait(refused, [(self.life, name) for name in now])
            for key, conditions in late.items():
                self._late(f"not {now[key[1]][1]}: {now[key[1]][0]}", {key: conditions})
        self._look("not accepted", None)


def _turns(bundle: Bundle) -> list[tuple[Change, str]]:
    """Specs that are not accepted, with the reason."""
    return [
        (laid(Bundle("", (each,)).base, each.field.path, value), reason)
        for each in bundle.journeys
        for value, reason in each.not_accepted
    ]


def _same(stop: Stop) -> bool:
    return stop.fresh is None or (
        not unlike(stop.here.children, stop.fresh.children) and told(stop.here.serving) == told(stop.fresh.serving)
    )


@pytest.fixture(scope="module")
def travel(crds: ControlPlane, module_namespace: str) -> Iterator[Travel]:
    for kind in OPTIONAL:
        crds.kubectl("apply", "--server-side", "-f", "-", input=json.dumps(definition(kind)))
        crds.established(f"crd/{crd_of(kind)}")
    crds.kubectl("apply", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": GROWING}))
    names = tuple(f"{module_namespace}-{part}" for part in ("life", "first", "second"))
    for name in names:
        crds.kubectl("create", "namespace", name)
    kubeconfig = account(crds, module_namespace)
    operator = start(crds, "operator-fields", module_namespace, kubeconfig, watch=",".join(names))
    try:
        wait_for_leader(operator)
        travelled = Travel(Lives(crds, names), *names)
        travelled.go()
        yield travelled
    finally:
        operator.daemon.stop()
        for name in names:
            crds.kubectl("delete", "namespace", name, "--wait=false")
    assert "Traceback" not in operator.log(), operator.log()


@pytest.mark.parametrize("path", OF_FIELD)
def test_a_field_through_its_life(travel: Travel, path: str) -> None:
    bundle, _ = OF_FIELD[path]
    seen = travel.seen[bundle.name]
    assert seen.trouble == ""
    for spec, (status, text) in seen.answers[path]:
        assert status == 422, f"{spec}: {text}"
        assert f"spec.{path.partition('.')[0]}" in text, f"{spec}: {text}"
    for step in bundle.refused_steps:
        assert seen.answers[step][0][1][0] == 422
    for step, stop in seen.stops.items():
        if stop.fresh:
            assert unlike(stop.here.children, stop.fresh.children) == [], step
            assert differences(told(stop.here.serving), told(stop.fresh.serving)) == [], step
    for step in bundle.frozen:
        assert stamps(seen.stops[step].here.children) == stamps(seen.stops["base"].here.children), step
    kept = stamps(seen.stops["set"].here.children)
    for step in ("refused", "not accepted"):
        assert stamps(seen.stops[step].here.children) == kept, f"children were touched by what was {step}"


def test_no_field_is_left_out() -> None:
    for each in fields():
        if not each.of_items and each.path not in OF_FIELD:
            journey(each)  # says what is missing


@pytest.mark.parametrize("path", OF_FIELD)
def test_a_field_that_is_in_the_template_is_said_to_restart_pods(path: str) -> None:
    """And where none of its children has it, pods are not said to be restarted for it."""
    _, each = OF_FIELD[path]
    changed = Bundle("", (each,))
    child, template = alone(each)
    if not each.note and (template or not child):
        assert restarts(changed.first, changed.second) is template


@pytest.mark.parametrize("path", OF_FIELD)
def test_the_values_of_a_field_are_good_ones(path: str) -> None:
    bundle, _ = OF_FIELD[path]
    assert accepted(bundle.base)
    assert accepted(bundle.first)
    assert accepted(bundle.second)
