"""The Job of an experiment's engine as it is written, and what is seen of its pod, whatever that says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.trial.visit import Line, Measurement, Ready, Visit, Warm
from paceline_operator import naming
from paceline_operator.api.base import ObjectMeta
from paceline_operator.api.experiment import Prompts
from paceline_operator.experiment import course, seen, shown, variants
from paceline_operator.experiment.results import LengthPoint, LogWarning, Methods, VariantResult, Window
from paceline_operator.resources import Defaults, Manifest
from paceline_operator.resources.trial import LOAD_CONTAINER, PROMPTS_FILE, Asked, job
from tests.servings import serving
from tests.unit.test_experimenting_course import SPEC

DEFAULTS = Defaults("gpu-image", "cpu-image", "plugin-image")
VISIT = Visit(
    url="http://engine",
    round=1,
    arguments=["bench"],
    seconds=10,
    start_seconds=60,
    warm_up=[2],
    measurements=[Measurement(load=2, seed=1)],
)
RANDOM = {"random": {}}
STARTED = "2026-01-01T00:00:00Z"


def made(prompts: dict[str, Any] = RANDOM, **fields: Any) -> Manifest:
    base = serving(**fields)
    template = variants.rendered(base, variants.of(SPEC, base.spec)["k3"], DEFAULTS)
    owner = ObjectMeta(name="which", namespace="team", uid="u")
    asked = Asked(7, "k3", VISIT, 300.0)
    return job(owner, asked, base.spec, template, Prompts.model_validate(prompts), DEFAULTS)


def containers(manifest: Manifest) -> dict[str, Any]:
    spec = manifest["spec"]["template"]["spec"]
    return {one["name"]: one for one in (*spec.get("initContainers", []), *spec["containers"])}


@pytest.mark.parametrize("mode", ["Disabled", "Checks"])
@pytest.mark.parametrize("injection", ["InitContainer", "InImage", "None"])
def test_nothing_of_a_serving_selects_its_pod(mode: str, injection: str) -> None:
    user = {"metadata": {"labels": {"app": "chat", naming.LABEL_SERVING: "chat"}, "annotations": {"a": "b"}}}
    found = made(engine={"podTemplate": user, "preflight": mode, "plugin": {"injection": injection}})
    template = found["spec"]["template"]
    assert naming.LABEL_SERVING not in template["metadata"]["labels"]
    assert "app" not in template["metadata"]["labels"]
    assert template["metadata"]["annotations"] == {"a": "b"}
    assert found["metadata"]["name"] == "which-visit-7"
    assert found["metadata"]["ownerReferences"][0]["uid"] == "u"
    assert found["spec"]["backoffLimit"] == 0
    assert found["spec"]["activeDeadlineSeconds"] == 900
    spec = template["spec"]
    assert spec["restartPolicy"] == "Never"
    assert [one["name"] for one in spec["initContainers"]].count(naming.PLUGIN_CONTAINER) == 1
    assert [one["name"] for one in spec["volumes"]].count(naming.PLUGIN_VOLUME) == 1


def test_the_load_is_beside_the_engine_and_has_no_device() -> None:
    found = containers(made())
    engine, load = found["engine"], found[LOAD_CONTAINER]
    assert engine["resources"]["limits"] == {"nvidia.com/gpu": "1"}
    assert "limits" not in load["resources"]
    assert load["image"] == engine["image"]
    assert Visit.model_validate_json(load["args"][1]) == VISIT
    env = {one["name"]: one.get("value") for one in load["env"]}
    assert env["PYTHONPATH"] == naming.PLUGIN_DIRECTORY
    assert env["VLLM_PLUGINS"] == ""
    assert "PYTHONPATH" not in {one["name"] for one in engine["env"]}, "the engine is as vLLM's own"
    assert {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"} in engine["env"]
    assert "--disable-uvicorn-access-log" in engine["args"]


@pytest.mark.parametrize(
    ("prompts", "inner"),
    [
        (RANDOM, None),
        ({"configMap": {"name": "texts", "key": "a.jsonl"}}, "a.jsonl"),
        ({"lengths": {"name": "recorded", "key": "a.csv"}}, "a.csv"),
        ({"persistentVolumeClaim": {"claimName": "texts", "path": "b/c.jsonl"}}, "b/c.jsonl"),
    ],
)
def test_prompts_are_where_the_load_looks(prompts: dict[str, Any], inner: str | None) -> None:
    mounts = {one["mountPath"]: one.get("subPath") for one in containers(made(prompts))[LOAD_CONTAINER]["volumeMounts"]}
    assert mounts.get(PROMPTS_FILE) == inner


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just(STARTED),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=4,
)
STATES = st.dictionaries(
    st.sampled_from(["running", "waiting", "terminated"]),
    st.fixed_dictionaries(
        {},
        optional={
            "exitCode": st.integers(0, 255), "reason": st.text(max_size=9), "message": st.text(max_size=40),
            "startedAt": st.just(STARTED), "finishedAt": st.text(max_size=9) | st.just(STARTED),
        },
    ),
    max_size=1,
)  # fmt: skip
STATUSES = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(["engine", LOAD_CONTAINER, "paceline-preflight"]), "state": STATES}),
    max_size=3,
)
PODS = st.builds(
    lambda status: {"metadata": {"name": "p", "uid": "u"}, "status": status},
    st.fixed_dictionaries(
        {},
        optional={
            "phase": st.sampled_from(["Pending", "Failed"]), "startTime": st.text(max_size=5) | st.just(STARTED),
            "containerStatuses": STATUSES, "initContainerStatuses": STATUSES, "reason": st.text(max_size=5),
        },
    ),
)  # fmt: skip
JOB = {"metadata": {"name": "j", "uid": "u", "creationTimestamp": STARTED}}
LINES = st.lists(
    st.builds(Line, ready=st.none() | st.just(Ready()), failed=st.none() | st.text(max_size=9), done=st.booleans()),
    max_size=3,
)


@given(PODS | st.just({}), st.none() | LINES)
def test_whatever_a_pod_says_is_read(pod: dict[str, Any], lines: list[Line] | None) -> None:
    found = seen.running(JOB, 3, pod, lines)
    assert found.visit == 3
    assert found.created > 0
    assert found.ready or lines is not None
    seen.started(pod)
    result = VariantResult(experiment="x", variant="k3", k=0, methods=Methods(gpu="none"))
    seen.merged(result, lines or (), ((), ()), pod)


@given(st.text(max_size=6) | st.integers(0, 9).map(str))
def test_a_job_is_of_the_visit_that_its_name_says(last: str) -> None:
    found = seen.visit_of({"metadata": {"name": f"which-visit-{last}"}}, "which", 4)
    assert found == {"0": 0, "1": 1, "2": 2, "3": 3}.get(last.lstrip("0") or last[-1:])
    assert seen.visit_of({"metadata": {"name": f"other-visit-{last}"}}, "which", 4) is None


def window(load: int, **fields: Any) -> Window:
    given = {"round": 0, "seed": 0, "started_at": 1e9, "seconds": 10, "warmed": True, "tokens": 9, "requests": 1}
    return Window.model_validate({"load": load, **given, **fields})


def test_what_was_said_once_is_kept_once() -> None:
    result = VariantResult(experiment="x", variant="k3", k=0, methods=Methods(gpu="unknown"))
    ended = {"exitCode": 1, "finishedAt": "2001-09-09T01:46:44Z"}
    statuses = [{"name": "engine", "imageID": "sha256:1", "state": {"terminated": ended}}]
    checks = '{"checks": [{"name": "driver", "level": "pass", "reason": "1 x NVIDIA H200"}]}'
    init = [{"name": "paceline-preflight", "state": {"terminated": {"exitCode": 0, "message": checks}}}]
    pod = {"metadata": {}, "status": {"containerStatuses": statuses, "initContainerStatuses": init}}
    lines = [
        Line(ready=Ready(version="0.33.0", prompts="sha256:2")),
        Line(warm=Warm(load=2, requests=9)),
        Line(window=window(2)),
        Line(window=window(4, fault_seconds=10)),
    ]
    log = ([LogWarning(at=5, event="compiled", kernel="k")], [LengthPoint(at=4, length=2)])
    once = seen.merged(result, lines, log, pod)
    assert seen.merged(once, lines, log, pod) == once
    assert [one.fault_seconds for one in once.windows] == [None, 4.0], "four seconds into it"
    assert once.methods.versions == {"vllm": "0.33.0"}
    assert once.methods.digests == {"prompts": "sha256:2", "image": "sha256:1"}
    assert once.methods.gpu == "1 x NVIDIA H200"
    assert (len(once.warnings), len(once.lengths)) == (1, 1)
    told = shown.with_requests(once, seen.requests(lines))
    assert told.methods.load == {"requests at 2": "9"}
    assert shown.with_requests(told, {2: 99}).methods.load == told.methods.load, "the first one counts"


def test_why_it_has_not_begun() -> None:
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no GPU"}
    found = seen.running(JOB, 0, {"metadata": {}, "status": {"conditions": [scheduled]}}, ())
    assert found.waits_for == "Unschedulable: no GPU"
    pull = {"name": "engine", "state": {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}}
    found = seen.running(JOB, 0, {"metadata": {}, "status": {"containerStatuses": [pull]}}, ())
    assert found.waits_for == "engine: ErrImagePull: no such image"
    assert seen.running(JOB, 0, {}, ()).waits_for == "it has no pod yet"


def test_a_job_that_failed_ends_its_visit() -> None:
    failed = {"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"}
    found = seen.running({**JOB, "status": {"conditions": [failed]}}, 0, {}, ())
    assert found.ended == "its Job failed: DeadlineExceeded: too long"
    assert found.load_ended
    assert isinstance(found, course.Running)
