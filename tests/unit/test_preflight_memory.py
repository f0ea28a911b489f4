"""The memory budget against what vLLM 0.33 took on an H200, and its rules."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.preflight import config, memory, room, weights
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.check import Level
from paceline_engine.preflight.headers import Tensor
from paceline_engine.preflight.model import Model
from paceline_operator.resources.capture import capture_sizes
from tests.harness.model_files import DATA, facts

MEASURED = json.loads((DATA / "h200.json").read_text())
GIB = 2**30


def engine(row: dict[str, Any]) -> tuple[Asked, Model, Model | None]:
    shape = {**MEASURED["shape"], "architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    target = Model("target", "/target", config.of(shape))
    layers, ladder = row["draftLayers"], row["ladder"]
    draft = Model("draft", "/draft", config.of({**shape, "num_hidden_layers": layers})) if layers else None
    asked = Asked(
        target=Source(source="/target"),
        draft=Source(source="/draft") if draft else None,
        method="eagle" if draft else "",
        max_tokens=max(ladder),
        ladder=ladder,
        capture_sizes=list(capture_sizes(ladder, MEASURED["maxNumSeqs"])),
        max_model_len=MEASURED["maxModelLen"],
        max_num_seqs=MEASURED["maxNumSeqs"],
        max_num_batched_tokens=MEASURED["maxNumBatchedTokens"],
    )
    return asked, target, draft


def budget_of(row: dict[str, Any]) -> memory.Budget:
    asked, target, draft = engine(row)
    found = memory.budget(asked, target, draft)
    assert found is not None
    return found


@pytest.mark.parametrize("row", MEASURED["engines"], ids=lambda row: row["name"])
def test_weights_and_kv_cache_are_within_5_percent_of_what_an_h200_had(row: dict[str, Any]) -> None:
    budget = budget_of(row)
    held = (budget.weights or 0) + (budget.draft_weights or 0)
    assert held / GIB == pytest.approx(row["weightsGib"], rel=0.05)
    tokens = budget.blocks(int(row["kvGib"] * GIB)) * budget.block_size
    assert tokens == pytest.approx(row["kvTokens"], rel=0.05)


@pytest.mark.parametrize("row", MEASURED["engines"][1:], ids=lambda row: row["name"])
def test_as_many_graphs_are_counted_as_vllm_captured(row: dict[str, Any]) -> None:
    asked, _, _ = engine(row)
    assert len(asked.capture_sizes) == row["piecewiseGraphs"]
    assert memory.full_graphs(asked) == row["fullGraphs"]


def test_the_estimate_for_graphs_is_between_what_two_engines_of_one_kind_took() -> None:
    """It is stated, not held: others booted on the GPU meanwhile."""
    one, other = (row["graphsGib"] for row in MEASURED["engines"][1:])
    assert one < budget_of(MEASURED["engines"][1]).graphs / GIB < other


@pytest.mark.parametrize("row", MEASURED["alone"]["engines"], ids=lambda row: row["name"])
def test_what_is_left_for_the_kv_cache_is_within_5_percent_of_what_vllm_left(row: dict[str, Any]) -> None:
    """From nothing but configurations and the GPU's size: weights, graphs and activations taken off."""
    budget, alone = budget_of(row), MEASURED["alone"]
    left = alone["gpuBytes"] * alone["utilizationPercent"] // 100 - budget.fixed
    assert left / GIB == pytest.approx(row["kvGib"], rel=0.05)
    assert budget.blocks(left) * budget.block_size == pytest.approx(row["kvTokens"], rel=0.05)
    assert ((budget.weights or 0) + (budget.draft_weights or 0)) / GIB == pytest.approx(row["weightsGib"], rel=0.05)
    assert row["graphsAsideGib"] < budget.graphs / GIB < 1.4 * row["graphsAsideGib"], "stated, and rather too much"


def test_key_value_heads_are_not_divided_among_more_gpus_than_there_are() -> None:
    settings = config.of(facts("qwen3-235b-a22b"))
    asked = Asked(target=Source(source="/x"))
    each = [memory.kv_cache(settings, settings.layers, asked, ranks) for ranks in (1, 2, 4, 8)]
    assert [one.per_token for one in each if one] == [2 * 94 * 128 * 2 * heads for heads in (4, 2, 1, 1)]


def test_latent_attention_keeps_one_vector_a_token_and_divides_it_among_nobody() -> None:
    """576 elements a layer: arXiv:2405.04434, table 1."""
    settings = config.of(facts("deepseek-v3"))
    found = memory.kv_cache(settings, settings.layers, Asked(target=Source(source="/x")), 8)
    assert found is not None
    assert found.per_token == 61 * 576 * 2


def test_windowed_layers_keep_a_window_and_a_step_of_prefill() -> None:
    settings = config.of(facts("gpt-oss-120b"))
    found = memory.kv_cache(settings, settings.layers, Asked(target=Source(source="/x")), 1)
    assert found is not None
    assert found.per_token == found.windowed_per_token == 18 * 2 * 8 * 64 * 2
    assert found.of(100_000, 8192) == found.per_token * 100_000 + found.windowed_per_token * (127 + 8192)


@pytest.mark.parametrize(
    ("dtype", "times"), [("", 2.0), ("fp8", 1.0), ("fp8_e4m3", 1.0), ("nvfp4", 0.5), ("auto", 2.0)]
)
def test_the_type_of_the_cache_counts(dtype: str, times: float) -> None:
    settings = config.of(facts("llama-3.1-8b"))
    found = memory.kv_cache(settings, 32, Asked(target=Source(source="/x"), kv_cache_dtype=dtype), 1)
    assert found is not None
    assert found.per_token == 2 * 32 * 8 * 128 * times


def test_modules_for_prediction_are_the_drafters_and_not_the_targets() -> None:
    """DeepSeek V3's module has 11.5 thousand million parameters of its own (README_WEIGHTS.md of the model)."""
    target = Model("target", "/x", config.of(facts("deepseek-v3")))
    _, module = weights.of_target(target, target.config)  # type: ignore[arg-type]
    assert sum(one.elements for one in module) / 1e9 == pytest.approx(11.5, rel=0.03)


@pytest.mark.parametrize(
    ("name", "mtp"),
    [
        ("model.layers.61.eh_proj.weight", True),
        ("model.layers.60.mlp.gate.weight", False),
        ("mtp.layers.0.mlp.up_proj.weight", True),
        ("model.mtp_layers.0.input_proj.weight", True),
        ("lm_head.weight", False),
    ],
)
def test_a_module_is_known_by_the_names_of_its_tensors(name: str, mtp: bool) -> None:
    assert weights.is_mtp(name, 61) is mtp


def test_headers_count_as_the_configuration_does() -> None:
    settings = config.of(facts("llama-3.1-8b"))
    asked = Asked(target=Source(source="/x"), tensor_parallel=2)
    counted = weights.on_rank(asked, Model("target", "/x", settings), None)[0]
    parts = {
        "mlp.gate_proj": (14336, 4096),
        "mlp.up_proj": (14336, 4096),
        "mlp.down_proj": (4096, 14336),
        "self_attn.q_proj": (4096, 4096),
        "self_attn.k_proj": (1024, 4096),
        "self_attn.v_proj": (1024, 4096),
        "self_attn.o_proj": (4096, 4096),
        "input_layernorm": (4096,),
    }
    layers = (
        Tensor(f"model.layers.{n}.{part}.weight", "BF16", shape) for n in range(32) for part, shape in parts.items()
    )
    ends = (Tensor(f"{name}.weight", "BF16", (128256, 4096)) for name in ("model.embed_tokens", "lm_head"))
    whole = (*ends, *layers)
    read = weights.on_rank(asked, Model("target", "/x", settings, tensors=whole), None)[0]
    assert counted is not None
    assert read == pytest.approx(counted, rel=0.001)


SIZES = st.integers(1, 2**20)


@given(
    heads=st.sampled_from([1, 2, 4, 8, 64]), kv=st.sampled_from([1, 2, 8]), head=st.sampled_from([64, 128]),
    layers=st.integers(1, 200), hidden=SIZES, inner=SIZES, vocabulary=SIZES, ranks=st.sampled_from([1, 2, 4, 8]),
    gpu=st.integers(1, 2**38), length=st.integers(1, 2**21), percent=st.integers(10, 98),
)  # fmt: skip
def test_more_memory_is_never_worse(
    heads: int, kv: int, head: int, layers: int, hidden: int, inner: int, vocabulary: int, ranks: int, gpu: int,
    length: int, percent: int,
) -> None:  # fmt: skip
    settings = config.of(
        {
            "num_attention_heads": heads, "num_key_value_heads": kv, "head_dim": head, "num_hidden_layers": layers,
            "hidden_size": hidden, "intermediate_size": inner, "vocab_size": vocabulary,
        }
    )  # fmt: skip
    asked = Asked(
        target=Source(source="/x"), tensor_parallel=ranks, max_model_len=length, memory_utilization_percent=percent
    )
    budget = memory.budget(asked, Model("target", "/x", settings), None)
    levels = [next(iter(room.checks(asked, budget, size))).level for size in (gpu, 2 * gpu, 64 * gpu)]
    worst = {Level.PASS: 0, Level.WARN: 1, Level.FAIL: 2}
    assert [worst[one] for one in levels] == sorted((worst[one] for one in levels), reverse=True)
