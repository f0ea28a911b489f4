"""How many bytes of weights one GPU holds, of target and draft, as vLLM loads and divides them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from math import prod

from paceline_engine.preflight import layout
from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.config import Config
from paceline_engine.preflight.headers import BITS, Tensor
from paceline_engine.preflight.model import Model

HEADS = ("eagle", "eagle3", "dflash", "dspark")
"""Methods whose draft is a head on the target: it reads the target's hidden states and shares its embedding."""
REPLICATED = ("router", ".gate.weight", "q_a_proj", "kv_a_proj", "fc.weight", "eh_proj")
"""Parts of names of matrices that each tensor-parallel rank has whole."""
UNQUANTIZED = ("embed_tokens", "lm_head", *REPLICATED, "norm")
"""Of those that stay as they are where vLLM quantizes as it loads."""
ONLINE_8_BITS = ("fp8", "fp8_per_tensor", "fp8_per_block", "fp8_per_channel", "int8_per_channel_weight_only", "mxfp8")


def on_rank(asked: Asked, target: Model, draft: Model | None) -> tuple[int | None, int | None]:
    """(target, draft) on one tensor-parallel rank, all stages together; None: not known, 0: there is none."""
    config = target.config
    if config is None:
        return None, None
    own, mtp = of_target(target, config)
    parallel, quantization = asked.tensor_parallel, asked.target.quantization
    whole = _bytes(own, asked, config, parallel, quantization)
    if asked.method == "mtp":
        return whole, _bytes(mtp, asked, config, parallel, quantization)
    if draft is None:
        return whole, 0
    if draft.config is None:
        return whole, None
    of_draft = _of_draft(draft, draft.config, asked.method, config)
    own_quantization = asked.draft.quantization if asked.draft else ""
    of_rank = _bytes(of_draft, asked, draft.config, asked.draft_tensor_parallel or parallel, own_quantization)
    return whole, of_rank


def of_target(target: Model, config: Config) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """(the target's own tensors, those of its MTP modules)."""
    if not target.tensors:
        return layout.tensors(config), layout.of_mtp(config)
    mtp = {one.name for one in target.tensors if is_mtp(one.name, config.layers)}
    return (
        tuple(one for one in target.tensors if one.name not in mtp),
        tuple(one for one in target.tensors if one.name in mtp and not layout.shared(one.name)),
    )


def _of_draft(draft: Model, config: Config, method: str, target: Config) -> tuple[Tensor, ...]:
    head = method in HEADS
    if not draft.tensors:
        return layout.tensors(config, head_of=method if head else "", target_hidden=target.hidden if head else 0)
    return tuple(one for one in draft.tensors if not (head and "embed_tokens" in one.name))


def is_mtp(name: str, layers: int) -> bool:
    """A tensor of a module for multi-token prediction, by how checkpoints name them."""
    if "mtp" in name.lower() or "nextn" in name:
        return True
    steps = pairwise(name.split("."))
    return any(before == "layers" and step.isdigit() and int(step) >= layers for before, step in steps)


def _bytes(found: Iterable[Tensor], asked: Asked, config: Config, parallel: int, quantization: str) -> int | None:
    tensors = tuple(found)
    online = quantization in ONLINE_8_BITS and not config.quantization.method
    bits = sum(
        one.elements * _bits(one, asked, config, online=online) * _share(one, config, parallel) for one in tensors
    )
    return round(bits / 8) if tensors else None


def _bits(tensor: Tensor, asked: Asked, config: Config, *, online: bool) -> int:
    if tensor.dtype not in ("F16", "BF16", "F32"):
        return BITS[tensor.dtype]
    if online and len(tensor.shape) > 1 and not any(word in tensor.name for word in UNQUANTIZED):
        return 8
    # Scales of a quantized checkpoint stay in 32 bits; of all else `auto` makes 16.
    if tensor.dtype == "F32" and config.quantization.method:
        return 32
    return 32 if asked.dtype == "float32" else 16


def _share(tensor: Tensor, config: Config, parallel: int) -> float:
    """Of one rank."""
    if len(tensor.shape) < 2 or not prod(tensor.shape) or any(word in tensor.name for word in REPLICATED):
        return 1.0
    if config.kv_heads and ("k_proj" in tensor.name or "v_proj" in tensor.name):
        return max(1 / parallel, 1 / config.kv_heads)
    return 1 / parallel
