"""What a serving asks for, as far as preflight looks at it. The operator writes it, and hands it on as JSON."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline_engine.protocol import MAX_K, Wire

MAX_SIZE, MAX_BYTES = 2**31, 2**50
Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]


class Source(Wire):
    """Where a model is."""

    source: Annotated[str, Field(max_length=512)]
    """As in the spec: hf://owner/name, s3://..., pvc://..., oci://... or a path."""
    revision: Annotated[str, Field(max_length=128)] = ""
    """Asked for; empty: the default."""
    path: Annotated[str, Field(max_length=1024)] = ""
    """Where its files are, or will be, in the engine's container; empty: on a hub alone."""
    quantization: Annotated[str, Field(max_length=64)] = ""
    """Asked for; empty: what the checkpoint says."""


class Asked(Wire):
    """One engine."""

    target: Source
    draft: Source | None = None
    method: Annotated[str, Field(max_length=32)] = ""
    """Of drafting, by vLLM's name; empty: no speculation."""
    max_tokens: Annotated[int, Field(ge=0, le=MAX_K)] = 0
    """Largest k."""
    ladder: Annotated[list[Annotated[int, Field(ge=0, le=MAX_K)]], Field(max_length=MAX_K + 1)] = Field(
        default_factory=list
    )
    """Ks that graphs are captured for."""
    capture_sizes: Annotated[list[Size], Field(max_length=4096)] = Field(default_factory=list)
    """Graph sizes, tokens; empty: no graphs."""
    full_graphs: bool = True
    gpu: bool = True
    vllm: Annotated[str, Field(max_length=32)] = ""
    """Version by which the spec was judged, `major.minor`."""
    dtype: Annotated[str, Field(max_length=32)] = ""
    kv_cache_dtype: Annotated[str, Field(max_length=64)] = ""
    tensor_parallel: Size = 1
    draft_tensor_parallel: Size | None = None
    """None: as the target."""
    pipeline_parallel: Size = 1
    nodes: Size = 1
    max_model_len: Size | None = None
    max_num_seqs: Size = 256
    max_num_batched_tokens: Size | None = None
    memory_utilization_percent: Annotated[int, Field(ge=1, le=100)] = 90
    kv_cache_bytes: Annotated[int, Field(ge=1, le=MAX_BYTES)] | None = None
    """Given by --kv-cache-memory-bytes; None: what is left."""
    block_size: Size = 16
    """Tokens of a KV block; vLLM's on GPUs."""
    lora_rank: Annotated[int, Field(ge=0, le=1024)] = 0
    """0: no LoRA."""
    loras: Annotated[int, Field(ge=0, le=1024)] = 0
    two_vocabularies: bool = False
    """use_heterogeneous_vocab."""
    long_positions: bool = False
    """VLLM_ALLOW_LONG_MAX_MODEL_LEN: positions beyond the model's are allowed."""
    probabilistic: bool = False
    """Drafts are sampled with probabilities kept: a row of the vocabulary for each draft token."""

    @property
    def gpus(self) -> int:
        """Of one pod."""
        return self.tensor_parallel * self.pipeline_parallel // self.nodes if self.gpu else 0
