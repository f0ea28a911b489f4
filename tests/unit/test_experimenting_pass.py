"""Passes over an experiment, with a cluster in memory whose engines measure in no time."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_engine.trial.visit import Visit
from paceline_operator import naming
from paceline_operator.api.status_experiment import ENDED
from paceline_operator.clients.kube import UnavailableError
from paceline_operator.clock import FakeClock, rfc3339
from paceline_operator.draft import Hands
from paceline_operator.experimenting import ExperimentPass, PassResult
from paceline_operator.resources import Defaults
from paceline_operator.resources.trial import LOAD_CONTAINER, PROMPTS_FILE
from tests.fakes import FakeKube, Object
from tests.harness.objects import EXPERIMENT, Change, merged, thing

SMALL: Change = {
    "load": {"concurrency": [1, 4], "prompts": {"random": {}}},
    "duration": {"seconds": 10},
    "variants": [{"name": "k3", "change": {"maxTokens": 3}}],
}
RATES = {"baseline": 100.0, "serving": 130.0, "k3": 120.0}
Fate = Callable[[Visit, str], dict[str, Any]]
"""What becomes of an engine: fields of `Pods.status`."""


def window(visit: Visit, load: int, seed: int, rate: float, at: float) -> Object:
    tokens = int(10 * rate * load * random.Random(f"{visit.round} {load} {rate}").uniform(0.995, 1.005))
    tpot = dict.fromkeys(("mean", "p50", "p95", "p99"), 1000 * load * 10 / tokens)
    return {
        "load": load, "round": visit.round, "seed": seed, "started_at": at, "seconds": 10.0, "warmed": True,
        "tokens": tokens, "requests": 4 * load, "client": {"tpot": tpot},
    }  # fmt: skip


def said(visit: Visit, variant: str, at: float = 1.8e9) -> list[Object]:
    """What the load beside an engine prints."""
    warm = [{"warm": {"load": load, "requests": 4 * load}} for load in visit.warm_up]
    windows = [
        {"window": window(visit, one.load, one.seed, RATES[variant], at + 20 * place)}
        for place, one in enumerate(visit.measurements)
    ]
    return [{"ready": {"version": "0.33.0"}}, *warm, *windows, {"done": True}]


class World(FakeKube):
    """Jobs have pods at once; what their engines do is `fate`."""

    def __init__(self, clock: FakeClock, fate: Fate) -> None:
        super().__init__()
        self.clock, self.fate = clock, fate
        self.order: list[tuple[int, str]] = []
        """(round, variant) of each engine."""
        self.printed: dict[str, str] = {}
        self.crash: int | None = None
        """The process dies at this write, which is made or not."""

    def _write(self, verb: str, kind: str, name: str) -> None:
        super()._write(verb, kind, name)
        if self.crash is not None:
            self.crash -= 1
            if self.crash < 0:
                self.crash = None
                raise UnavailableError(0, "Killed", "the process died")

    async def create(self, body: Object) -> Object:
        made = await super().create({**body, "metadata": {**body["metadata"], "creationTimestamp": self._now()}})
        if body["kind"] == "Job":
            load = next(one for one in body["spec"]["template"]["spec"]["containers"] if one["name"] == LOAD_CONTAINER)
            visit = Visit.model_validate_json(load["args"][1])
            variant = body["metadata"]["labels"][naming.LABEL_VARIANT]
            self.order.append((visit.round, variant))
            fate = self.fate(visit, variant)
            if "status" in fate:
                name, owner = f"{body['metadata']['name']}-pod", {"uid": made["metadata"]["uid"], "controller": True}
                meta = {"name": name, "namespace": "team", "creationTimestamp": self._now(), "ownerReferences": [owner]}
                labels = body["spec"]["template"]["metadata"]["labels"]
                self.put({"kind": "Pod", "metadata": {**meta, "labels": labels}, "status": fate["status"]})
                self.printed[name] = "\n".join(json.dumps(line) for line in fate.get("lines", []))
        return made

    async def delete(self, kind: str, namespace: str, name: str, uid: str | None) -> bool:
        self.drop("Pod", f"{name}-pod")
        return await super().delete(kind, namespace, name, uid)

    async def log(self, namespace: str, pod: str, container: str, *, previous: bool, **_: int) -> str:
        return self.printed.get(pod, "") if container == LOAD_CONTAINER else ""

    def _now(self) -> str:
        return rfc3339(self.clock.now())


def good(visit: Visit, variant: str) -> dict[str, Any]:
    return {"status": running(), "lines": said(visit, variant)}


def running(**engine: Any) -> Object:
    began = "2026-01-01T00:00:00Z"
    containers = [
        {"name": "engine", "imageID": "sha256:1", "state": engine or {"running": {"startedAt": began}}},
        {"name": LOAD_CONTAINER, "state": {"running": {"startedAt": began}}},
    ]
    return {"phase": "Running", "startTime": began, "containerStatuses": containers}


class Scene:
    def __init__(self, change: Change = SMALL, fate: Fate = good, *, serving: bool = True) -> None:
        self.clock = FakeClock()
        self.kube = World(self.clock, fate)
        defaults = Defaults("gpu-image", "cpu-image", "plugin-image")
        self.hands = Hands(self.kube, None, None, defaults, self.clock)  # type: ignore[arg-type]
        if serving:
            self.put(naming.KIND_SERVING, {"engine": {"startupTimeoutSeconds": 60}})
        self.put(EXPERIMENT, change)

    def put(self, kind: str, change: Change) -> None:
        body = thing(kind, change)
        there = self.kube.objects.get((kind, "team", "chat"), {})
        generation = there.get("metadata", {}).get("generation", 0) + 1
        body["metadata"] |= {"namespace": "team", "generation": generation, "uid": f"{kind}-uid"}
        self.kube.put(body | {key: value for key, value in there.items() if key == "status"})

    async def once(self) -> PassResult:
        """By a process that knows nothing."""
        return await ExperimentPass(("team", "chat"), self.hands).run()

    async def until_it_rests(self, passes: int = 200) -> Object:
        for _ in range(passes):
            try:
                result = await self.once()
            except UnavailableError:
                continue
            if result.after is None:
                return self.status
            self.clock.advance(result.after)
        raise AssertionError(self.status)

    @property
    def status(self) -> Object:
        return dict(self.kube.find(EXPERIMENT, "chat").get("status", {}))

    def complete(self) -> Object:
        (found,) = [one for one in self.status["conditions"] if one["type"] == "Complete"]
        return dict(found)

    def left(self) -> set[str]:
        return {kind for kind, _, _ in self.kube.objects} - {naming.KIND_SERVING, EXPERIMENT, "ConfigMap", "Event"}


async def test_an_experiment_is_measured_in_turns_and_judged() -> None:
    scene = Scene()
    status = await scene.until_it_rests()
    assert scene.kube.order == [
        (0, "baseline"), (0, "serving"), (0, "k3"), (1, "k3"), (1, "serving"), (1, "baseline"),
    ]  # fmt: skip
    assert (status["phase"], scene.complete()["reason"]) == ("Completed", "AllMeasured")
    assert (status["windows"], status["plannedWindows"]) == (12, 12)
    assert {(one["variant"], one["concurrency"]) for one in status["verdicts"]} == {
        (name, load) for name in ("serving", "k3") for load in (1, 4)
    }
    assert all(1100 < one["throughputPermille"] < 1400 for one in status["verdicts"])
    assert status["winner"] == "serving"
    assert "missing" not in status or status["missing"] == []
    assert scene.left() == set()
    maps = {name for kind, _, name in scene.kube.objects if kind == "ConfigMap"}
    assert maps == {"chat-experiment", *(f"chat-result-{name}" for name in RATES)}


async def test_at_rest_nothing_is_read_or_written() -> None:
    scene = Scene()
    await scene.until_it_rests()
    writes, reads = list(scene.kube.writes), scene.kube.reads
    assert (await scene.once()).after is None
    assert (scene.kube.writes, scene.kube.reads) == (writes, reads + 1)


async def test_while_an_engine_runs_nothing_is_written_again() -> None:
    def slow(visit: Visit, variant: str) -> dict[str, Any]:
        return {"status": running(), "lines": said(visit, variant)[:3]}

    scene = Scene(fate=slow)
    for _ in range(4):
        await scene.once()
        scene.clock.advance(3)
    writes = list(scene.kube.writes)
    for _ in range(5):
        await scene.once()
        scene.clock.advance(3)
    assert scene.kube.writes == writes
    assert scene.status["running"] == "baseline, round 1"


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=12))
async def test_a_process_that_dies_at_any_write_leaves_what_the_next_carries_on(deaths: list[int]) -> None:
    scene, whole = Scene(), Scene()
    expected = await whole.until_it_rests()
    for at in deaths:
        scene.kube.crash = at
        try:
            while (await scene.once()).after is not None:
                scene.clock.advance(3)
        except UnavailableError:
            continue
    scene.kube.crash = None
    found = await scene.until_it_rests()
    assert scene.kube.order == whole.kube.order, "no engine twice, none left out"
    for name in ("phase", "windows", "verdicts", "winner"):
        assert found[name] == expected[name]
    assert scene.left() == set()


async def test_cancelled_in_the_middle() -> None:
    scene = Scene()
    for _ in range(8):
        await scene.once()
        scene.clock.advance(3)
    assert scene.left() >= {"Job"} or scene.kube.order
    scene.put(EXPERIMENT, {**SMALL, "cancel": True})
    status = await scene.until_it_rests()
    assert (status["phase"], scene.complete()["reason"]) == ("Cancelled", "Cancelled")
    assert 0 < status["windows"] < 12
    assert any("not reached: spec.cancel is true" in text for text in status["missing"])
    assert scene.left() == set()


async def test_suspended_and_resumed() -> None:
    scene = Scene()
    for _ in range(4):
        await scene.once()
        scene.clock.advance(3)
    scene.put(EXPERIMENT, {**SMALL, "suspend": True})
    assert (await scene.until_it_rests())["phase"] == "Suspended"
    assert scene.left() == set()
    scene.put(EXPERIMENT, SMALL)
    assert (await scene.until_it_rests())["phase"] == "Completed"


async def test_one_variant_crashes_and_the_others_go_on() -> None:
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "finishedAt": "2026-01-01T00:00:01Z"}}

    def fate(visit: Visit, variant: str) -> dict[str, Any]:
        if variant != "k3":
            return good(visit, variant)
        return {"status": running(**ended), "lines": [*said(visit, variant)[:4], {"failed": "the engine ended"}]}

    scene = Scene(fate=fate)
    status = await scene.until_it_rests()
    assert (status["phase"], scene.complete()["reason"]) == ("Completed", "PartlyMeasured")
    assert status["windows"] == 10, "its first window of each round was there"
    assert len(status["missing"]) == 2
    assert all("k3: round" in text and "OOMKilled, exit code 137" in text for text in status["missing"])
    assert status["winner"] == "serving"


async def test_one_that_never_starts_is_ended_at_its_deadline() -> None:
    pending = {"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes: no GPU"}
    ]}  # fmt: skip
    scene = Scene(fate=lambda visit, variant: {"status": pending} if variant == "k3" else good(visit, variant))
    status = await scene.until_it_rests()
    assert status["phase"] == "Completed"
    assert any("k3: rounds 1, 2" in text and "did not start within 60 s" in text for text in status["missing"])
    assert any("no GPU" in text for text in status["missing"])
    assert scene.left() == set()


async def test_the_budget_ends_it() -> None:
    scene = Scene(merged(SMALL, {"budgetGpuMinutes": 30}))

    def slow(visit: Visit, variant: str) -> dict[str, Any]:
        scene.clock.advance(600)
        return {**good(visit, variant), "status": {**running(), "startTime": "2026-01-01T00:00:00Z"}}

    scene.kube.fate = slow
    status = await scene.until_it_rests()
    assert (status["phase"], scene.complete()["reason"]) == ("OutOfBudget", "BudgetSpent")
    assert any("spec.budgetGpuMinutes 30" in text for text in status["missing"])
    assert scene.left() == set()
    scene.put(EXPERIMENT, merged(SMALL, {"budgetGpuMinutes": 10_000}))
    scene.kube.fate = good
    assert (await scene.until_it_rests())["phase"] == "Completed", "more was granted: it goes on"


async def test_nothing_measured_is_a_failure() -> None:
    scene = Scene(fate=lambda *_: {"status": running(), "lines": [{"failed": "vllm bench serve could not be loaded"}]})
    status = await scene.until_it_rests()
    assert (status["phase"], scene.complete()["reason"]) == ("Failed", "NothingMeasured")


@pytest.mark.parametrize(
    ("change", "serving", "phase", "reason"),
    [
        (SMALL, False, "Pending", "ServingNotFound"),
        (merged(SMALL, {"budgetGpuMinutes": 1}), True, "Failed", "NotAccepted"),
        ({**SMALL, "cancel": True}, True, "Cancelled", "Cancelled"),
        ({**SMALL, "suspend": True}, True, "Suspended", "Suspended"),
        ({**SMALL, "variants": [{"name": "x", "change": {"adaptiveVerification": "Enabled"}}]}, True, None, ""),
    ],
)
async def test_what_is_not_begun_says_why(change: Change, serving: bool, phase: str | None, reason: str) -> None:
    scene = Scene(change, serving=serving)
    await scene.once()
    if phase:
        assert (scene.status["phase"], scene.complete()["reason"]) == (phase, reason)
        assert scene.kube.order == []
        writes = list(scene.kube.writes)
        await scene.once()
        assert scene.kube.writes == writes


async def test_prompts_that_are_made_are_asked_of_every_load() -> None:
    asked: list[Visit] = []

    def noted(visit: Visit, variant: str) -> dict[str, Any]:
        asked.append(visit)
        return good(visit, variant)

    prompts = {"random": None, "lengths": {"name": "recorded", "key": "lengths.csv"}}
    scene = Scene({**SMALL, "load": {"concurrency": [1, 4], "prompts": prompts, "multiTurnPercent": 5}}, noted)
    scene.put(naming.KIND_SERVING, {"engine": {"startupTimeoutSeconds": 60, "maxModelLen": 2048}})
    assert (await scene.until_it_rests())["phase"] == "Completed"
    makings = [one.making for one in asked if one.making]
    assert len(makings) == len(asked) > 4
    assert {(one.source.value, one.multi_turn_percent, one.longest) for one in makings} == {("lengths", 5, 2048)}
    assert {one.dataset for one in asked} == {PROMPTS_FILE}


async def test_a_serving_that_comes_is_taken_up() -> None:
    scene = Scene(serving=False)
    assert (await scene.once()).after
    scene.put(naming.KIND_SERVING, {})
    assert (await scene.until_it_rests())["phase"] == "Completed"


async def test_a_spec_that_is_changed_in_the_middle_is_refused_and_nothing_runs_on() -> None:
    scene = Scene()
    for _ in range(3):
        await scene.once()
    scene.put(EXPERIMENT, merged(SMALL, {"load": {"concurrency": [2]}}))
    status = await scene.until_it_rests()
    assert status["phase"] == "Failed"
    assert "put it back" in scene.complete()["message"]
    assert scene.left() - {"Pod"} == set()
    scene.put(EXPERIMENT, SMALL)
    assert (await scene.until_it_rests())["phase"] == "Completed"


async def test_what_is_not_its_own_is_left_alone() -> None:
    scene = Scene()
    scene.kube.put(
        {"kind": "ConfigMap", "metadata": {"name": "chat-experiment", "namespace": "team"}, "data": {"a": "b"}}
    )
    await scene.once()
    assert scene.complete()["reason"] == "ChildConflict"
    assert scene.kube.find("ConfigMap", "chat-experiment")["data"] == {"a": "b"}


def test_every_end_is_one() -> None:
    assert {phase.value for phase in ENDED} == {"Completed", "OutOfBudget", "Cancelled", "Failed"}
