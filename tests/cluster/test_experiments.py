"""Experiments on a real API server with a real operator, which is killed in the middle; engines are a stand-in's."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from paceline_engine.trial.visit import Visit
from paceline_operator import naming
from paceline_operator.clock import rfc3339
from paceline_operator.experiment.report import as_json, build
from paceline_operator.experiment.results import VariantResult
from paceline_operator.resources.trial import LOAD_CONTAINER
from tests.cluster.kubelet import Kubelet, Life
from tests.cluster.operators import Object, Operator, Place, account, start, wait_for_leader
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import EXPERIMENT, Change, merged, thing
from tests.unit.test_experimenting_pass import said

pytestmark = pytest.mark.cluster

BASE: Change = {"load": {"concurrency": [2], "prompts": {"random": {}}}, "duration": {"seconds": 10}}
CRASHES: Change = merged(BASE, {"variants": [{"name": "k3", "change": {"maxTokens": 3}}]})
PATIENCE_SECONDS = 180.0
ENGINE_LOG = "(EngineCore) INFO 01-02 00:00:05 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.50, x"
SUFFIXES = ("Job", "Pod", "ConfigMap")


def status_of(pod: Object, *, began: datetime | None = None, engine: Object | None = None) -> Object:
    now = datetime.now(UTC)
    at = rfc3339(began or now)
    states: dict[str, Object] = {"engine": engine or {"running": {"startedAt": at}}}
    states[LOAD_CONTAINER] = (
        {"terminated": {"exitCode": 1, "finishedAt": at}} if engine else {"running": {"startedAt": at}}
    )
    told = [
        {"name": name, "image": "x", "imageID": "sha256:1", "ready": False, "restartCount": 0, "state": state}
        for name, state in states.items()
    ]
    return {"phase": "Running", "startTime": at, "containerStatuses": told}


def live(pod: Object) -> Life:
    """By the experiment's name."""
    labels = pod["metadata"]["labels"]
    name, variant = labels[naming.LABEL_EXPERIMENT], labels[naming.LABEL_VARIANT]
    load = next(one for one in pod["spec"]["containers"] if one["name"] == LOAD_CONTAINER)
    visit = Visit.model_validate_json(load["args"][1])
    lines = said(visit, variant, datetime.now(UTC).timestamp())
    if name in ("cancelled", "deleted"):
        lines = lines[:2]
    if name == "crashes" and variant == "k3":
        ended = {"exitCode": 139, "reason": "Error", "message": "segfault", "finishedAt": rfc3339(datetime.now(UTC))}
        text = "\n".join(map(json.dumps, [*lines[:2], {"failed": "the engine ended"}]))
        return Life(status_of(pod, engine={"terminated": ended}), {LOAD_CONTAINER: text, "engine": ""})
    if name == "never" and variant == "serving":
        return Life(None)
    began = datetime.now(UTC) - timedelta(hours=1) if name == "budget" else None
    text = "\n".join(map(json.dumps, lines))
    return Life(status_of(pod, began=began), {LOAD_CONTAINER: f"noise\n{text}\n", "engine": f"{ENGINE_LOG}\n"})


@dataclass
class Stage:
    """One namespace with all experiments in it, one operator after the other."""

    place: Place
    operator: Operator

    def status(self, name: str) -> Object:
        return dict((self.place.get(EXPERIMENT, name) or {}).get("status", {}))

    def ended(self, name: str) -> Object:
        """Its status, once nothing of it runs any more."""

        def rests() -> bool:
            return "phase" in (found := self.status(name)) and found["phase"] not in ("Pending", "Running")

        try:
            self.place.wait(f"{name} to end", rests, PATIENCE_SECONDS)
            self.place.wait(f"engines of {name} to be gone", lambda: not self.mine(name, "Job", "Pod"))
        except TimeoutError as error:
            raise AssertionError(f"{error}: {self.status(name)}; {self.operator.daemon.tail()}") from None
        return self.status(name)

    def mine(self, name: str, *kinds: str) -> list[Object]:
        return [
            item
            for kind in kinds
            for item in self.place.list(kind)
            if item["metadata"].get("labels", {}).get(naming.LABEL_EXPERIMENT) == name
        ]

    def result(self, name: str, variant: str) -> VariantResult:
        data = self.place.child("ConfigMap", f"{name}-result-{variant}")["data"]
        return VariantResult.model_validate_json(data[f"{variant}.json"])


@pytest.fixture(scope="module")
def stage(crds: ControlPlane, module_namespace: str) -> Iterator[Stage]:
    place = Place(crds, module_namespace)
    config = account(crds, module_namespace, watch=module_namespace)

    def begin(number: int) -> Operator:
        name = f"operator-experiments-{number}"
        more = {"PACELINE_IDENTITY": "experiments"}
        started = start(crds, name, module_namespace, config, watch=module_namespace, more=more)
        wait_for_leader(started)
        return started

    def create(name: str, change: Change, serving: str = "chat") -> None:
        body = thing(EXPERIMENT, merged(change, {"servingRef": {"name": serving}}), name)
        place.kubectl("apply", "-f", "-", input=json.dumps(body))

    with Kubelet(crds, module_namespace, live):
        place.serve("chat")
        place.serve("impatient", engine={"startupTimeoutSeconds": 10})
        for name in ("completes", "cancelled", "deleted"):
            create(name, BASE)
        create("crashes", CRASHES)
        create("budget", merged(BASE, {"budgetGpuMinutes": 30}))
        create("never", BASE, "impatient")
        first = begin(1)
        made = Stage(place, first)
        place.wait("a window of the first", lambda: made.status("completes").get("windows"), PATIENCE_SECONDS)
        first.daemon.stop(grace_seconds=0)
        made.operator = begin(2)
        yield made
        made.operator.daemon.stop()
        for operator in (first, made.operator):
            assert "Traceback" not in operator.log(), operator.log()


def own(found: Mapping[Any, Any]) -> dict[Any, Any]:
    """Of experiments: the servings beside them live their own lives."""
    kinds = (EXPERIMENT, "ConfigMap", "Job")
    return {key: value for key, value in found.items() if any(kind in str(key) for kind in kinds)}


def passes(operator: Operator) -> float:
    return operator.metrics()[("paceline_reconcile_duration_seconds_count", "ok")]


def test_cancelled(stage: Stage) -> None:
    stage.place.wait("an engine", lambda: stage.mine("cancelled", "Pod"), PATIENCE_SECONDS)
    pods = stage.mine("cancelled", "Pod")
    assert not any(naming.LABEL_SERVING in pod["metadata"]["labels"] for pod in pods), "no Service selects it"
    stage.place.patch(EXPERIMENT, "cancelled", {"spec": {"cancel": True}})
    status = stage.ended("cancelled")
    assert status["phase"] == "Cancelled"
    assert any("cancelled: spec.cancel is true" in text for text in status["missing"])
    assert any("not reached: spec.cancel is true" in text for text in status["missing"])


def test_deleted(stage: Stage) -> None:
    stage.place.wait("an engine", lambda: stage.mine("deleted", "Pod"), PATIENCE_SECONDS)
    stage.place.kubectl("delete", naming.PLURAL_EXPERIMENT, "deleted")
    stage.place.wait("all of it to be gone", lambda: not stage.mine("deleted", *SUFFIXES), PATIENCE_SECONDS)


def test_the_budget_is_spent(stage: Stage) -> None:
    status = stage.ended("budget")
    assert (status["phase"], status["windows"]) == ("OutOfBudget", 1)
    assert status["gpuSeconds"] >= 3600
    assert any("spec.budgetGpuMinutes 30" in text for text in status["missing"])


def test_completed_although_the_operator_was_killed(stage: Stage) -> None:
    status = stage.ended("completes")
    assert (status["phase"], status["windows"], status["plannedWindows"]) == ("Completed", 4, 4)
    assert stage.place.conditions("completes", EXPERIMENT)["Complete"]["reason"] == "AllMeasured"
    ((verdict),) = status["verdicts"]
    assert (verdict["variant"], verdict["concurrency"]) == ("serving", 2)
    assert 1200 < verdict["throughputPermille"] < 1400
    serving = stage.result("completes", "serving")
    assert [one.round for one in serving.windows] == [0, 1]
    assert serving.lengths[0].length == 2.5
    assert serving.methods.versions["vllm"] == "0.33.0"
    assert stage.result("completes", "baseline").k == 0


def test_one_variant_crashes(stage: Stage) -> None:
    status = stage.ended("crashes")
    assert (status["phase"], status["windows"]) == ("Completed", 4)
    assert stage.place.conditions("crashes", EXPERIMENT)["Complete"]["reason"] == "PartlyMeasured"
    (text,) = status["missing"]
    assert text.startswith("k3: rounds 1, 2, load 2: the engine ended: Error, exit code 139: segfault")


def test_the_report_says_what_is_missing(stage: Stage) -> None:
    stage.ended("crashes")
    told = as_json(build([stage.result("crashes", name) for name in ("baseline", "serving", "k3")]))
    (text,) = told["missing"]["k3"]
    assert "segfault" in text
    assert {one["variant"] for one in told["comparisons"]} == {"serving"}


def test_one_variant_never_starts(stage: Stage) -> None:
    status = stage.ended("never")
    assert (status["phase"], status["windows"]) == ("Completed", 2)
    (text,) = status["missing"]
    assert text.startswith("serving: rounds 1, 2, load 2: it did not start within 10 s")


def test_at_rest_nothing_is_written(stage: Stage) -> None:
    for name in ("completes", "crashes", "never", "budget", "cancelled"):
        stage.ended(name)
    before, writes, made = own(stage.place.versions()), own(stage.operator.writes()), passes(stage.operator)
    stage.place.kubectl("annotate", naming.PLURAL_EXPERIMENT, "completes", "nudge=1")
    stage.place.wait("a pass", lambda: passes(stage.operator) > made)
    after = own(stage.place.versions())
    assert {key for key in after if after[key] != before.get(key)} == {f"{EXPERIMENT}/completes"}
    assert own(stage.operator.writes()) == writes
