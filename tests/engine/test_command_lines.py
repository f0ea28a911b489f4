"""The command lines that we render, as vLLM's own parser reads them. Nothing is started and no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml

from paceline_operator import naming
from paceline_operator.api.engine import Lora
from paceline_operator.api.runner import without_schedule
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight import matrix
from paceline_operator.preflight.arguments import OWNED, OWNED_CONFIG, SHORT, owner_of
from paceline_operator.preflight.security import ARGUMENTS
from paceline_operator.resources import argv, leaderworkerset, pod
from paceline_operator.resources.substitution import expand
from tests.servings import DEFAULTS, TOKENS, serving, table_of

pytestmark = pytest.mark.engine

ROOT = Path(__file__).resolve().parents[2]
ENGINE_PYTHON = ROOT / ".venv" / "engine" / "bin" / "python"
TIMEOUT_SECONDS = 300
AWKWARD = 'it\'s "one" {name} with = and\nlines, $(id) `id` \\ --port'


def examples() -> Iterator[tuple[str, SpeculativeServing]]:
    """Every serving of examples/, by file and name."""
    for file in sorted((ROOT / "examples").glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            if document.get("kind") == naming.KIND_SERVING:
                yield f"{file.stem} {document['metadata']['name']}", SpeculativeServing.model_validate(document)


SERVINGS: dict[str, SpeculativeServing] = {
    "minimal": serving(speculation={"method": "ngram", "draft": None}),
    "eagle3": serving(model={"revision": "v1.0", "servedName": AWKWARD}, speculation={"draft": {"source": "/d.e/f"}}),
    "dotted": serving(model={"source": "/models/v1.5/x=y", "servedName": "a.b=c.d"}),
    "everything": serving(
        speculation={
            "draft": {"source": "hf://owner/draft", "tensorParallelSize": 1, "quantization": "fp8", "revision": "r"},
            "maxTokens": 7,
            "adaptiveVerification": "Enabled",
            "draftSampleMethod": "probabilistic",
            "extraConfig": {"rejection_sample_method": "block", "moe_backend": "triton"},
        },
        engine={
            "tensorParallelSize": 4,
            "maxModelLen": 32768,
            "maxNumSeqs": 512,
            "dtype": "bfloat16",
            "enablePrefixCaching": False,
            "maxNumBatchedTokens": 16384,
            "quantization": "compressed-tensors",
            "kvCacheDtype": "fp8",
            "cudagraphMode": "FULL_DECODE_ONLY",
            "extraArgs": ["--kv-cache-dtype-skip-layers", "0", "--tool-call-parser=hermes"],
        },
    ),
    "eager": serving(engine={"enforceEager": True, "enablePrefixCaching": True, "pipelineParallelSize": 2}),
    "suffix": serving(speculation={"method": "suffix", "draft": None, "maxTokens": 8}),
    "suffix options": serving(speculation={"method": "suffix", "draft": None, "suffix": {"maxSpecFactorPercent": 150}}),
    "lora": serving(engine={"lora": {"maxLoras": 4, "maxLoraRank": 64, "maxCpuLoras": 8}}),
    "V1": serving(engine={"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}),
    "no graphs": serving(engine={"cudagraphMode": "NONE"}),
    "mtp": serving(speculation={"method": "mtp", "draft": None, "maxTokens": 1}, engine={"maxNumSeqs": 2}),
    "cpu": serving(speculation={"method": "ngram", "draft": None}, engine={"device": "CPU", "maxNumSeqs": 32}),
    "ladder": serving(tuning={"ladder": [5, 4, 3, 2, 1, 0]}, engine={"maxNumSeqs": 6}),
}
SERVINGS |= {f"example {name}": given for name, given in examples()}
ABBREVIATIONS = [["vllm", "serve", "m", *tail] for tail in (["--max-num-seq", "3"], ["--max_model_l=9"], ["-tp=2"])]


def group() -> list[list[str]]:
    """Leader and worker of an engine over two nodes, as the kubelet would start them."""
    given = serving(engine={"tensorParallelSize": 16, "multiNode": {"nodes": 2}})
    template = pod.build(given, table_of(given), DEFAULTS, TOKENS)
    built = leaderworkerset.build(given, template, track="stable", replicas=1, annotations={})
    variables = {"LWS_LEADER_ADDRESS": "demo-group-0.demo-group.team-a", "LWS_WORKER_INDEX": "1"}
    both = built["spec"]["leaderWorkerTemplate"]
    engines = [both[which]["spec"]["containers"][0] for which in ("leaderTemplate", "workerTemplate")]
    return [[*each["command"], *(expand(argument, variables) for argument in each["args"])] for each in engines]


@pytest.fixture(scope="module")
def answer() -> dict[str, Any]:
    """One process parses all, because importing vLLM takes ten seconds."""
    commands = [argv.build(given, table_of(given)) for given in SERVINGS.values()]
    everything = SERVINGS["everything"]
    plain = argv.build(everything, table_of(everything), drafter=False)
    result = subprocess.run(
        [ENGINE_PYTHON, Path(__file__).with_name("parse_command_lines.py")],
        input=json.dumps({"commands": [*commands, *ABBREVIATIONS, plain, *group()]}),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
        env={**os.environ, "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"},
    )
    assert result.returncode == 0, result.stderr[-4000:]
    parsed: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return parsed


@pytest.fixture(params=list(SERVINGS))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def parsed(answer: dict[str, Any], name: str) -> dict[str, Any]:
    arguments: dict[str, Any] = answer["parsed"][list(SERVINGS).index(name)]
    assert "error" not in arguments, arguments["error"]
    return arguments


def test_every_text_arrives_as_it_was_written(name: str, parsed: dict[str, Any]) -> None:
    given = SERVINGS[name]
    spec = given.spec
    made = argv.build(given, table_of(given))
    assert parsed["model_tag"] == made[2]
    assert parsed["served_model_name"] == [spec.model.served_name or given.metadata.name]
    # With a cache the revision is part of the path that the puller fills.
    assert parsed["revision"] == (None if spec.model.cache else spec.model.revision)
    assert (parsed["host"], parsed["port"]) == ("0.0.0.0", 8000)


def test_every_option_is_what_the_spec_says(name: str, parsed: dict[str, Any]) -> None:
    engine = SERVINGS[name].spec.engine
    assert parsed["max_num_seqs"] == engine.max_num_seqs
    assert parsed["shutdown_timeout"] == engine.shutdown_timeout_seconds
    assert parsed["tensor_parallel_size"] == engine.tensor_parallel_size
    assert parsed["pipeline_parallel_size"] == engine.pipeline_parallel_size
    assert parsed["max_num_batched_tokens"] == engine.max_num_batched_tokens
    assert parsed["max_model_len"] == engine.max_model_len
    assert parsed["quantization"] == engine.quantization
    assert parsed["kv_cache_dtype"] == (engine.kv_cache_dtype or "auto")
    assert bool(parsed["enable_lora"]) is (engine.lora is not None)
    if engine.lora:
        ranks = (parsed["max_loras"], parsed["max_lora_rank"], parsed["max_cpu_loras"])
        assert ranks == (engine.lora.max_loras, engine.lora.max_lora_rank, engine.lora.max_cpu_loras)
    if engine.cudagraph_mode:
        assert engine.cudagraph_mode.value in repr(parsed["compilation_config"])


def test_a_plain_pods_command_line_is_read_too(answer: dict[str, Any]) -> None:
    plain = answer["parsed"][len(SERVINGS) + len(ABBREVIATIONS)]
    assert "error" not in plain, plain
    assert plain["speculative_config"] is None


def test_the_speculative_config_has_only_fields_that_vllm_has(
    name: str, parsed: dict[str, Any], answer: dict[str, Any]
) -> None:
    given = SERVINGS[name]
    assert parsed["speculative_config"] == argv.speculative_config(given, table_of(given))
    assert parsed["speculative_config"].keys() <= set(answer["speculative_fields"])


def test_the_engine_expands_the_schedule_to_the_table_we_meant(name: str, answer: dict[str, Any]) -> None:
    given = SERVINGS[name]
    lookup = answer["lookups"][list(SERVINGS).index(name)]
    if without_schedule(given.spec):
        assert lookup is None
    else:
        assert lookup[1:] == list(table_of(given)[1:])


def test_the_pods_of_a_group_are_told_of_each_other(answer: dict[str, Any]) -> None:
    leader, worker = answer["parsed"][-2:]
    for rank, each in enumerate((leader, worker)):
        assert "error" not in each, each["error"]
        assert (each["nnodes"], each["node_rank"], each["tensor_parallel_size"]) == (2, rank, 16)
        assert each["master_addr"] == "demo-group-0.demo-group.team-a"
    assert (leader["headless"], worker["headless"]) == (False, True)
    assert leader["speculative_config"] == worker["speculative_config"]


def test_what_we_own_is_what_vllm_has(answer: dict[str, Any]) -> None:
    assert set(OWNED) | set(SHORT) <= set(answer["options"])


def test_no_free_option_is_taken_for_an_abbreviation_of_an_owned_one(answer: dict[str, Any]) -> None:
    """Nor does vLLM have another spelling of an owned option that we do not know."""
    negated = {option for option in answer["options"] if option.replace("--no-", "--") in OWNED}
    owned = {option for option in answer["options"] if owner_of(option)}
    assert owned == (set(OWNED) | set(SHORT)) & set(answer["options"]) | negated


def test_abbreviations_that_vllm_takes_are_those_we_refuse(answer: dict[str, Any]) -> None:
    taken = answer["parsed"][len(SERVINGS) : len(SERVINGS) + len(ABBREVIATIONS)]
    assert [(taken[0]["max_num_seqs"], taken[1]["max_model_len"], taken[2]["tensor_parallel_size"])] == [(3, 9, 2)]
    for command in ABBREVIATIONS:
        assert owner_of(command[3]) is not None


def test_the_values_of_the_matrix_are_vllms(answer: dict[str, Any]) -> None:
    version = ".".join(answer["version"].split(".")[:2])
    for field, option in matrix.load().options.items():
        assert set(option.known(version)) == set(answer["values"][field])
    ranks = get_args(Lora.model_fields["max_lora_rank"].annotation)
    assert list(ranks) == answer["values"]["engine.lora.maxLoraRank"]


def test_keys_and_arguments_that_rules_name_are_vllms(answer: dict[str, Any]) -> None:
    fields, options = set(answer["speculative_fields"]), set(answer["options"])
    assert set(OWNED_CONFIG) <= fields
    assert set(ARGUMENTS) <= options
    version = ".".join(answer["version"].split(".")[:2])
    for rule in matrix.load().rules:
        keys = {key.partition("=")[0] for key in rule.when.config}
        if rule.id == "config-since-0.33" and version == "0.32":
            assert keys & fields == {"rejection_sample_method"}
        elif version in (rule.versions or matrix.load().versions):
            assert keys <= fields
            assert set(rule.when.arguments) <= options
