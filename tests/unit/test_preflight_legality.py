"""What is refused, with which reason, and that the message names the field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import resources
from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import DEV_MODE
from paceline_operator.preflight.legality import check
from paceline_operator.tuning.prior import boot_table, ladder_of
from tests.servings import DEFAULTS, TOKENS, serving

NGRAM = {"method": "ngram", "draft": None}
SUFFIX = {"method": "suffix", "draft": None}
AV = {"adaptiveVerification": "Enabled"}
V1 = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}
V2 = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "1"}]}


def template_of_engine(**fields: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


REFUSED: list[tuple[str, dict[str, Any], Reason, str]] = [
    ("owned", {"engine": {"extraArgs": ["--port", "1"]}}, Reason.OWNED_ARGUMENT, "--port"),
    ("owned short", {"engine": {"extraArgs": ["-tp=2"]}}, Reason.OWNED_ARGUMENT, "tensorParallelSize"),
    ("owned dotted", {"engine": {"extraArgs": ["-sc.method=ngram"]}}, Reason.OWNED_ARGUMENT, "spec.speculation"),
    ("config file", {"engine": {"extraArgs": ["--config", "/x.yaml"]}}, Reason.OWNED_ARGUMENT, "--config"),
    ("data parallel", {"engine": {"extraArgs": ["-dp", "2"]}}, Reason.OWNED_ARGUMENT, "spec.replicas"),
    ("hub token", {"engine": {"extraArgs": ["--hf-token=s"]}}, Reason.OWNED_ARGUMENT, "tokenSecretName"),
    ("not an option", {"engine": {"extraArgs": ["8"]}}, Reason.INVALID_SPEC, "extraArgs"),
    ("end of options", {"engine": {"extraArgs": ["--seed", "1", "--"]}}, Reason.INVALID_SPEC, "extraArgs"),
    (
        "long ladder",
        {"engine": {"maxNumSeqs": 2}, "tuning": {"ladder": [3, 1, 0]}},
        Reason.LADDER_TOO_LONG,
        "spec.tuning.ladder",
    ),
    ("ladder without 0", {"tuning": {"ladder": [3, 1]}}, Reason.INVALID_SPEC, "spec.tuning.ladder"),
    ("ladder above K", {"tuning": {"ladder": [9, 0]}}, Reason.INVALID_SPEC, "maxTokens"),
    ("no table", {"tuning": {"mode": "Manual"}}, Reason.INVALID_SPEC, "spec.tuning.table"),
    ("table unused", {"tuning": {"table": [{"fromRequests": 1, "k": 1}]}}, Reason.INVALID_SPEC, "Manual"),
    (
        "table from 2",
        {"tuning": {"mode": "Manual", "table": [{"fromRequests": 2, "k": 1}]}},
        Reason.INVALID_SPEC,
        "fromRequests",
    ),
    (
        "table descending",
        {"tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 1}, {"fromRequests": 1, "k": 2}]}},
        Reason.INVALID_SPEC,
        "ascending",
    ),
    (
        "table above K",
        {"tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 9}]}},
        Reason.INVALID_SPEC,
        "maxTokens",
    ),
    (
        "table off the ladder",
        {"tuning": {"mode": "Manual", "ladder": [5, 0], "table": [{"fromRequests": 1, "k": 3}]}},
        Reason.INVALID_SPEC,
        "k=3",
    ),
    (
        "too many ks in the table",
        {
            "engine": {"maxNumSeqs": 1},
            "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}, {"fromRequests": 2, "k": 1}]},
        },
        Reason.LADDER_TOO_LONG,
        "spec.tuning.table names 2 ks",
    ),
    ("suffix ladder", {"speculation": SUFFIX, "tuning": {"ladder": [5, 0]}}, Reason.INVALID_SPEC, "suffix"),
    (
        "suffix table",
        {"speculation": SUFFIX, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 2}]}},
        Reason.INVALID_SPEC,
        "suffix",
    ),
    ("no draft", {"speculation": {"draft": None}}, Reason.INVALID_SPEC, "spec.speculation.draft.source"),
    ("ngram draft", {"speculation": {"method": "ngram"}}, Reason.INVALID_SPEC, "spec.speculation.draft"),
    ("mtp draft", {"speculation": {"method": "mtp"}}, Reason.INVALID_SPEC, "spec.speculation.draft"),
    ("stray window", {"speculation": {"ngram": {}}}, Reason.INVALID_SPEC, "spec.speculation.ngram"),
    (
        "inverted window",
        {"speculation": {**NGRAM, "ngram": {"promptLookupMin": 6, "promptLookupMax": 5}}},
        Reason.INVALID_SPEC,
        "promptLookupMin",
    ),
    ("AV eager", {"speculation": AV, "engine": {"enforceEager": True}}, Reason.INCOMPATIBLE, "enforceEager"),
    ("AV mode", {"speculation": AV, "engine": {"cudagraphMode": "PIECEWISE"}}, Reason.INCOMPATIBLE, "cudagraphMode"),
    ("AV stages", {"speculation": AV, "engine": {"pipelineParallelSize": 2}}, Reason.INCOMPATIBLE, "pipelineParallel"),
    ("AV LoRA", {"speculation": AV, "engine": {"lora": {}}}, Reason.INCOMPATIBLE, "LoRA"),
    ("AV CPU", {"speculation": AV, "engine": {"device": "CPU"}}, Reason.INCOMPATIBLE, "needs a GPU"),
    ("AV V1", {"speculation": AV, "engine": V1}, Reason.INCOMPATIBLE, "rule av-v1, https://github.com/vllm-project/"),
    ("AV ngram", {"speculation": {**NGRAM, **AV}}, Reason.INCOMPATIBLE, "draft probabilities"),
    (
        "AV sampling mask",
        {"speculation": AV, "engine": {"extraArgs": ["--return_sampling_mask"]}},
        Reason.INCOMPATIBLE,
        "spec.engine.extraArgs",
    ),
    (
        "AV sharded in 0.32",
        {"speculation": AV, "engine": {"extraArgs": ["--enable-batch-sharded-sampling"]}},
        Reason.INCOMPATIBLE,
        "0.33",
    ),
    (
        "AV argmax",
        {"speculation": {**AV, "extraConfig": {"use_local_argmax_reduction": True}}},
        Reason.INCOMPATIBLE,
        "use_local_argmax_reduction",
    ),
    ("suffix on V2", {"speculation": SUFFIX, "engine": V2}, Reason.INCOMPATIBLE, "spec.engine.env"),
    ("dspark on V1", {"speculation": {"method": "dspark"}, "engine": V1}, Reason.INCOMPATIBLE, "dspark"),
    (
        "draft's GPUs",
        {
            "speculation": {"draft": {"source": "/draft", "tensorParallelSize": 2}},
            "engine": {"tensorParallelSize": 4},
        },
        Reason.INCOMPATIBLE,
        "spec.speculation.draft.tensorParallelSize",
    ),
    (
        "since 0.33",
        {"speculation": {"extraConfig": {"rejection_sample_method": "fly"}}},
        Reason.INCOMPATIBLE,
        "since 0.33",
    ),
    ("cache of 0.33", {"engine": {"kvCacheDtype": "octave_k3v4"}}, Reason.INCOMPATIBLE, "spec.engine.kvCacheDtype"),
    (
        "owned key",
        {"speculation": {"extraConfig": {"num_speculative_tokens": 3}}},
        Reason.OWNED_ARGUMENT,
        "spec.speculation.maxTokens",
    ),
    ("owned LoRA", {"engine": {"extraArgs": ["--enable-lora"]}}, Reason.OWNED_ARGUMENT, "spec.engine.lora"),
    ("owned -q", {"engine": {"extraArgs": ["-q", "fp8"]}}, Reason.OWNED_ARGUMENT, "spec.engine.quantization"),
    ("tokens", {"engine": {"maxNumBatchedTokens": 8}}, Reason.INVALID_SPEC, "spec.engine.maxNumBatchedTokens"),
    (
        "eager and graphs",
        {"engine": {"enforceEager": True, "cudagraphMode": "FULL"}},
        Reason.INVALID_SPEC,
        "spec.engine.cudagraphMode",
    ),
    (
        "graphs of a CPU",
        {"engine": {"device": "CPU", "cudagraphMode": "FULL"}},
        Reason.INVALID_SPEC,
        "spec.engine.cudagraphMode",
    ),
    ("adapters", {"engine": {"lora": {"maxLoras": 4, "maxCpuLoras": 2}}}, Reason.INVALID_SPEC, "maxCpuLoras"),
    ("stray suffix", {"speculation": {"suffix": {}}}, Reason.INVALID_SPEC, "spec.speculation.suffix"),
    (
        "no draft that samples",
        {"speculation": {**NGRAM, "draftSampleMethod": "greedy"}},
        Reason.INVALID_SPEC,
        "spec.speculation.draftSampleMethod",
    ),
    ("dev mode", {"engine": {"env": [{"name": DEV_MODE, "value": "1"}]}}, Reason.INVALID_SPEC, DEV_MODE),
    (
        "dev mode by template",
        {"engine": {"podTemplate": template_of_engine(env=[{"name": DEV_MODE, "value": "1"}])}},
        Reason.INVALID_SPEC,
        DEV_MODE,
    ),
    (
        "arguments by template",
        {"engine": {"podTemplate": template_of_engine(args=["serve", "m"])}},
        Reason.INVALID_SPEC,
        "spec.engine.extraArgs",
    ),
    ("CPU TP", {"engine": {"device": "CPU", "tensorParallelSize": 2}}, Reason.INVALID_SPEC, "tensorParallelSize"),
    ("CPU PP", {"engine": {"device": "CPU", "pipelineParallelSize": 2}}, Reason.INVALID_SPEC, "pipelineParallelSize"),
    (
        "CPU ngram_gpu",
        {"engine": {"device": "CPU"}, "speculation": {**NGRAM, "method": "ngram_gpu"}},
        Reason.INCOMPATIBLE,
        "use ngram",
    ),
    ("blank name", {"model": {"servedName": " "}}, Reason.INVALID_SPEC, "spec.model.servedName"),
    ("name as option", {"model": {"servedName": "--port"}}, Reason.INVALID_SPEC, "spec.model.servedName"),
    ("revision as option", {"model": {"revision": "-x"}}, Reason.INVALID_SPEC, "spec.model.revision"),
    ("parent folder", {"model": {"source": "pvc://claim/../x"}}, Reason.INVALID_SPEC, "spec.model.source"),
    (
        "revision of a path",
        {"model": {"source": "/models/a", "revision": "main"}},
        Reason.INVALID_SPEC,
        "spec.model.revision",
    ),
    (
        "revision of a draft",
        {"speculation": {"draft": {"source": "/models/a", "revision": "main"}}},
        Reason.INVALID_SPEC,
        "spec.speculation.draft.revision",
    ),
    ("no way to roll", {"rollout": {"maxSurge": 0, "maxUnavailable": 0}}, Reason.INVALID_SPEC, "spec.rollout"),
    ("reserved env", {"engine": {"env": [{"name": "PACELINE_X"}]}}, Reason.INVALID_SPEC, "PACELINE_X"),
    ("template spec", {"engine": {"podTemplate": {"spec": []}}}, Reason.INVALID_SPEC, "podTemplate.spec"),
    ("template metadata", {"engine": {"podTemplate": {"metadata": "x"}}}, Reason.INVALID_SPEC, "podTemplate.metadata"),
    (
        "unnamed container",
        {"engine": {"podTemplate": {"spec": {"containers": [{"image": "x"}]}}}},
        Reason.INVALID_SPEC,
        "podTemplate.spec.containers",
    ),
    (
        "containers a map",
        {"engine": {"podTemplate": {"spec": {"containers": {}}}}},
        Reason.INVALID_SPEC,
        "podTemplate.spec.containers",
    ),
    (
        "containers null",
        {"engine": {"podTemplate": {"spec": {"containers": None}}}},
        Reason.INVALID_SPEC,
        "podTemplate.spec.containers",
    ),
    (
        "an image that is a number",
        {"engine": {"podTemplate": {"spec": {"containers": [{"name": "beside", "image": 5}]}}}},
        Reason.INVALID_SPEC,
        "containers[beside].image",
    ),
    (
        "no image",
        {"engine": {"podTemplate": template_of_engine(image=None)}},
        Reason.INVALID_SPEC,
        "containers[engine].image",
    ),
    (
        "a variable without a name",
        {"engine": {"podTemplate": template_of_engine(env=[{"value": "x"}])}},
        Reason.INVALID_SPEC,
        "containers[engine].env",
    ),
    (
        "variables in words",
        {"engine": {"podTemplate": template_of_engine(env="A=b")}},
        Reason.INVALID_SPEC,
        "containers[engine].env",
    ),
    (
        "no variables",
        {"engine": {"podTemplate": template_of_engine(env=None)}},
        Reason.INVALID_SPEC,
        "containers[engine].env",
    ),
    (
        "mounts without a path",
        {"engine": {"podTemplate": template_of_engine(volumeMounts=[{"name": "dshm"}])}},
        Reason.INVALID_SPEC,
        "containers[engine].volumeMounts",
    ),
    ("limits a list", {"engine": {"resources": {"limits": ["x"]}}}, Reason.INVALID_SPEC, "resources.limits"),
    (
        "memory in words",
        {"engine": {"resources": {"limits": {"memory": "much"}}}},
        Reason.INVALID_SPEC,
        "resources.limits.memory is 'much'",
    ),
    ("a negative request", {"engine": {"resources": {"requests": {"cpu": -1}}}}, Reason.INVALID_SPEC, "requests.cpu"),
]

ACCEPTED: list[dict[str, Any]] = [
    {},
    {"speculation": NGRAM},
    {"speculation": SUFFIX},
    {"speculation": {**SUFFIX, "maxTokens": 5}, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 5}]}},
    {"speculation": {"method": "mtp", "draft": None}},
    {"speculation": AV, "engine": {"tensorParallelSize": 4}},
    {"tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 5}, {"fromRequests": 9, "k": 0}]}},
    {"engine": {"extraArgs": ["--seed", "-1", "--lora-dtype", "auto"], "lora": {}}},
    {
        "speculation": {**AV, "extraConfig": {"rejection_sample_method": "fly"}},
        "engine": {"vllmVersion": "0.33.1", "extraArgs": ["--enable-batch-sharded-sampling"]},
    },
    {"engine": {"image": "docker.io/vllm/vllm-openai:v0.33.0", "kvCacheDtype": "octave_k3v4"}},
    {"engine": {"quantization": "of-a-plugin"}},
    {"speculation": {"method": "ngram", "draft": None}, "engine": V1, "tuning": {"ladder": [5, 0]}},
    {"engine": {"tensorParallelSize": 4}, "speculation": {"draft": {"source": "/draft", "tensorParallelSize": 1}}},
    {"engine": {"podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}], "initContainers": None}}}},
    {"engine": {"device": "CPU", "maxNumSeqs": 1}, "speculation": NGRAM},
]


@pytest.mark.parametrize(("spec", "reason", "names"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_work_is_refused(spec: dict[str, Any], reason: Reason, names: str) -> None:
    findings = check(serving(**spec).spec)
    assert findings
    assert {finding.reason for finding in findings} == {reason}
    assert any(names in finding.message for finding in findings)
    assert all("spec." in finding.message for finding in findings)


@pytest.mark.parametrize("spec", ACCEPTED)
def test_what_can_work_is_accepted(spec: dict[str, Any]) -> None:
    assert check(serving(**spec).spec) == []


def test_everything_wrong_is_said_at_once() -> None:
    findings = check(serving(engine={"extraArgs": ["--port", "1", "--host", "h"]}, model={"servedName": "-"}).spec)
    assert len(findings) == 3


FIELDS = st.sampled_from(["spec", "metadata", "labels", "containers", "volumes", "name", "limits", "env"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | FIELDS, inner, max_size=3),
    max_leaves=10,
)


@given(
    st.lists(st.text(min_size=1, max_size=8), max_size=3),
    st.dictionaries(FIELDS, JSON, max_size=3),
    st.dictionaries(FIELDS, JSON, max_size=3),
    st.integers(1, 4),
    st.none() | st.lists(st.integers(0, 32), min_size=1, max_size=6),
)
def test_no_spec_that_passes_the_schema_breaks_check_or_render(
    extra: list[str], template: dict[str, Any], asked: dict[str, Any], seqs: int, ladder: list[int] | None
) -> None:
    engine = {"extraArgs": extra, "podTemplate": template, "resources": asked, "maxNumSeqs": seqs}
    given = serving(engine=engine, tuning={"ladder": ladder})
    if not check(given.spec):
        table = boot_table(ladder_of(given.spec), given.spec.engine.max_num_seqs)
        children = resources.render(given, table, DEFAULTS, TOKENS)
        deployment = next(child for child in children if child["kind"] == "Deployment")
        assert deployment["spec"]["template"]["spec"]["containers"][0]["name"] == "engine"


@pytest.mark.parametrize(("name", "good"), [("job", True), ('a"} or up{b', False), ("a-b", False), ("1a", False)])
def test_a_label_s_name_ends_no_query(name: str, good: bool) -> None:
    spec = serving(metrics={"prometheus": {"url": "http://a.example", "labels": {name: "b"}}}).spec
    assert any("labels" in finding.message for finding in check(spec)) is not good
