"""The vLLM engine of each replica, and the pod around it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, Image, VllmName, cel
from paceline_operator.api.multinode import MultiNode

Argument = Annotated[str, Field(min_length=1, max_length=1024)]
DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""Opens routes that run code in the workers, without a key (vLLM: entrypoints/serve/__init__.py): never set."""


def identified(items: object, key: str) -> bool:
    """Whether these are a list whose items can be told apart by `key`, as those that podTemplate merges are."""
    return isinstance(items, list) and all(isinstance(item, dict) and isinstance(item.get(key), str) for item in items)


class Device(StrEnum):
    """What the engine computes on."""

    GPU = "GPU"
    CPU = "CPU"


class PluginInjection(StrEnum):
    """How the plugin reaches the engine. None: vLLM's own boot schedule is all there is (tier Restart)."""

    INIT_CONTAINER = "InitContainer"
    IN_IMAGE = "InImage"
    NONE = "None"


class Plugin(ApiModel):
    """The engine plugin."""

    injection: PluginInjection = Field(
        default=PluginInjection.INIT_CONTAINER, description="How the plugin reaches the engine."
    )
    image: Image | None = Field(
        default=None, description="Plugin image of the init container; the operator's default if absent."
    )


class Preflight(StrEnum):
    """What is looked at in a pod before weights are downloaded and the engine starts."""

    DISABLED = "Disabled"
    CHECKS = "Checks"
    """Driver, one kernel, versions, models by their configuration and headers, memory: seconds."""
    TINY_MODEL = "TinyModel"
    """Besides, a small model of the same kind with dummy weights in a real engine: minutes."""


class CudagraphMode(StrEnum):
    """CUDA graphs of the target, by vLLM's names. Full graphs hold a whole decode step, piecewise ones leave attention
    out."""

    NONE = "NONE"
    PIECEWISE = "PIECEWISE"
    FULL = "FULL"
    FULL_DECODE_ONLY = "FULL_DECODE_ONLY"
    FULL_AND_PIECEWISE = "FULL_AND_PIECEWISE"


class Lora(ApiModel):
    """LoRA adapters. Drafts are made for the base model, so adapters lower the acceptance."""

    max_loras: int = Field(default=1, ge=1, le=1024, description="Adapters in one batch at most.")
    max_lora_rank: Literal[1, 8, 16, 32, 64, 128, 256, 320, 512] = Field(
        default=16, description="Largest rank of an adapter; memory is taken for it."
    )
    max_cpu_loras: int | None = Field(
        default=None, ge=1, le=16_384, description="Adapters kept in host memory; maxLoras if absent."
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.maxCpuLoras) || self.maxCpuLoras >= self.maxLoras",
                "maxCpuLoras must not be below maxLoras",
                "maxCpuLoras",
            )
        )
    )


class EnvVar(ApiModel):
    """A literal environment variable of the engine container."""

    name: str = Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Name.")
    value: str = Field(default="", max_length=4096, description="Value, taken literally.")


class Engine(ApiModel):
    """The vLLM engine of each replica."""

    image: Image | None = Field(default=None, description="vLLM image; the operator's default if absent.")
    vllm_version: str | None = Field(
        default=None,
        max_length=32,
        pattern=r"^\d+\.\d+(\.\d+)?$",
        description="vLLM version of the image, by which its options are judged; read from the image's tag if absent.",
    )
    device: Device = Field(default=Device.GPU, description="GPU requests nvidia.com/gpu; CPU serves on cores.")
    plugin: Plugin = Field(default_factory=Plugin, description="The engine plugin.")
    preflight: Preflight = Field(
        default=Preflight.CHECKS,
        description="Checks in a container before the engine's: of the GPU, of models before they are downloaded, of "
        "memory. What fails keeps the pod from starting and is told in the condition PreflightPassed. TinyModel also "
        "lets a small model run through the same path, which takes minutes.",
    )
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs that share each layer.")
    pipeline_parallel_size: int = Field(default=1, ge=1, le=64, description="Stages of layers.")
    multi_node: MultiNode | None = Field(
        default=None, description="Spread each replica over several nodes; one pod a replica if absent."
    )
    max_model_len: int | None = Field(default=None, ge=16, le=16_777_216, description="Context limit, tokens.")
    max_num_seqs: int = Field(default=256, ge=1, le=4096, description="Requests in one step at most.")
    max_num_batched_tokens: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="Tokens in one step at most, prompts included; vLLM's default if absent.",
    )
    gpu_memory_utilization_percent: int = Field(
        default=90, ge=10, le=98, description="Share of the GPU's memory that vLLM takes."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = Field(
        default=None, description="Type of weights and activations."
    )
    quantization: VllmName | None = Field(
        default=None, description="Quantization of the weights, by vLLM's name; what the checkpoint says if absent."
    )
    kv_cache_dtype: VllmName | None = Field(
        default=None, description="Type of the KV cache, by vLLM's name; the model's if absent."
    )
    enforce_eager: bool = Field(default=False, description="No CUDA graphs, no compilation.")
    cudagraph_mode: CudagraphMode | None = Field(
        default=None, description="CUDA graphs of the target; vLLM's default (FULL_AND_PIECEWISE) if absent."
    )
    lora: Lora | None = Field(default=None, description="Serve LoRA adapters; `{}` for the defaults.")
    enable_prefix_caching: bool | None = Field(default=None, description="vLLM's default if absent.")
    extra_args: Annotated[list[Argument], Field(max_length=64)] = Field(
        default_factory=list,
        description="More arguments of `vllm serve`, one argv element each; an argument the operator owns is refused.",
    )
    env: Annotated[list[EnvVar], Field(max_length=64)] = Field(
        default_factory=list,
        description="More environment of the engine.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    resources: dict[str, Any] | None = Field(
        default=None,
        description="Container resources (requests, limits); merged over the defaults.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    pod_template: dict[str, Any] | None = Field(
        default=None,
        description="Pod template fields merged over the rendered ones, lists by name (tolerations, volumes, ...).",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    startup_timeout_seconds: int = Field(
        default=1800, ge=10, le=86_400, description="Until the engine must answer /health after its start."
    )
    shutdown_timeout_seconds: int = Field(
        default=60, ge=0, le=3600, description="For running requests to finish when a pod is stopped."
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.device == 'GPU' || (self.tensorParallelSize == 1 && self.pipelineParallelSize == 1)",
                "a CPU engine has tensorParallelSize 1 and pipelineParallelSize 1",
                "device",
            ),
            (
                "!has(self.multiNode) || (self.device == 'GPU' && "
                "(self.tensorParallelSize * self.pipelineParallelSize) % self.multiNode.nodes == 0)",
                "multiNode.nodes must divide tensorParallelSize * pipelineParallelSize: each node has as many GPUs",
                "multiNode.nodes",
            ),
            (
                "!has(self.maxNumBatchedTokens) || self.maxNumBatchedTokens >= self.maxNumSeqs",
                "maxNumBatchedTokens must not be below maxNumSeqs: each request needs a token of the step",
                "maxNumBatchedTokens",
            ),
            (
                "!self.enforceEager || !has(self.cudagraphMode) || self.cudagraphMode == 'NONE'",
                "enforceEager means no CUDA graphs: remove cudagraphMode",
                "cudagraphMode",
            ),
            (
                "self.device == 'GPU' || (!has(self.cudagraphMode) || self.cudagraphMode == 'NONE')",
                "a CPU engine has no CUDA graphs: remove cudagraphMode",
                "cudagraphMode",
            ),
        )
    )
