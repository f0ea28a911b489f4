"""The vLLM engine of each replica, and the pod around it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, Image, cel

Argument = Annotated[str, Field(min_length=1, max_length=1024)]


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


class EnvVar(ApiModel):
    """A literal environment variable of the engine container."""

    name: str = Field(min_length=1, max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Name.")
    value: str = Field(default="", max_length=4096, description="Value, taken literally.")


class Engine(ApiModel):
    """The vLLM engine of each replica."""

    image: Image | None = Field(default=None, description="vLLM image; the operator's default if absent.")
    device: Device = Field(default=Device.GPU, description="GPU requests nvidia.com/gpu; CPU serves on cores.")
    plugin: Plugin = Field(default_factory=Plugin, description="The engine plugin.")
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs that share each layer.")
    pipeline_parallel_size: int = Field(default=1, ge=1, le=64, description="Stages of layers.")
    max_model_len: int | None = Field(default=None, ge=16, le=16_777_216, description="Context limit, tokens.")
    max_num_seqs: int = Field(default=256, ge=1, le=4096, description="Requests in one step at most.")
    gpu_memory_utilization_percent: int = Field(
        default=90, ge=10, le=98, description="Share of the GPU's memory that vLLM takes."
    )
    dtype: Literal["auto", "bfloat16", "float16", "float32"] | None = Field(
        default=None, description="Type of weights and activations."
    )
    enforce_eager: bool = Field(default=False, description="No CUDA graphs, no compilation.")
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
        )
    )
