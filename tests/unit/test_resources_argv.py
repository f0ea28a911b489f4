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


@pytest.mark.parametrize("method", ["suffix", "ngram_gpu"])
def test_a_method_that_asserts_its_k_boots_without_a_schedule(method: str) -> None:
    given = serving(speculation={"method": method, "draft": None, "maxTokens": 4})
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
