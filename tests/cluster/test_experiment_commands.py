"""Experiments of a cluster on the command line, on the real API server: stored, watched, reported, applied, ended.

What the operator would write is written here: its own part is tested with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import yaml

from paceline_operator import naming
from tests.cluster.operators import Place
from tests.cluster.shell import Here
from tests.cluster.test_commands import spec
from tests.cluster.test_experiment_apply import BETTER, STEADY, WIDE
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import EXPERIMENT, thing
from tests.unit.test_experiment_run import variants

pytestmark = pytest.mark.cluster

FILE = thing(EXPERIMENT, {"servingRef": {"name": "chat"}, "variants": [WIDE]}, "which")
PROMPTS = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "asked"}, "data": {"a": '{"prompt": "b"}\n'}}


@pytest.fixture
def shell(crds: ControlPlane, namespace: str, tmp_path: Path) -> Callable[..., str]:
    return partial(Here(crds, namespace, tmp_path), more={"PACELINE_CACHE": str(tmp_path / "cache")})


def measured(place: Place) -> None:
    """What an operator has kept when all is measured, and somebody else's ConfigMap under the same label."""
    raw = place.get(EXPERIMENT, "which") or {}
    serving = {**(place.get(naming.KIND_SERVING, "chat") or {}), "apiVersion": naming.API_VERSION}
    documents = [{field: one[field] for field in ("apiVersion", "kind", "spec")} for one in (raw, serving)]
    names = [{"metadata": {"name": "which"}}, {"metadata": {"name": "chat"}}]
    texts = [json.dumps({**document, **name}) for document, name in zip(documents, names, strict=True)]
    kept = {"experiment": {"experiment.yaml": "\n---\n".join(texts)}}
    for one in variants(**STEADY, wide=BETTER):
        kept[f"result-{one.variant}"] = {f"{one.variant}.json": one.model_dump_json(), "visits.json": "[]"}
    owner = {"apiVersion": naming.API_VERSION, "kind": EXPERIMENT, "name": "which", "uid": raw["metadata"]["uid"]}
    for suffix, data in {**kept, "other": {"serving.json": "{}"}}.items():
        owners = [] if suffix == "other" else [owner]
        labels = {naming.LABEL_EXPERIMENT: "which"}
        meta = {"name": naming.child("which", suffix), "labels": labels, "ownerReferences": owners}
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}
        place.kubectl("apply", "-f", "-", input=json.dumps(body))
    status = {"phase": "Completed", "windows": 24, "plannedWindows": 24, "gpuSeconds": 1860, "winner": "wide"}
    place.patch(EXPERIMENT, "which", {"status": {**status, "winnerMessage": "wide is better"}}, "status")


def test_from_a_file_to_the_serving(
    crds: ControlPlane, namespace: str, shell: Callable[..., str], tmp_path: Path
) -> None:
    place = Place(crds, namespace)
    (tmp_path / "which.yaml").write_text(yaml.safe_dump_all([FILE, PROMPTS]))
    missing = shell("experiment", "run", "-f", "which.yaml", status=2)
    assert f"no SpeculativeServing chat in namespace {namespace}, which spec.servingRef names" in missing
    assert place.get(EXPERIMENT, "which") is None
    place.serve("chat")
    assert "--out, --keep: with --local alone" in shell(
        "experiment", "run", "-f", "which.yaml", "-o", "x", "--keep", status=2
    )
    said = shell("experiment", "run", "-f", "which.yaml")
    assert f"speculationexperiment.paceline.dev/which is stored in namespace {namespace}" in said
    assert (place.get(EXPERIMENT, "which") or {})["spec"]["variants"] == [{**WIDE, "parent": "serving"}]
    assert (place.get("ConfigMap", "asked") or {})["data"] == PROMPTS["data"]
    assert shell("experiment", "watch", "which") == "which: Pending\n"
    assert "which: nothing is measured yet: Pending" in shell("experiment", "apply", "which", status=2)

    measured(place)
    watched = shell("experiment", "watch", f"{namespace}/which", "--context", "elsewhere")
    rows = [line.split() for line in watched.splitlines()[1:4]]
    assert [(row[0], row[2]) for row in rows] == [("baseline", "4/4"), ("serving", "4/4"), ("wide", "4/4")]
    assert watched.endswith("/which: Completed; 24 of 24 windows, 31 GPU-minutes spent\nwide is better\n")
    told = shell("experiment", "report", "which", "-o", "out")
    assert "wide: better" in told
    assert (tmp_path / "out" / "report.html").exists()
    before = spec(place, "chat")
    assert "would become wide" in shell("experiment", "apply", "which", "--dry-run")
    assert spec(place, "chat") == before
    shell("experiment", "apply", f"{namespace}/which", "--context", "elsewhere")
    changed = spec(place, "chat")["speculation"]
    assert isinstance(changed, dict)
    assert changed["maxTokens"] == 4
    assert "which has ended already: Completed" in shell("experiment", "cancel", "which")


def test_one_that_runs_is_cancelled(crds: ControlPlane, namespace: str, shell: Callable[..., str]) -> None:
    place = Place(crds, namespace)
    place.kubectl("apply", "-f", "-", input=json.dumps(FILE))
    assert f"{namespace}/which is cancelled" in shell("experiment", "cancel", "which")
    assert (place.get(EXPERIMENT, "which") or {})["spec"]["cancel"] is True
    for verb in ("watch", "report", "apply", "cancel"):
        assert f"no SpeculationExperiment ghost in namespace {namespace}" in shell(
            "experiment", verb, "ghost", status=2
        )
