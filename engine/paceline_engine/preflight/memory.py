"""The memory budget of one GPU: weights, both KV caches, graphs, activations, with the arithmetic.

Weights and KV cache are computed as vLLM lays them out, and were within 5 % of what vLLM 0.33 took on an H200; graphs
and activations are estimates (docs/preflight.md has the figures).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from paceline_engine.preflight import weights
from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.config import Config
from paceline_engine.preflight.model import Model

GIB = 2**30
DEFAULT_BATCHED_TOKENS = 8192
"""vLLM's for an API server on GPUs of 70 GiB and more (engine/arg_utils.py: get_batch_defaults)."""
RESERVED_BYTES = 600 * 2**20
"""CUDA context and libraries: what a process holds before the first tensor, an estimate."""
GRAPH_BYTES_PER_LAYER = 420_000
"""Of one graph, an estimate: 0.77 GiB of 58 graphs of 32 layers on an H200, vLLM 0.33 (docs/preflight.md)."""


@dataclass(frozen=True)
class Cache:
    """KV of one model on one rank, bytes."""

    per_token: int
    """In layers that keep all tokens."""
    windowed_per_token: int = 0
    """In layers that keep the last `window` tokens."""
    window: int = 0

    def of(self, tokens: int, batched: int) -> int:
        """Of one request of that length; a prefill chunk of `batched` tokens is held beside the window."""
        kept = min(tokens, self.window - 1 + batched) if self.window else tokens
        return self.per_token * tokens + self.windowed_per_token * kept


@dataclass(frozen=True)
class Budget:
    """Of one GPU, bytes. None: not known."""

    weights: int | None
    draft_weights: int | None
    target_cache: Cache | None
    draft_cache: Cache | None
    graphs: int
    graph_count: int
    activations: int
    block_size: int
    batched: int
    max_model_len: int
    reserved: int = RESERVED_BYTES
    steps: tuple[str, ...] = field(default=())
    """The arithmetic, a line each."""

    @property
    def per_token(self) -> int:
        """KV of target and draft for a token, bytes; windowed layers as if they kept all."""
        caches = [one for one in (self.target_cache, self.draft_cache) if one]
        return sum(one.per_token + one.windowed_per_token for one in caches)

    @property
    def longest_request(self) -> int:
        """KV of one request of max_model_len, in whole blocks, bytes."""
        tokens = -(-self.max_model_len // self.block_size) * self.block_size
        return sum(one.of(tokens, self.batched) for one in (self.target_cache, self.draft_cache) if one)

    @property
    def fixed(self) -> int:
        """All but the KV cache; what is not known counts as nothing."""
        return (self.weights or 0) + (self.draft_weights or 0) + self.graphs + self.activations + self.reserved

    def blocks(self, kv_bytes: int) -> int:
        """Blocks that so much memory holds."""
        return max(0, kv_bytes) // (self.block_size * self.per_token) if self.per_token else 0


def budget(asked: Asked, target: Model, draft: Model | None) -> Budget | None:
    """None where the target's configuration was not read."""
    config = target.config
    if config is None:
        return None
    length = asked.max_model_len or config.longest or 2048
    batched = asked.max_num_batched_tokens or DEFAULT_BATCHED_TOKENS
    own, drafts = weights.on_rank(asked, target, draft)
    drafter = _drafter(asked, config, draft)
    cache = kv_cache(config, config.layers, asked, asked.tensor_parallel)
    per_stage = asked.pipeline_parallel
    graphs, count = _graphs(asked, config, drafter.layers)
    made = Budget(
        weights=None if own is None else own // per_stage,
        draft_weights=drafts,
        target_cache=_per_stage(cache, per_stage),
        draft_cache=drafter.cache,
        graphs=graphs,
        graph_count=count,
        activations=_activations(asked, config, batched),
        block_size=asked.block_size,
        batched=batched,
        max_model_len=length,
    )
    return _explained(made, asked)


@dataclass(frozen=True)
class _Drafter:
    cache: Cache | None = None
    layers: int = 0


def _drafter(asked: Asked, target: Config, draft: Model | None) -> _Drafter:
    if asked.method == "mtp":
        layers = max(1, target.mtp_layers)
        return _Drafter(kv_cache(target, layers, asked, asked.tensor_parallel), layers)
    if draft is None or draft.config is None:
        return _Drafter()
    config, parallel = draft.config, asked.draft_tensor_parallel or asked.tensor_parallel
    return _Drafter(kv_cache(config, config.layers, asked, parallel), config.layers)


def kv_cache(config: Config, layers: int, asked: Asked, parallel: int) -> Cache | None:
    """KV of `layers` layers on one rank; None where the shape is not known."""
    bits = _kv_bits(asked, config)
    if config.kv_rank:
        return Cache(layers * (config.kv_rank + config.rope_head) * bits // 8)
    if not (config.kv_heads and config.head and layers):
        return None
    one = 2 * max(1, config.kv_heads // parallel) * config.head * bits // 8
    kinds = config.layer_types[:layers]
    windowed = sum(kind in ("sliding_attention", "chunked_attention") for kind in kinds) if config.window else 0
    if not kinds and config.window and config.type in ("mistral", "phi3"):
        windowed = layers
    stateful = sum("linear" in kind or "mamba" in kind or "conv" in kind for kind in kinds)
    return Cache((layers - windowed - stateful) * one, windowed * one, config.window if windowed else 0)


def _kv_bits(asked: Asked, config: Config) -> int:
    name = asked.kv_cache_dtype
    if name in ("", "auto", "float16", "bfloat16", "float32"):
        return 32 if "float32" in (name, asked.dtype) else 16
    return 4 if "4" in name.replace("e4m3", "") and "fp8" not in name else 8


def _per_stage(cache: Cache | None, stages: int) -> Cache | None:
    if cache is None:
        return None
    return Cache(-(-cache.per_token // stages), -(-cache.windowed_per_token // stages), cache.window)


def full_graphs(asked: Asked) -> int:
    """Full graphs of decode steps: for each size and k the number of tokens that is a multiple of k + 1 (vLLM 0.33,
    v1/worker/gpu/cudagraph_utils.py: CudaGraphManager._init_candidates)."""
    if not asked.full_graphs or not asked.capture_sizes:
        return 0
    widths = {k + 1 for k in asked.ladder} or {1}
    largest = min(max(asked.capture_sizes), asked.max_num_seqs * max(widths))
    rounded = ((-(-size // width) * width, width) for size in asked.capture_sizes for width in widths)
    return len({(n, width) for n, width in rounded if n <= largest and n // width <= asked.max_num_seqs})


def _graphs(asked: Asked, config: Config, draft_layers: int) -> tuple[int, int]:
    """(bytes, number of the target's graphs). Piecewise graphs count as full ones."""
    if not asked.gpu or not asked.capture_sizes:
        return 0, 0
    count = full_graphs(asked) + len(set(asked.capture_sizes))
    # A drafter's own graphs: its steps for each k, and its first pass like the target's.
    layers = config.layers // asked.pipeline_parallel + 2 * draft_layers
    return count * layers * GRAPH_BYTES_PER_LAYER, count


def _activations(asked: Asked, config: Config, batched: int) -> int:
    """Of the largest step: a layer's intermediate results, and logits in 32 bits of all that is sampled, twice."""
    inner = max(config.inner, config.expert_inner) // asked.tensor_parallel
    rows = asked.max_num_seqs * ((asked.max_tokens if asked.method else 0) + 1)
    held = batched * 2 * (4 * config.hidden + 3 * inner)
    logits = 2 * 4 * min(rows, batched) * config.vocabulary
    kept = 4 * asked.max_num_seqs * asked.max_tokens * config.vocabulary if asked.probabilistic else 0
    adapters = asked.loras * asked.lora_rank * 2 * config.layers * 10 * config.hidden // asked.tensor_parallel
    return held + logits + kept + adapters


def _explained(made: Budget, asked: Asked) -> Budget:
    return Budget(**{**made.__dict__, "steps": tuple(_steps(made, asked))})


def _steps(made: Budget, asked: Asked) -> Iterator[str]:
    ranks = asked.tensor_parallel * asked.pipeline_parallel
    on = f" on each of {ranks} GPUs" if ranks > 1 else ""
    yield f"weights{on}: target {gib(made.weights)}, draft {gib(made.draft_weights)}"
    shares = [(name, one) for name, one in (("target", made.target_cache), ("draft", made.draft_cache)) if one]
    each = " + ".join(f"{name} {one.per_token + one.windowed_per_token}" for name, one in shares)
    yield f"KV cache: {each or 'not known'} bytes a token, x {made.block_size} tokens a block"
    yield f"one request of {made.max_model_len} tokens: {gib(made.longest_request)}"
    widths = len(set(asked.ladder)) or 1
    yield f"graphs, about: {made.graph_count} for {widths} distinct k: {gib(made.graphs)}"
    yield f"activations, about: steps of {made.batched} tokens and their logits: {gib(made.activations)}"
    yield f"CUDA context and libraries, about: {gib(made.reserved)}"


def gib(value: int | None) -> str:
    """For people."""
    return "not known" if value is None else f"{value / GIB:.2f} GiB"
