"""A model's config.json: what preflight looks at, under one name for each fact. Every number is doubted.

Names of fields are those of transformers; where models differ, the spelling that vLLM reads
(vllm/transformers_utils/model_arch_config_convertor.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_engine.preflight.headers import MalformedError

MAX_BYTES = 8 * 2**20
MAX_NUMBER = 2**40
NESTED = ("text_config", "llm_config", "language_config", "transformer_layer_config")
"""Where models of several kinds of input, and drafts of vllm-project/speculators, keep the text model."""


@dataclass(frozen=True)
class Rope:
    """How positions are stretched. Transformers' rope_scaling or rope_parameters."""

    type: str = "default"
    factor: float = 1.0


@dataclass(frozen=True)
class Quantization:
    """Of a checkpoint. Method by vLLM's name, bits of a weight (0: not said)."""

    method: str = ""
    bits: int = 0


@dataclass(frozen=True)
class Config:
    """One model. 0 or empty: not said. Sizes are elements, positions tokens."""

    type: str
    architectures: tuple[str, ...]
    vocabulary: int
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head: int
    """Elements of one attention head."""
    positions: int
    dtype: str
    tied: bool
    """One matrix for input embedding and output layer."""
    experts: int
    expert_inner: int
    shared_experts: int
    dense_layers: int
    """First layers without experts."""
    kv_rank: int
    """Of multi-head latent attention (MLA): elements of the compressed key and value."""
    rope_head: int
    nope_head: int
    value_head: int
    q_rank: int
    window: int
    layer_types: tuple[str, ...]
    mtp_layers: int
    block: int
    """Tokens that a block drafter was trained for."""
    draft_vocabulary: int
    target_hidden: int
    target_layers: int
    auxiliary_layers: tuple[int, ...]
    """Layers of the target whose hidden states an EAGLE-3 head reads."""
    verifier: str
    """The target that a draft names."""
    rope: Rope
    quantization: Quantization

    @property
    def architecture(self) -> str:
        """The first."""
        return self.architectures[0] if self.architectures else ""

    @property
    def longest(self) -> int:
        """Tokens of the longest context, as vLLM derives it (config/model.py: _get_and_verify_max_len); 0: not said."""
        scaled = ("su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
        factor = 1.0 if self.rope.type in scaled or "gemma3" in self.type else self.rope.factor
        return int(self.positions * factor)


def parse(text: bytes) -> Config:
    """Of config.json. Raises MalformedError."""
    if len(text) > MAX_BYTES:
        raise MalformedError(f"config.json has {len(text)} bytes: it is none")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"config.json is no JSON: {error}"[:200]) from None
    if not isinstance(found, dict):
        raise MalformedError("config.json is no map")
    return of(found)


def of(whole: Mapping[str, Any]) -> Config:
    """Of config.json as a map."""
    text: Mapping[str, Any] = next((whole[name] for name in NESTED if isinstance(whole.get(name), Mapping)), {})
    read = _Reader((text, whole))
    heads, hidden = read.number("num_attention_heads", "n_head"), read.number("hidden_size", "n_embd", "d_model")
    experts = read.number("num_experts", "n_routed_experts", "num_local_experts")
    verifier = _map(_map(whole.get("speculators_config")).get("verifier")).get("name_or_path")
    auxiliary = whole.get("eagle_aux_hidden_state_layer_ids") or _map(whole.get("eagle_config")).get(
        "eagle_aux_hidden_state_layer_ids"
    )
    return Config(
        type=_text(whole.get("model_type")) or read.text("model_type"),
        architectures=_texts(whole.get("architectures")),
        vocabulary=read.number("vocab_size"),
        hidden=hidden,
        inner=read.number("intermediate_size", "ffn_hidden_size", "n_inner"),
        layers=read.number("num_hidden_layers", "n_layer", "num_layers"),
        heads=heads,
        kv_heads=read.number("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num") or heads,
        head=read.number("head_dim", "hidden_size_per_head") or (hidden // heads if heads else 0),
        positions=read.number("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
        dtype=read.text("dtype", "torch_dtype").removeprefix("torch."),
        tied=read.flag("tie_word_embeddings"),
        experts=experts,
        expert_inner=read.number("moe_intermediate_size") or (read.number("intermediate_size") if experts else 0),
        shared_experts=read.number("n_shared_experts", "num_shared_experts"),
        dense_layers=read.number("first_k_dense_replace"),
        kv_rank=read.number("kv_lora_rank"),
        rope_head=read.number("qk_rope_head_dim"),
        nope_head=read.number("qk_nope_head_dim"),
        value_head=read.number("v_head_dim"),
        q_rank=read.number("q_lora_rank"),
        window=read.number("sliding_window") if read.first("use_sliding_window") is not False else 0,
        layer_types=_texts(read.first("layer_types")),
        mtp_layers=read.number("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules"),
        block=read.number("block_size", "dspark_block_size"),
        draft_vocabulary=read.number("draft_vocab_size"),
        target_hidden=read.number("target_hidden_size"),
        target_layers=read.number("num_target_layers"),
        auxiliary_layers=_numbers(auxiliary),
        verifier=_text(verifier),
        rope=_rope(read),
        quantization=_quantization(whole, text),
    )


class _Reader:
    """The first of several maps and names that has a sensible value."""

    def __init__(self, maps: tuple[Mapping[str, Any], ...]) -> None:
        self.maps = maps

    def first(self, *names: str) -> Any:
        return next((one[name] for one in self.maps for name in names if one.get(name) is not None), None)

    def number(self, *names: str) -> int:
        values = (one.get(name) for one in self.maps for name in names)
        return next((value for value in values if type(value) is int and 0 <= value < MAX_NUMBER), 0)

    def text(self, *names: str) -> str:
        return next((value for one in self.maps for name in names if (value := _text(one.get(name)))), "")

    def flag(self, name: str) -> bool:
        return next((one[name] for one in self.maps if isinstance(one.get(name), bool)), False)


def _rope(read: _Reader) -> Rope:
    given = _map(read.first("rope_parameters") or read.first("rope_scaling"))
    # Layers of two kinds have a map for each.
    inner = next((one for one in given.values() if isinstance(one, Mapping)), given)
    factor = inner.get("factor")
    fits = isinstance(factor, int | float) and not isinstance(factor, bool) and 0 < factor < MAX_NUMBER
    kind = _text(inner.get("rope_type")) or _text(inner.get("type")) or "default"
    return Rope(kind, float(factor) if fits and factor is not None else 1.0)


def _quantization(whole: Mapping[str, Any], text: Mapping[str, Any]) -> Quantization:
    given = _map(whole.get("quantization_config") or whole.get("compression_config") or text.get("quantization_config"))
    method = _text(given.get("quant_method")).lower().replace("compressed_tensors", "compressed-tensors")
    if _map(given.get("producer")).get("name") == "modelopt" or method == "modelopt":
        algorithm = _text(given.get("quant_algo") or _map(given.get("quantization")).get("quant_algo")).upper()
        method = {"NVFP4": "modelopt_fp4", "MIXED_PRECISION": "modelopt_mixed"}.get(algorithm, method or "modelopt")
    bits = given.get("bits")
    for group in _map(given.get("config_groups")).values():
        bits = bits or _map(_map(group).get("weights")).get("num_bits")
    by_method = {"fp8": 8, "modelopt": 8, "modelopt_fp4": 4, "mxfp4": 4, "awq": 4, "gptq": 4, "fbgemm_fp8": 8}
    said = bits if type(bits) is int and 1 <= bits <= 16 else by_method.get(method, 0)
    return Quantization(method, said) if method else Quantization()


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value[:256] if isinstance(value, str) else ""


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(_text(one) for one in value[:1024] if isinstance(one, str)) if isinstance(value, list) else ()


def _numbers(value: Any) -> tuple[int, ...]:
    fits = isinstance(value, list) and all(type(one) is int and -MAX_NUMBER < one < MAX_NUMBER for one in value)
    return tuple(value[:64]) if fits else ()
