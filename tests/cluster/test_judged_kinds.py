"""Experiments and profiles under a real operator: judged, edited, gone; kinds that are not there, come and go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline_operator import naming
from tests.cluster.operators import Operator, Place, account, start, wait_for_leader
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import EXPERIMENT, PROFILE, Change, thing

pytestmark = pytest.mark.cluster

CRDS = Path(__file__).resolve().parents[2] / "crds"
JUDGED = (naming.PLURAL_EXPERIMENT, naming.PLURAL_PROFILE)
CIRCLE: Change = {
    "variants": [
        {"name": "a", "parent": "b", "change": {"maxTokens": 3}},
        {"name": "b", "parent": "a", "change": {"enforceEager": True}},
    ]
}
"""Which the schema cannot say."""


def apply(place: Place, kind: str, change: Change) -> None:
    place.kubectl("apply", "-f", "-", input=json.dumps(thing(kind, change)))


def passes(operator: Operator) -> float:
    return operator.metrics()[("paceline_reconcile_duration_seconds_count", "ok")]


def test_they_are_judged_at_every_edit_and_written_at_no_other_time(crds: ControlPlane, namespace: str) -> None:
    place = Place(crds, namespace)
    operator = start(crds, "operator-judge", namespace, account(crds, namespace, watch=namespace), watch=namespace)
    try:
        for kind in (EXPERIMENT, PROFILE):
            apply(place, kind, {})
            accepted = place.condition("chat", "Accepted", "Valid", of=kind)
            assert (accepted["status"], accepted["observedGeneration"]) == ("True", 1)
            assert accepted["message"].startswith("The spec is valid; ")
        apply(place, EXPERIMENT, CIRCLE)
        refused = place.condition("chat", "Accepted", "InvalidSpec", of=EXPERIMENT)
        assert (refused["status"], refused["observedGeneration"]) == ("False", 2)
        assert refused["message"].startswith("spec.variants[0].parent")
        apply(place, EXPERIMENT, {"repetitions": 3})
        assert place.condition("chat", "Accepted", "Valid", of=EXPERIMENT)["observedGeneration"] == 3

        place.wait("the last write to be counted", lambda: sum(operator.writes().values()) >= 4)
        made = passes(operator)
        for plural in JUDGED:
            place.kubectl("annotate", plural, "chat", "nudge=1")
        place.wait("passes of both", lambda: passes(operator) >= made + 2)
        assert sum(operator.writes().values()) == 4
        for plural in JUDGED:
            place.kubectl("delete", plural, "chat")
        place.wait("their tasks to end", lambda: operator.metrics()[("paceline_objects",)] == 0.0)
    finally:
        operator.daemon.stop()
    assert "Traceback" not in operator.log(), operator.log()


@pytest.fixture(scope="module")
def bare(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A cluster that has servings alone. After `control_plane`, so that the programs are built."""
    cluster = ControlPlane(tmp_path_factory.mktemp("bare"))
    cluster.start()
    crd = CRDS / f"{naming.GROUP}_{naming.PLURAL_SERVING}.yaml"
    cluster.kubectl("apply", "--server-side", "-f", crd)
    cluster.established("-f", crd)
    yield cluster
    cluster.stop()


@pytest.mark.parametrize("everywhere", [False, True], ids=["one namespace", "all namespaces"])
def test_servings_are_served_where_the_other_kinds_are_not(bare: ControlPlane, everywhere: bool) -> None:
    name = "all" if everywhere else "one"
    place, watch = Place(bare, name), "" if everywhere else name
    bare.kubectl("create", "namespace", name)
    operator = start(bare, f"operator-{name}", name, account(bare, name, watch=watch), watch=watch)
    try:
        wait_for_leader(operator)
        place.serve("chat")
        place.child("Deployment", "chat")
        place.patch(naming.KIND_SERVING, "chat", {"spec": {"replicas": 2}})
        place.wait("the edit", lambda: place.child("Deployment", "chat")["spec"]["replicas"] == 2)
        assert operator.healthy()
        operator.daemon.check()
    finally:
        operator.daemon.stop()
    assert "try creating their CRDs" in operator.log()
    assert "Traceback" not in operator.log(), operator.log()


@pytest.mark.parametrize("everywhere", [False, True], ids=["one namespace", "all namespaces"])
def test_kinds_come_and_go_under_an_operator_that_goes_on(bare: ControlPlane, everywhere: bool) -> None:
    name = "all-kinds" if everywhere else "one-kinds"
    place, watch = Place(bare, name), "" if everywhere else name
    bare.kubectl("create", "namespace", name)
    crd = CRDS / f"{naming.GROUP}_{naming.PLURAL_EXPERIMENT}.yaml"
    operator = start(bare, f"operator-{name}", name, account(bare, name, watch=watch), watch=watch)
    try:
        place.serve("chat")
        place.child("Deployment", "chat")
        for replicas in (2, 3):  # the kind comes, goes, and comes again
            bare.kubectl("apply", "--server-side", "-f", crd)
            bare.established("-f", crd)
            apply(place, EXPERIMENT, {})
            place.condition("chat", "Accepted", "Valid", of=EXPERIMENT)
            bare.kubectl("delete", "--wait=true", "-f", crd)
            place.patch(naming.KIND_SERVING, "chat", {"spec": {"replicas": replicas}})

            def scaled(replicas: int = replicas) -> bool:
                return bool(place.child("Deployment", "chat")["spec"]["replicas"] == replicas)

            place.wait("servings to be served on", scaled)
            operator.daemon.check()
    finally:
        operator.daemon.stop()
