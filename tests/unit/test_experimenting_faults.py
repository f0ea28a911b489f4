"""Passes over an experiment whose objects were changed, lost, refused or written by somebody else in between."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from paceline_engine.trial.visit import Visit
from paceline_operator import naming
from paceline_operator.api.experiment import Prompts
from paceline_operator.clients.kube import ForbiddenError, InvalidError, KubeError
from paceline_operator.experiment.results import VariantResult
from tests.harness.objects import EXPERIMENT, Change, merged
from tests.unit.test_experimenting_pass import SMALL, Scene, good, running, said, window
from tests.unit.test_experimenting_pass import World as World

LONG: Change = merged(SMALL, {"repetitions": 4, "budgetGpuMinutes": 1000})


def hangs(visit: Visit, _: str) -> dict[str, Any]:
    return {"status": running(), "lines": [{"ready": {"version": "0.33.0"}}]}


def hangs_from(round_: int) -> Any:
    return lambda visit, variant: hangs(visit, variant) if visit.round >= round_ else good(visit, variant)


async def runs_in(scene: Scene, round_: int) -> Any:
    """The Job of an engine that hangs in this round."""
    for _ in range(100):
        result = await scene.once()
        scene.clock.advance(min(3, result.after or 1))
        if f"round {round_ + 1}" in scene.status.get("running", "") and "Job" in scene.left():
            await scene.once()
            return next(body for (kind, _, _), body in scene.kube.objects.items() if kind == "Job")
    raise AssertionError(scene.status)


def records(scene: Scene, variant: str) -> list[dict[str, Any]]:
    found = json.loads(scene.kube.find("ConfigMap", f"chat-result-{variant}")["data"]["visits.json"])
    return [dict(one) for one in found]


def result(scene: Scene, variant: str) -> VariantResult:
    data = scene.kube.find("ConfigMap", f"chat-result-{variant}")["data"]
    return VariantResult.model_validate_json(data[f"{variant}.json"])


async def test_fewer_repetitions_end_an_engine_of_a_later_round() -> None:
    scene = Scene(LONG, hangs_from(2))
    await runs_in(scene, 2)
    scene.put(EXPERIMENT, merged(LONG, {"repetitions": 2}))
    status = await scene.until_it_rests(20)
    assert (status["phase"], scene.left()) == ("Completed", set())
    (late,) = [one for one in records(scene, "baseline") if one["round"] == 2]
    assert late["ended"] >= late["began"], "its devices' time counts"


async def test_a_job_with_another_label_is_still_its_own() -> None:
    scene = Scene(fate=hangs)
    job = await runs_in(scene, 0)
    job["metadata"]["labels"][naming.LABEL_VISIT] = "junk"
    scene.put(EXPERIMENT, {**SMALL, "cancel": True})
    status = await scene.until_it_rests(5)
    assert (status["phase"], scene.left()) == ("Cancelled", set())


async def test_a_job_of_somebody_else_is_named_and_holds_nothing_but_the_next_start() -> None:
    scene = Scene()
    labels = {naming.LABEL_EXPERIMENT: "chat"}
    scene.kube.put({"kind": "Job", "metadata": {"name": "stray", "namespace": "team", "labels": labels}})
    assert (await scene.once()).after
    assert scene.complete()["reason"] == "ChildConflict"
    assert "Job stray" in scene.complete()["message"]
    assert scene.kube.order == []
    scene.put(EXPERIMENT, {**SMALL, "cancel": True})
    assert (await scene.until_it_rests(3))["phase"] == "Cancelled"
    assert scene.left() == {"Job"}, "it is not ours to delete"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("chat-experiment", None),
        ("chat-result-baseline", {"visits.json": "{"}),
        ("chat-result-serving", {"serving.json": "junk"}),
    ],
)
async def test_cancelled_although_what_was_kept_is_lost(name: str, data: dict[str, str] | None) -> None:
    scene = Scene(fate=hangs)
    await runs_in(scene, 0)
    if data is None:
        scene.kube.drop("ConfigMap", name)
    else:
        scene.kube.find("ConfigMap", name)["data"] |= data
    assert (await scene.once()).after
    assert (scene.status["phase"], scene.complete()["reason"]) == ("Pending", "ChildConflict")
    assert name in scene.complete()["message"]
    scene.put(EXPERIMENT, {**SMALL, "cancel": True})
    status = await scene.until_it_rests(3)
    assert (status["phase"], scene.left()) == ("Cancelled", set())


async def test_results_without_a_beginning_begin_nothing_new() -> None:
    scene = Scene()
    for _ in range(6):
        await scene.once()
        scene.clock.advance(3)
    scene.kube.drop("ConfigMap", "chat-experiment")
    scene.put(naming.KIND_SERVING, {"speculation": {"maxTokens": 2}})
    for _ in range(3):
        await scene.once()
    assert scene.complete()["reason"] == "ChildConflict"
    assert not [key for key in scene.kube.objects if key[2] == "chat-experiment"]


async def test_images_are_those_of_its_beginning() -> None:
    images: list[str] = []

    def fate(visit: Visit, variant: str) -> dict[str, Any]:
        scene.hands = replace(scene.hands, defaults=replace(scene.hands.defaults, engine_image=f"other-{visit.round}"))
        return good(visit, variant)

    scene = Scene(fate=fate)
    make = scene.kube.create

    async def create(body: Any) -> Any:
        if body["kind"] == "Job":
            images.extend(one["image"] for one in body["spec"]["template"]["spec"]["containers"])
        return await make(body)

    scene.kube.create = create  # type: ignore[method-assign]
    assert (await scene.until_it_rests())["phase"] == "Completed"
    assert set(images) == {"gpu-image"}


@pytest.mark.parametrize("what", ["prompts", "version", "image"])
async def test_a_turn_with_another_engine_or_other_prompts_does_not_count(what: str) -> None:
    def fate(visit: Visit, variant: str) -> dict[str, Any]:
        found = good(visit, variant)
        found["lines"][0]["ready"]["prompts"] = "sha256:1"
        if visit.round == 1 and variant == "k3":
            if what == "image":
                found["status"]["containerStatuses"][0]["imageID"] = "sha256:2"
            else:
                found["lines"][0]["ready"][what] = "another"
        return found

    scene = Scene(fate=fate)
    status = await scene.until_it_rests()
    assert scene.complete()["reason"] == "PartlyMeasured"
    (missing,) = status["missing"]
    assert missing.startswith("k3: round 2,")
    assert "not as in turns before" in missing
    assert {one.round for one in result(scene, "k3").windows} == {0}


@pytest.mark.parametrize(
    "error", [InvalidError(422, "Invalid", "name taken"), ForbiddenError(403, "Forbidden", "quota")]
)
@pytest.mark.parametrize("call", [("CREATE", "Job"), ("APPLY", "ConfigMap")])
async def test_what_the_api_server_refuses_is_told(error: KubeError, call: tuple[str, str]) -> None:
    scene = Scene()
    scene.kube.refuse[call] = error
    for _ in range(2):
        assert (await scene.once()).after == 30
    assert (scene.status["phase"], scene.complete()["reason"]) == ("Pending", "ApplyFailed")
    assert error.message in scene.complete()["message"]
    del scene.kube.refuse[call]
    assert (await scene.until_it_rests())["phase"] == "Completed"


async def test_an_engine_ends_although_its_record_is_refused_and_none_follows() -> None:
    scene = Scene()
    await scene.once()
    assert "Job" in scene.left()
    scene.kube.refuse["APPLY", "ConfigMap"] = ForbiddenError(403, "Forbidden", "no")
    for _ in range(4):
        await scene.once()
    assert (scene.status["phase"], scene.left()) == ("Pending", set())
    assert len(scene.kube.order) == 1


async def test_pod_templates_that_leave_something_out_or_take_a_name() -> None:
    scene = Scene()
    spec = {"containers": [{"name": "engine", "securityContext": None}]}
    scene.put(naming.KIND_SERVING, {"engine": {"podTemplate": {"spec": spec}}})
    await scene.once()
    assert scene.kube.order == [(0, "baseline")]
    taken = Scene()
    names = {"containers": [{"name": "paceline-load", "image": "x"}], "volumes": [{"name": "paceline-prompts"}]}
    taken.put(naming.KIND_SERVING, {"engine": {"podTemplate": {"spec": names}}})
    await taken.once()
    assert taken.complete()["reason"] == "Incompatible"
    assert "paceline-load" in taken.complete()["message"]
    assert "paceline-prompts" in taken.complete()["message"]


@pytest.mark.parametrize("path", ["a/../b", "../b", "/a", "a//b", "..", "a b"])
def test_files_outside_of_a_volume_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        Prompts.model_validate({"persistentVolumeClaim": {"claimName": "c", "path": path}})
    with pytest.raises(ValueError, match="pattern"):
        Prompts.model_validate({"configMap": {"name": "c", "key": path}})


@pytest.mark.parametrize("path", ["a", ".a/b.jsonl", "a..b/c"])
def test_files_inside_of_it_are_taken(path: str) -> None:
    assert Prompts.model_validate({"persistentVolumeClaim": {"claimName": "c", "path": path}})


async def test_a_load_is_believed_of_its_own_visit_alone_and_within_bounds() -> None:
    def fate(visit: Visit, variant: str) -> dict[str, Any]:
        lines = said(visit, variant)
        lines[3]["window"]["errors"] = {f"kind {number}": number + 1 for number in range(500)}
        other = [{"window": {**window(visit, 1 + load, 1, 100.0, 1.8e9), "round": 7}} for load in range(50)]
        more = [{"window": window(visit, 9, 1, 100.0, 1.8e9)}, {"warm": {"load": 9, "requests": 3}}]
        return {"status": running(), "lines": [*lines[:1], *other, *more, *lines[1:]]}

    scene = Scene(fate=fate)
    status = await scene.until_it_rests()
    assert (status["phase"], status["windows"]) == ("Completed", 12)
    found = result(scene, "k3")
    assert {(one.load, one.round) for one in found.windows} == {(load, at) for load in (1, 4) for at in (0, 1)}
    assert set(found.methods.load) >= {"requests at 1", "requests at 4"}
    assert "requests at 9" not in found.methods.load
    (errors,) = {tuple(one.errors.items()) for one in found.windows if one.errors}
    assert len(errors) <= 9
    assert sum(count for _, count in errors) == 500 * 501 // 2


async def test_a_budget_that_is_lowered_ends_it_with_what_is_there() -> None:
    scene = Scene(LONG, hangs_from(2))
    await runs_in(scene, 2)
    scene.put(EXPERIMENT, merged(LONG, {"budgetGpuMinutes": 1}))
    status = await scene.until_it_rests()
    assert (status["phase"], scene.left()) == ("OutOfBudget", set())
    assert status["verdicts"]
    assert status["windows"] == 12


async def test_a_turn_whose_job_was_deleted_counts_and_is_over() -> None:
    scene = Scene(fate=hangs)
    job = await runs_in(scene, 0)
    scene.clock.advance(60)
    await scene.kube.delete("Job", "team", job["metadata"]["name"], None)
    scene.kube.fate = good
    status = await scene.until_it_rests()
    assert scene.complete()["reason"] == "PartlyMeasured"
    assert status["gpuSeconds"] >= 60
    assert any("its Job was gone" in text for text in status["missing"])
    assert scene.kube.order.count((0, "baseline")) == 1


async def test_a_refusal_in_the_middle_counts_what_ran() -> None:
    scene = Scene(fate=hangs)
    await runs_in(scene, 0)
    scene.clock.advance(60)
    scene.put(EXPERIMENT, merged(SMALL, {"load": {"concurrency": [2]}}))
    await scene.until_it_rests(3)
    (record,) = records(scene, "baseline")
    assert record["ended"] - record["began"] >= 60
    assert "put it back" in record["reason"]


async def test_a_clock_that_is_ahead_neither_earns_time_nor_holds_an_engine() -> None:
    def fate(visit: Visit, variant: str) -> dict[str, Any]:
        state = {"running": {"startedAt": "2036-01-01T00:00:00Z"}}
        return {"status": {**running(**state), "startTime": "2036-01-01T00:00:00Z"}}

    scene = Scene(fate=fate)
    status = await scene.until_it_rests(20_000)
    assert status["phase"] == "Failed"
    assert status["gpuSeconds"] == 0
    assert any("it had no end after" in text for text in status["missing"])


async def test_what_ended_is_counted_by_the_clock_that_it_began_by() -> None:
    at = {"startedAt": "2036-01-01T00:00:00Z", "finishedAt": "2036-01-01T00:01:40Z", "exitCode": 1, "reason": "Error"}

    def fate(visit: Visit, variant: str) -> dict[str, Any]:
        status = {**running(terminated=at), "startTime": "2036-01-01T00:00:00Z"}
        status["containerStatuses"][1]["state"] = {"terminated": at}
        return {"status": status}

    scene = Scene(fate=fate)
    assert (await scene.until_it_rests())["gpuSeconds"] == 6 * 100


async def test_what_a_load_says_does_nothing_to_a_terminal() -> None:
    evil = "x\x1b[2J\x1b[31mEVIL\x07\x00\nand more"
    ended = {"terminated": {"exitCode": 1, "reason": "Error", "message": evil, "finishedAt": "2026-01-01T00:00:01Z"}}

    def fate(visit: Visit, variant: str) -> dict[str, Any]:
        return {"status": running(**(ended if variant == "k3" else {})), "lines": [{"failed": evil}]}

    scene = Scene(fate=fate)
    status = await scene.until_it_rests()
    assert any("xEVIL" in text for text in status["missing"])
    assert all(text.isprintable() for text in status["missing"])


async def test_a_result_with_odd_keys_is_told() -> None:
    scene = Scene(fate=hangs)
    await runs_in(scene, 0)
    data = scene.kube.find("ConfigMap", "chat-result-serving")["data"]
    for key in ("requests at x", "requests at 0"):
        changed = json.loads(data["serving.json"])
        changed["methods"]["load"] = {key: "7"}
        data["serving.json"] = json.dumps(changed)
        await scene.once()
        assert scene.complete()["reason"] == "ChildConflict"
        assert "chat-result-serving" in scene.complete()["message"]


async def test_one_that_is_being_deleted_ends_its_engine() -> None:
    scene = Scene(fate=hangs)
    await runs_in(scene, 0)
    scene.kube.find(EXPERIMENT, "chat")["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    await scene.once()
    assert scene.left() == set()


async def test_why_a_job_has_no_pod_is_told() -> None:
    scene = Scene(fate=lambda *_: {})
    await scene.once()
    job = scene.kube.find("Job", "chat-visit-0")
    about = {"involvedObject": {"uid": job["metadata"]["uid"]}, "reason": "FailedCreate"}
    for at, text in (("1", "older"), ("2", "exceeded quota: gpus")):
        meta = {"name": f"e{at}", "namespace": "team"}
        scene.kube.put({"kind": "Event", "metadata": meta, **about, "message": text, "lastTimestamp": at})
    await scene.once()
    assert "exceeded quota: gpus" in scene.complete()["message"]
