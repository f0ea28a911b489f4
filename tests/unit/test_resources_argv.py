"""The vLLM command line: one element for each text, JSON that survives, a schedule without gaps."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight.arguments import OWNED
from paceline_operator.resources import argv
from paceline_operator.tuning.prior import boot_table
from tests.servings import serving, table_of

NASTY = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40) | st.sampled_from(
    ["a b", "'", '"', "$(id)", "`id`", "; rm -rf /", "\\", "{}", "a\nb", "$HOME", "--x", "*"]
)


def command(given: SpeculativeServing) -> list[str]:
    return argv.build(given, table_of(given))


def value_of(command: list[str], option: str) -> str:
    assert command.count(option) == 1
    return command[command.index(option) + 1]


def speculative_config(given: SpeculativeServing) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(value_of(command(given), "--speculative-config"))
    return config


@given(NASTY, NASTY, st.lists(NASTY, max_size=4))
def test_each_text_of_the_user_is_exactly_one_element(name: str, revision: str, extra: list[str]) -> None:
    plain = command(serving(model={"servedName": "n", "revision": "r"}))
    nasty = command(serving(model={"servedName": name, "revision": revision}, engine={"extraArgs": extra}))
    assert len(nasty) == len(plain) + len(extra)
    assert value_of(nasty[: len(plain)], "--served-model-name") == name
    assert nasty[plain.index("--revision") + 1] == revision
    assert nasty[len(plain) :] == extra
    assert nasty[0] == "vllm"


@given(
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=40).filter(lambda text: not any(map(str.isspace, text)))
)
def test_the_speculative_config_is_one_element_of_json(path: str) -> None:
    config = speculative_config(serving(speculation={"draft": {"source": f"/{path}"}}))
    assert config["model"] == f"/{path}"


@given(st.data())
def test_the_schedule_covers_every_batch_size_once_and_names_the_whole_ladder(data: st.DataObject) -> None:
    max_num_seqs = data.draw(st.integers(1, 600))
    ladder = data.draw(st.sets(st.integers(0, 32), min_size=1, max_size=min(16, max_num_seqs)))
    table = boot_table(tuple(sorted(ladder, reverse=True)), max_num_seqs)
    rows = argv.schedule_rows(table)
    assert [n for start, end, _ in rows for n in range(start, end + 1)] == list(range(1, max_num_seqs + 1))
    assert [k for start, end, k in rows for _ in range(start, end + 1)] == list(table[1:])
    assert {k for _, _, k in rows} == ladder


@given(st.lists(st.integers(0, 8), min_size=2, max_size=40))
def test_rows_of_any_table_expand_to_it(table: list[int]) -> None:
    rows = argv.schedule_rows(table)
    assert [k for start, end, k in rows for _ in range(start, end + 1)] == table[1:]
    assert all(a[2] != b[2] for a, b in pairwise(rows))


V1 = {"env": [{"name": "VLLM_USE_V2_MODEL_RUNNER", "value": "0"}]}


@pytest.mark.parametrize(
    ("method", "engine"), [("suffix", {}), ("ngram_gpu", V1), ("ngram", V1)], ids=["suffix", "ngram_gpu", "V1"]
)
def test_without_a_schedule_graphs_are_for_the_one_k(method: str, engine: dict[str, Any]) -> None:
    given = serving(speculation={"method": method, "draft": None, "maxTokens": 4}, engine=engine)
    assert "num_speculative_tokens_per_batch_size" not in speculative_config(given)
    compilation = json.loads(value_of(command(given), "--compilation-config"))
    assert all(size % 5 == 0 for size in compilation["cudagraph_capture_sizes"])


def test_adaptive_verification_is_named_only_where_it_is_enabled() -> None:
    for mode in ("Auto", "Disabled"):
        config = speculative_config(serving(speculation={"adaptiveVerification": mode}))
        assert "enable_adaptive_verification" not in config
    enabled = speculative_config(serving(speculation={"adaptiveVerification": "Enabled"}))
    assert enabled["enable_adaptive_verification"] is True


@pytest.mark.parametrize(
    ("source", "argument"),
    [
        ("hf://Qwen/Qwen3-8B", "Qwen/Qwen3-8B"),
        ("s3://bucket/models/qwen", "s3://bucket/models/qwen"),
        ("/models/qwen", "/models/qwen"),
        ("pvc://weights/qwen/8b", "/mnt/paceline/model/qwen/8b"),
        ("pvc://weights/", "/mnt/paceline/model"),
        ("pvc://weights//etc", "/mnt/paceline/model/etc"),
        ("oci://registry.example/qwen:8b", "/mnt/paceline/model"),
    ],
)
def test_the_model_is_named_as_vllm_finds_it(source: str, argument: str) -> None:
    assert command(serving(model={"source": source}))[:3] == ["vllm", "serve", argument]


def test_cpu_engines_run_eagerly_in_float32_without_gpu_options() -> None:
    line = command(serving(speculation={"method": "ngram", "draft": None}, engine={"device": "CPU"}))
    assert "--enforce-eager" in line
    assert value_of(line, "--dtype") == "float32"
    for option in ("--compilation-config", "--gpu-memory-utilization", "--tensor-parallel-size"):
        assert option not in line


def test_eager_engines_capture_nothing() -> None:
    assert "--compilation-config" not in command(serving(engine={"enforceEager": True}))


@pytest.mark.parametrize(
    "spec",
    [
        {"model": {"revision": "r", "servedName": "n"}, "engine": {"maxModelLen": 4096, "enforceEager": True}},
        {"engine": {"enablePrefixCaching": True, "dtype": "bfloat16", "tensorParallelSize": 8}},
        {"engine": {"enablePrefixCaching": False}},
        {"engine": {"device": "CPU"}},
    ],
)
def test_every_option_we_write_is_one_that_we_own(spec: dict[str, Any]) -> None:
    written = {element.replace("--no-", "--") for element in command(serving(**spec)) if element.startswith("--")}
    assert written <= set(OWNED)


@pytest.mark.parametrize(
    ("engine", "tuning"),
    [
        ({}, {}),
        ({**V1, "cudagraphMode": "PIECEWISE"}, {}),
        ({**V1, "enforceEager": True}, {}),
        (V1, {"ladder": [4, 0]}),
        ({"device": "CPU"}, {}),
    ],
)
def test_a_schedule_is_given_where_it_costs_nothing_or_is_asked_for(
    engine: dict[str, Any], tuning: dict[str, Any]
) -> None:
    given = serving(speculation={"method": "ngram", "draft": None, "maxTokens": 4}, engine=engine, tuning=tuning)
    rows = speculative_config(given)["num_speculative_tokens_per_batch_size"]
    assert {k for _, _, k in rows} >= {4, 0}


def test_each_option_of_the_engine_is_vllms() -> None:
    engine = {
        "maxNumBatchedTokens": 8192,
        "quantization": "compressed-tensors",
        "kvCacheDtype": "fp8",
        "lora": {"maxLoras": 4, "maxLoraRank": 64, "maxCpuLoras": 16},
        "cudagraphMode": "FULL_DECODE_ONLY",
    }
    made = command(serving(engine=engine))
    assert value_of(made, "--max-num-batched-tokens") == "8192"
    assert value_of(made, "--quantization") == "compressed-tensors"
    assert value_of(made, "--kv-cache-dtype") == "fp8"
    assert made.count("--enable-lora") == 1
    assert [value_of(made, f"--max-{name}") for name in ("loras", "lora-rank", "cpu-loras")] == ["4", "64", "16"]
    assert json.loads(value_of(made, "--compilation-config"))["cudagraph_mode"] == "FULL_DECODE_ONLY"


def test_without_graphs_no_sizes_are_asked_for() -> None:
    made = command(serving(engine={"cudagraphMode": "NONE"}))
    assert json.loads(value_of(made, "--compilation-config")) == {"cudagraph_mode": "NONE"}


def test_each_option_of_the_draft_is_vllms() -> None:
    draft = {"source": "hf://a/b", "revision": "v2", "tensorParallelSize": 1, "quantization": "fp8"}
    config = speculative_config(serving(speculation={"draft": draft, "draftSampleMethod": "probabilistic"}))
    assert config["model"] == "a/b"
    assert (config["revision"], config["draft_tensor_parallel_size"], config["quantization"]) == ("v2", 1, "fp8")
    assert config["draft_sample_method"] == "probabilistic"


def test_options_of_the_suffix_method_are_named_only_where_they_are_given() -> None:
    plain = speculative_config(serving(speculation={"method": "suffix", "draft": None}))
    assert plain == {"method": "suffix", "num_speculative_tokens": 5}
    given = speculative_config(serving(speculation={"method": "suffix", "draft": None, "suffix": {}}))
    assert given == plain | {
        "suffix_decoding_max_tree_depth": 24,
        "suffix_decoding_max_cached_requests": 10_000,
        "suffix_decoding_max_spec_factor": 1.0,
        "suffix_decoding_min_token_prob": 0.1,
    }


def test_more_keys_join_the_speculative_config() -> None:
    extra = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [0.8, 0.5, 0.2, 0.1, 0.1]}
    assert speculative_config(serving(speculation={"extraConfig": extra})).items() >= extra.items()


@pytest.mark.parametrize("engine", [{}, {"cudagraphMode": "FULL"}, {"enforceEager": True}, {"device": "CPU"}])
def test_without_a_drafter_the_engine_is_the_same_but_for_speculation(engine: dict[str, Any]) -> None:
    given = serving(engine={"maxNumSeqs": 4, **engine})
    speculative, plain = command(given), argv.build(given, table_of(given), drafter=False)
    at = speculative.index("--speculative-config")
    assert plain[:at] == speculative[:at]
    assert plain[at:] == [] or json.loads(plain[at + 1])["cudagraph_capture_sizes"] == [1, 2, 3, 4]
