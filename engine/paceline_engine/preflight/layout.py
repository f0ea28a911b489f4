"""Which tensors a model of a configuration has: for checkpoints whose headers were not read, and for dummy weights.

Of decoders with gated feed-forward layers (Llama, Qwen, Mistral, Mixtral, gpt-oss) and with multi-head latent attention
(DeepSeek). Norms and biases are left out: less than a thousandth.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from paceline_engine.preflight.config import Config
from paceline_engine.preflight.headers import Tensor


def tensors(config: Config, *, head_of: str = "", target_hidden: int = 0) -> tuple[Tensor, ...]:
    """Of a model; `head_of`: of a draft head of the method eagle, eagle3, dflash or dspark. Empty where the shape is
    none that is known here.

    Types are F16 for every 16-bit type, U8 and F4 for quantized matrices.
    """
    if not (config.hidden and config.heads and config.vocabulary and (config.inner or config.expert_inner)):
        return ()
    if any("attention" not in kind or "linear" in kind for kind in config.layer_types) or _hybrid(config):
        return ()
    wide = target_hidden or config.target_hidden or config.hidden
    found = [*_attention(config, head_of), *_feed_forward(config)]
    if head_of:
        found += _head(config, head_of, wide)
    else:
        matrix = (config.vocabulary, config.hidden)
        found += [Tensor("model.embed_tokens.weight", "F16", matrix)]
        found += [] if config.tied else [Tensor("lm_head.weight", "F16", matrix)]
    found = [one for one in found if one.copies]
    return (*found, *_scales([one for one in found if one.dtype == "F4"]))


def of_mtp(config: Config) -> tuple[Tensor, ...]:
    """Of a target's modules for multi-token prediction: each a layer like the last ones, and a matrix that joins
    embedding and hidden state. Embedding and output layer are the target's."""
    layers = max(1, config.mtp_layers)
    whole = tensors(replace(config, layers=layers, dense_layers=0))
    joined = Tensor("eh_proj.weight", "F16", (config.hidden, 2 * config.hidden), layers)
    return (*(one for one in whole if not shared(one.name)), joined) if whole else ()


def shared(name: str) -> bool:
    """A matrix that draft heads have in common with their target."""
    return any(part in name for part in ("embed_tokens", "lm_head", "shared_head.head"))


def _hybrid(config: Config) -> bool:
    return any(word in config.type for word in ("mamba", "nemotron_h", "qwen3_next", "jamba", "kimi_linear"))


def _head(config: Config, method: str, wide: int) -> Iterator[Tensor]:
    """Beyond the layers. Embedding and, but for eagle3, the output layer are the target's."""
    inputs = {"eagle": 2, "eagle3": 3}.get(method, len(config.auxiliary_layers) or config.layers)
    yield Tensor("fc.weight", "F16", (config.hidden, inputs * wide))
    if method == "eagle3":
        yield Tensor("lm_head.weight", "F16", (config.draft_vocabulary or config.vocabulary, config.hidden))


def _attention(config: Config, head_of: str) -> Iterator[Tensor]:
    stored, layers, hidden = _stored(config), config.layers, config.hidden
    if config.kv_rank:
        heads, query = config.heads, config.nope_head + config.rope_head
        if config.q_rank:
            yield Tensor("self_attn.q_a_proj.weight", stored, (config.q_rank, hidden), layers)
        yield Tensor("self_attn.q_b_proj.weight", stored, (heads * query, config.q_rank or hidden), layers)
        yield Tensor("self_attn.kv_a_proj.weight", stored, (config.kv_rank + config.rope_head, hidden), layers)
        both = config.nope_head + config.value_head
        yield Tensor("self_attn.kv_b_proj.weight", stored, (heads * both, config.kv_rank), layers)
        yield Tensor("self_attn.o_proj.weight", stored, (hidden, heads * config.value_head), layers)
        return
    # An EAGLE-3 head's first layer reads the token's embedding beside the hidden state.
    first = 1 if head_of == "eagle3" else 0
    for width, count in ((2 * hidden, first), (hidden, layers - first)):
        yield Tensor("self_attn.q_proj.weight", stored, (config.heads * config.head, width), count)
        yield Tensor("self_attn.k_proj.weight", stored, (config.kv_heads * config.head, width), count)
        yield Tensor("self_attn.v_proj.weight", stored, (config.kv_heads * config.head, width), count)
    yield Tensor("self_attn.o_proj.weight", stored, (hidden, config.heads * config.head), layers)


def _feed_forward(config: Config) -> Iterator[Tensor]:
    experts, hidden = config.experts, config.hidden
    dense = min(config.dense_layers, config.layers) if experts else config.layers
    sparse = config.layers - dense
    stored = _stored(config)
    for part in ("gate", "up", "down"):
        yield Tensor(f"mlp.{part}_proj.weight", stored, (config.inner, hidden), dense)
        yield Tensor(
            f"mlp.experts.{part}_proj.weight",
            _stored(config, experts=True),
            (config.expert_inner, hidden),
            sparse * experts,
        )
        shared = config.expert_inner * config.shared_experts
        yield Tensor(f"mlp.shared_experts.{part}_proj.weight", stored, (shared, hidden), sparse if shared else 0)
    yield Tensor("mlp.router.weight", "F16", (experts, hidden), sparse if experts else 0)


def _stored(config: Config, *, experts: bool = False) -> str:
    """Type of a matrix in the checkpoint. mxfp4 is gpt-oss's, whose experts alone have it."""
    bits = config.quantization.bits
    if config.quantization.method == "mxfp4" and not experts:
        return "F16"
    return "F4" if bits and bits <= 4 else "U8" if bits else "F16"


def _scales(found: list[Tensor]) -> list[Tensor]:
    """Four-bit types have a byte of scale for every 32 elements (mxfp4; of nvfp4 it is 16)."""
    return [Tensor(f"{one.name}_scale", "U8", (*one.shape[:-1], one.shape[-1] // 32), one.copies) for one in found]
