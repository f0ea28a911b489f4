"""The command lines that we render, as vLLM's own parser reads them. Nothing is started and no GPU is needed."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight.arguments import OWNED, SHORT, owner_of
from paceline_operator.resources import argv, leaderworkerset, pod
from paceline_operator.resources.substitution import expand
from tests.servings import DEFAULTS, TOKENS, serving, table_of

pytestmark = pytest.mark.engine

ENGINE_PYTHON = Path(__file__).resolve().parents[2] / ".venv" / "engine" / "bin" / "python"
TIMEOUT_SECONDS = 300
AWKWARD = 'it\'s "one" {name} with = and\nlines, $(id) `id` \\ --port'

SERVINGS: dict[str, SpeculativeServing] = {
    "minimal": serving(speculation={"method": "ngram", "draft": None}),
    "eagle3": serving(model={"revision": "v1.0", "servedName": AWKWARD}, speculation={"draft": {"source": "/d.e/f"}}),
    "dotted": serving(model={"source": "/models/v1.5/x=y", "servedName": "a.b=c.d"}),
    "everything": serving(
        speculation={"maxTokens": 7, "adaptiveVerification": "Enabled"},
        engine={
            "tensorParallelSize": 4,
            "maxModelLen": 32768,
            "maxNumSeqs": 512,
            "dtype": "bfloat16",
            "enablePrefixCaching": False,
            "extraArgs": ["--max-num-batched-tokens", "16384", "--kv-cache-dtype=fp8"],
        },
    ),
    "eager": serving(engine={"enforceEager": True, "enablePrefixCaching": True, "pipelineParallelSize": 2}),
    "suffix": serving(speculation={"method": "suffix", "draft": None, "maxTokens": 8}),
    "mtp": serving(speculation={"method": "mtp", "draft": None, "maxTokens": 1}, engine={"maxNumSeqs": 2}),
    "cpu": serving(speculation={"method": "ngram", "draft": None}, engine={"device": "CPU", "maxNumSeqs": 32}),
    "ladder": serving(tuning={"ladder": [5, 4, 3, 2, 1, 0]}, engine={"maxNumSeqs": 6}),
}
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
    result = subprocess.run(
        [ENGINE_PYTHON, Path(__file__).with_name("parse_command_lines.py")],
        input=json.dumps({"commands": [*commands, *ABBREVIATIONS, *group()]}),
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
    spec = SERVINGS[name].spec
    assert parsed["model_tag"] == (spec.model.source.removeprefix("hf://"))
    assert parsed["served_model_name"] == [spec.model.served_name or "demo"]
    assert parsed["revision"] == spec.model.revision
    assert (parsed["host"], parsed["port"]) == ("0.0.0.0", 8000)
    assert parsed["max_num_seqs"] == spec.engine.max_num_seqs
    assert parsed["shutdown_timeout"] == spec.engine.shutdown_timeout_seconds
    assert parsed["tensor_parallel_size"] == spec.engine.tensor_parallel_size
    assert parsed["pipeline_parallel_size"] == spec.engine.pipeline_parallel_size


def test_the_speculative_config_has_only_fields_that_vllm_has(
    name: str, parsed: dict[str, Any], answer: dict[str, Any]
) -> None:
    given = SERVINGS[name]
    assert parsed["speculative_config"] == argv.speculative_config(given, table_of(given))
    assert parsed["speculative_config"].keys() <= set(answer["speculative_fields"])


def test_the_engine_expands_the_schedule_to_the_table_we_meant(name: str, answer: dict[str, Any]) -> None:
    given = SERVINGS[name]
    lookup = answer["lookups"][list(SERVINGS).index(name)]
    if given.spec.speculation.method == "suffix":
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
    taken = answer["parsed"][len(SERVINGS) :]
    assert [(taken[0]["max_num_seqs"], taken[1]["max_model_len"], taken[2]["tensor_parallel_size"])] == [(3, 9, 2)]
    for command in ABBREVIATIONS:
        assert owner_of(command[3]) is not None
