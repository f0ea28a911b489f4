"""The container that runs preflight in a pod, and what is told of its word."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import FAILED_STATUS, Check, Level, Report, failed, fitting, passed, warned
from paceline_operator import checked, naming
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.resources import Tokens, cache, job, pod, preflight
from tests.servings import DEFAULTS, serving
from tests.world import SPEC, World

TOKENS = Tokens(key_version="1", current="token")
DRAFT = {"method": "eagle3", "draft": {"source": "hf://owner/head", "revision": "v2"}, "maxTokens": 4}


def rendered(**spec: Any) -> dict[str, Any]:
    found = serving(**spec)
    table = [4] * (found.spec.engine.max_num_seqs + 1)
    return pod.build(found, table, DEFAULTS, TOKENS)


def container(template: dict[str, Any], name: str = preflight.CONTAINER) -> dict[str, Any] | None:
    return next((one for one in template["spec"].get("initContainers", []) if one["name"] == name), None)


def asked(template: dict[str, Any]) -> Asked:
    found = container(template)
    assert found is not None
    return Asked.model_validate_json(found["args"][found["args"].index("--asked") + 1])


def test_without_the_wish_there_is_no_container() -> None:
    assert container(rendered(engine={"preflight": "Disabled"})) is None
    assert container(rendered()) is not None


def test_it_runs_before_the_weights_come_with_the_engines_image_devices_and_limits() -> None:
    engine = {"preflight": "Checks", "tensorParallelSize": 2, "resources": {"limits": {"memory": "64Gi"}}}
    template = rendered(engine=engine, model={"cache": {"claimName": "shared"}}, speculation=DRAFT)
    names = [one["name"] for one in template["spec"]["initContainers"]]
    assert names == ["paceline-plugin", preflight.CONTAINER, cache.PULL_CONTAINER]
    found, main = container(template), template["spec"]["containers"][0]
    assert found is not None
    for field in ("image", "resources", "securityContext"):
        assert found[field] == main[field]
    assert found["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "64Gi"}
    assert {one["name"] for one in found["env"]} <= {one["name"] for one in main["env"]}
    assert naming.TOKEN_VOLUME not in json.dumps(found), "it has no control port"


def test_it_is_as_the_engine_is_with_what_pod_template_says_and_may_be_another_by_its_own_name() -> None:
    engine = {
        "name": "engine", "image": "mine:1", "envFrom": [{"secretRef": {"name": "hub"}}],
        "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hub", "key": "t"}}}],
        "volumeMounts": [{"name": "models", "mountPath": "/models"}],
    }  # fmt: skip
    own = {"name": preflight.CONTAINER, "resources": {"limits": {"memory": "1Gi"}}}
    over = {"spec": {"containers": [engine], "initContainers": [own, {"name": "bring", "image": "b"}]}}
    template = rendered(engine={"podTemplate": over}, model={"source": "/models/it"})
    found = container(template)
    assert found is not None
    assert (found["image"], found["envFrom"]) == ("mine:1", engine["envFrom"])
    assert engine["volumeMounts"] == found["volumeMounts"][-1:]
    assert "HF_TOKEN" in [one["name"] for one in found["env"]]
    assert found["resources"]["limits"]["memory"] == "1Gi"
    names = [one["name"] for one in template["spec"]["initContainers"]]
    assert names == ["paceline-plugin", "bring", preflight.CONTAINER], "after what may bring a model to a path"
    names = [one["name"] for one in rendered(engine={"podTemplate": over})["spec"]["initContainers"]]
    assert names == ["paceline-plugin", preflight.CONTAINER, "bring"], "before what may bring one from elsewhere"


def test_it_is_told_what_the_engine_is_to_be() -> None:
    engine = {"preflight": "Checks", "tensorParallelSize": 4, "maxModelLen": 8192, "quantization": "fp8"}
    found = asked(rendered(engine=engine, speculation=DRAFT))
    assert (found.method, found.max_tokens, found.tensor_parallel, found.max_model_len) == ("eagle3", 4, 4, 8192)
    assert (found.draft.source, found.draft.revision) == ("hf://owner/head", "v2")  # type: ignore[union-attr]
    assert found.target.quantization == "fp8"
    assert found.capture_sizes
    assert found.gpus == 4


def test_arguments_of_the_user_that_change_the_cache_are_read() -> None:
    arguments = ["--block-size=32", "--kv-cache-memory-bytes", "1073741824"]
    found = asked(rendered(engine={"preflight": "Checks", "extraArgs": arguments}))
    assert (found.block_size, found.kv_cache_bytes) == (32, 2**30)


@given(
    st.sampled_from(["--block-size", "--kv-cache-memory-bytes"]),
    st.text(min_size=1, max_size=40) | st.integers().map(str),
)
def test_whatever_an_argument_says_the_pod_is_rendered(name: str, value: str) -> None:
    for arguments in ([name, value], [f"{name}={value}"]):
        assert container(rendered(engine={"extraArgs": arguments})) is not None


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["name", "image", "env"]), inner, max_size=2)
    ),
    max_leaves=6,
)
FIELDS = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("image", "env", "envFrom", "volumeMounts", "resources"), ANY)
)
PODS = st.one_of(
    st.fixed_dictionaries({"containers": st.tuples(FIELDS.map(lambda it: {**it, "name": "engine"})).map(list)}),
    st.fixed_dictionaries({}, optional={"containers": ANY, "initContainers": ANY}),
    ANY,
)


@given(PODS, st.sampled_from(["hf://owner/model", "/models/it"]))
def test_whatever_pod_template_makes_of_the_engine_nothing_is_raised(spec: Any, source: str) -> None:
    """As without preflight: what does not render at all is refused before."""
    whole = {"podTemplate": {"spec": spec}}
    try:
        rendered(engine={**whole, "preflight": "Disabled"}, model={"source": source})
    except (ValueError, TypeError, AttributeError, LookupError):
        return
    rendered(engine=whole, model={"source": source})


def test_an_engine_without_a_plugin_has_it_in_this_container_alone() -> None:
    template = rendered(engine={"preflight": "Checks", "plugin": {"injection": "None"}})
    found, main = container(template), template["spec"]["containers"][0]
    assert found is not None
    assert "paceline-plugin" in [one["name"] for one in found["volumeMounts"]]
    assert "paceline-plugin" not in [one["name"] for one in main["volumeMounts"]]
    assert [one["name"] for one in template["spec"]["volumes"]].count("paceline-plugin") == 1
    assert any(one["name"] == "PYTHONPATH" for one in found["env"])


def test_a_tiny_model_is_asked_for_by_a_flag() -> None:
    found = container(rendered(engine={"preflight": "TinyModel"}))
    assert found is not None
    assert found["args"][0] == "--tiny"


def test_the_job_looks_at_models_before_it_downloads_them_and_at_no_machine() -> None:
    spec = {"engine": {"preflight": "Checks"}, "model": {"cache": {"claimName": "shared", "download": "Job"}}}
    made = job.build(serving(**spec), rendered(**spec))
    assert made is not None
    inner = made["spec"]["template"]["spec"]
    found = next(one for one in inner["initContainers"] if one["name"] == preflight.CONTAINER)
    assert found["args"][0] == preflight.WITHOUT_MACHINE
    assert "nvidia.com/gpu" not in json.dumps(inner)
    rules = [rule for rule in made["spec"]["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert {rule["onExitCodes"]["containerName"]: rule["onExitCodes"]["values"] for rule in rules}[
        preflight.CONTAINER
    ] == [FAILED_STATUS]
    assert {mount["name"] for mount in found["volumeMounts"]} <= {volume["name"] for volume in inner["volumes"]}


def said(*checks: Check, at: str = "2026-11-30T01:00:00Z", code: int = 0, pod: str = "demo-1") -> dict[str, Any]:
    return state(fitting(Report(checks=list(checks))).decode(), at, code, pod)


def state(text: str, at: str = "2026-11-30T01:00:00Z", code: int = 0, pod: str = "demo-1") -> dict[str, Any]:
    ended = {"terminated": {"exitCode": code, "reason": "Error", "finishedAt": at, "message": text}}
    status = {"name": preflight.CONTAINER, "state": ended}
    return {"metadata": {"name": pod}, "status": {"initContainerStatuses": [status]}}


GOOD = passed("memory", "it fits")
BAD = failed("vocabulary", "152064 and 151936 tokens", "use another draft")


def test_before_any_pod_said_something_it_is_unknown() -> None:
    found = checked.verdict([{"metadata": {"name": "demo-1"}, "status": {}}])
    assert (found.status, found.reason) == (None, Reason.CHECKS_PENDING)


def test_a_failed_check_is_told_with_pod_reason_and_remedy() -> None:
    found = checked.verdict([said(GOOD), said(GOOD, BAD, code=FAILED_STATUS, pod="demo-2")])
    assert (found.type, found.status, found.reason) == (ConditionType.PREFLIGHT_PASSED, False, Reason.CHECK_FAILED)
    assert found.message == "demo-2: vocabulary: 152064 and 151936 tokens; use another draft"


def test_the_newest_word_of_a_pod_counts() -> None:
    one = said(BAD, code=FAILED_STATUS)
    one["status"]["initContainerStatuses"][0]["lastState"] = one["status"]["initContainerStatuses"][0]["state"]
    newer = said(GOOD, at="2026-11-30T02:00:00Z")["status"]["initContainerStatuses"][0]["state"]
    one["status"]["initContainerStatuses"][0]["state"] = newer
    assert checked.verdict([one]).reason is Reason.CHECKS_PASSED


def test_warnings_are_named() -> None:
    found = checked.verdict([said(GOOD, warned("size-ratio", "5 times", "a smaller one"))])
    assert (found.status, found.message) == (True, "No check failed; warnings: size-ratio")


def test_a_container_that_was_killed_is_told_by_its_logs_end() -> None:
    found = checked.verdict([state("Traceback\nMemoryError", code=137)])
    assert found.reason is Reason.CHECK_FAILED
    assert "exit code 137" in found.message
    assert "MemoryError" in found.message


@given(st.text(max_size=200), st.integers(0, 255) | st.none())
def test_any_termination_message_is_borne(text: str, code: int | None) -> None:
    found = checked.verdict([state(text, code=code)])  # type: ignore[arg-type]
    assert found.reason in (Reason.CHECK_FAILED, Reason.CHECKS_PASSED)
    assert bool(code) <= (found.reason is Reason.CHECK_FAILED)


CHECKS = st.lists(
    st.builds(
        Check,
        name=st.text(max_size=64),
        level=st.sampled_from(Level),
        reason=st.text(max_size=4000),
        remedy=st.text(max_size=1000),
        seconds=st.just(0.0),
        source=st.just(""),
    ),
    min_size=1,
    max_size=30,
)


@given(CHECKS)
def test_a_termination_message_is_whole_and_keeps_the_gravest(checks: list[Check]) -> None:
    text = fitting(Report(checks=checks))
    assert len(text) <= 4096
    kept = Report.model_validate_json(text)
    assert kept.level is Report(checks=checks).level


async def test_a_pass_tells_it_once_and_takes_it_away_with_the_wish(world: World) -> None:
    world.apply({**SPEC, "engine": {**SPEC.get("engine", {}), "preflight": "Checks"}})
    await world.serving.run(full=True)
    assert world.condition("PreflightPassed") == ("Unknown", "ChecksPending")
    status = said(BAD, code=FAILED_STATUS)["status"]
    world.pod("demo-1", ready=False, track="stable", **status)
    await world.serving.run(full=True)
    assert world.condition("PreflightPassed") == ("False", "CheckFailed")
    assert "use another draft" in world.message("PreflightPassed")
    world.writes()
    await world.serving.run(full=True)
    assert world.writes() == []
    world.apply({**SPEC, "engine": {**SPEC.get("engine", {}), "preflight": "Disabled"}})
    await world.serving.run(full=True)
    assert "PreflightPassed" not in [condition["type"] for condition in world.status["conditions"]]


@pytest.mark.parametrize("engine", [{"device": "CPU"}, {"enforceEager": True}, {"cudagraphMode": "PIECEWISE"}])
def test_graphs_are_those_of_the_command_line(engine: dict[str, Any]) -> None:
    found = asked(rendered(engine={"preflight": "Checks", **engine}, speculation={"method": "ngram", "draft": None}))
    assert bool(found.capture_sizes) == (engine == {"cudagraphMode": "PIECEWISE"})
    assert found.full_graphs == (engine != {"cudagraphMode": "PIECEWISE"})
