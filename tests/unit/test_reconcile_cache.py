"""The model cache in passes: the Job before the pods, progress, what is pruned, and no write at rest."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_engine.pull.report import Phase, Report
from paceline_operator import naming
from paceline_operator.modelcache import LOOK_SECONDS
from tests.fakes import Object
from tests.world import SPEC, World

CACHED: Object = {**SPEC, "model": {"source": "hf://owner/target", "cache": {"claim": {"size": "10Gi"}}}}
PULLED_FIRST: Object = {
    **SPEC,
    "model": {"source": "hf://owner/target", "cache": {"claimName": "shared", "download": "Job"}},
}


def report(phase: Phase, source: str = "hf://owner/target", **fields: Any) -> Report:
    return Report.model_validate({"artefacts": [{"name": "model", "source": source, "phase": phase, **fields}]})


def kinds(world: World) -> set[str]:
    return {kind for kind, _, _ in world.kube.objects}


def jobs(world: World) -> list[Object]:
    return [body for (kind, _, _), body in world.kube.objects.items() if kind == "Job"]


def finish(job: Object, how: str = "Complete") -> None:
    job["status"] = {"conditions": [{"type": how, "status": "True"}]}


def pull_status(state: Object) -> Object:
    return {"initContainerStatuses": [{"name": "paceline-pull", "state": state}]}


def model_of(world: World) -> str:
    containers = world.kube.find("Deployment", "demo")["spec"]["template"]["spec"]["containers"]
    return str(containers[0]["args"][1])


async def test_the_claim_comes_and_goes_with_the_cache(world: World) -> None:
    world.apply(CACHED)
    await world.serving.run(full=True)
    assert {"PersistentVolumeClaim", "Deployment"} <= kinds(world)
    assert world.condition("ModelAvailable") == ("False", "DownloadPending")
    assert world.status["modelCache"]["artefacts"][0]["phase"] == "Pending"
    world.writes()
    await world.serving.run(full=True)
    assert world.writes() == []
    world.apply(SPEC)
    await world.serving.run(full=True)
    assert "PersistentVolumeClaim" not in kinds(world)
    assert "modelCache" not in world.status
    assert "ModelAvailable" not in [condition["type"] for condition in world.status["conditions"]]


async def test_a_download_is_followed_and_written_by_tens(world: World) -> None:
    world.apply(CACHED)
    await world.serving.run(full=True)
    world.pod("demo-1", ready=False, track="stable", **pull_status({"running": {}}))
    world.engines.pulls["http://10.0.0.1:8765"] = report(Phase.DOWNLOADING, bytes=1000, done=310)
    result = await world.serving.run(full=True)
    assert result.after == pytest.approx(LOOK_SECONDS)
    assert world.status["modelCache"]["artefacts"][0]["progressPercent"] == 30
    world.writes()
    world.engines.pulls["http://10.0.0.1:8765"] = report(Phase.DOWNLOADING, bytes=1000, done=390)
    world.clock.advance(LOOK_SECONDS)
    await world.serving.run(full=False)
    assert world.writes() == []
    world.engines.pulls["http://10.0.0.1:8765"] = report(Phase.DOWNLOADING, bytes=1000, done=400)
    world.clock.advance(LOOK_SECONDS)
    await world.serving.run(full=False)
    assert world.writes() == [("STATUS", naming.KIND_SERVING)]


async def test_pods_are_made_once_the_job_is_done(world: World) -> None:
    world.apply(PULLED_FIRST)
    await world.serving.run(full=True)
    assert len(jobs(world)) == 1
    assert "Deployment" not in kinds(world)
    assert world.condition("Available")[0] == "False"
    world.writes()
    await world.serving.run(full=True)
    assert world.writes() == []
    finish(jobs(world)[0])
    await world.serving.run(full=True)
    assert model_of(world).startswith("/mnt/paceline/cache/weights/hf--owner--target-")


async def test_pods_that_run_serve_on_until_the_next_model_is_there(world: World) -> None:
    world.apply(PULLED_FIRST)
    await world.serving.run(full=True)
    finish(jobs(world)[0])
    await world.serving.run(full=True)
    before = model_of(world)
    changed = {**PULLED_FIRST, "model": {**PULLED_FIRST["model"], "source": "hf://owner/next"}, "replicas": 3}
    world.apply(changed)
    await world.serving.run(full=True)
    assert model_of(world) == before
    assert world.kube.find("Deployment", "demo")["spec"]["replicas"] == 3, "what needs no new weights does not wait"
    (job,) = jobs(world)
    assert "hf://owner/next" in job["spec"]["template"]["spec"]["containers"][0]["args"]
    finish(job, "Failed")
    await world.serving.run(full=True)
    assert (model_of(world), world.condition("ModelAvailable")) == (before, ("False", "DownloadFailed"))
    assert "has given up" in world.message("ModelAvailable")
    world.kube.drop("Job", job["metadata"]["name"])
    await world.serving.run(full=True)
    finish(jobs(world)[0])
    await world.serving.run(full=True)
    assert "owner--next" in model_of(world)


async def test_a_larger_claim_changes_no_pod(world: World) -> None:
    world.apply(CACHED)
    await world.serving.run(full=True)
    world.writes()
    world.apply({**CACHED, "model": {**CACHED["model"], "cache": {"claim": {"size": "20Gi"}}}})
    await world.serving.run(full=True)
    assert [kind for verb, kind in world.writes() if verb == "APPLY"] == ["PersistentVolumeClaim"]


async def test_what_a_job_s_pod_said_is_told(world: World) -> None:
    world.apply(PULLED_FIRST)
    await world.serving.run(full=True)
    said = report(Phase.READY, revision="c" * 40, bytes=7).model_dump_json(by_alias=True)
    ended = {"terminated": {"exitCode": 0, "finishedAt": "2026-11-30T01:00:00Z", "message": said}}
    body = world.pod("demo-pull-1-x", containerStatuses=[{"name": "paceline-pull", "state": ended}])
    body["metadata"]["labels"][naming.LABEL_COMPONENT] = naming.COMPONENT_PULLER
    body["status"]["phase"] = "Succeeded"
    finish(jobs(world)[0])
    await world.serving.run(full=True)
    assert world.condition("ModelAvailable") == ("True", "ModelReady")
    assert world.status["modelCache"]["artefacts"][0]["revision"] == "c" * 40
    assert world.status["replicas"] == 0
