"""SpeculativeServing: a model served by vLLM pods that speculate, with k kept right by the operator.

Field names follow vLLM's where vLLM has one and Kubernetes' where Kubernetes has one. No floats; units in the names.
Over 300 lines because a field of the spec, its bounds, its default and its rules are read together.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from paceline_operator.api.base import NAME_RULE, ApiModel, ObjectMeta, cel
from paceline_operator.api.status import K, ServingStatus, TableRow

SOURCE_PATTERN = (
    r"^(hf://[A-Za-z0-9][\w.-]*/[\w.-]+|s3://[a-z0-9][a-z0-9.-]+/\S+|pvc://[a-z0-9][a-z0-9.-]*/\S*|oci://\S+|/\S+)$"
)
DRAFT_METHODS = ("draft_model", "eagle", "eagle3", "dflash", "dspark")
DRAFTLESS_METHODS = ("ngram", "ngram_gpu", "suffix")
FIXED_K_METHODS = ("ngram_gpu", "suffix")
"""Their proposers assert k == num_speculative_tokens (vLLM 0.32, 0.33): no schedule at boot, and no live k."""

Source = Annotated[str, Field(max_length=512, pattern=SOURCE_PATTERN)]
Revision = Annotated[str, Field(min_length=1, max_length=128)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]
Argument = Annotated[str, Field(min_length=1, max_length=1024)]


class Method(StrEnum):
    """Drafting methods, by vLLM's names."""

    NGRAM = "ngram"
    NGRAM_GPU = "ngram_gpu"
    SUFFIX = "suffix"
    DRAFT_MODEL = "draft_model"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MTP = "mtp"
    DFLASH = "dflash"
    DSPARK = "dspark"


REVISION_RULE = (
    "!has(self.revision) || self.source.startsWith('hf://')",
    "revision is for hf:// sources: the other kinds name their content in the source",
    "revision",
)


class Model(ApiModel):
    """The target model."""

    source: Source = Field(
        description="Where the weights are: hf://owner/name, s3://bucket/key, pvc://claim/path, oci://image or an "
        "absolute path inside the engine container."
    )
    revision: Revision | None = Field(default=None, description="Branch, tag or commit of a hf:// source.")
    served_name: Name | None = Field(
        default=None, description="Model name that clients send; the object's name if absent."
    )
    token_secret_name: ObjectName | None = Field(
        default=None, description="Secret with key `token` (HF_TOKEN) for a gated model."
    )

    model_config = ConfigDict(json_schema_extra=cel(REVISION_RULE))


class Draft(ApiModel):
    """The draft model of a method that has one."""

    source: Source = Field(description="Where the draft's weights are, as model.source.")
    revision: Revision | None = Field(default=None, description="Branch, tag or commit of a hf:// source.")

    model_config = ConfigDict(json_schema_extra=cel(REVISION_RULE))


class Ngram(ApiModel):
    """Window of the ngram method (prompt lookup)."""

    prompt_lookup_min: int = Field(default=2, ge=1, le=64, description="Shortest suffix that is looked up.")
    prompt_lookup_max: int = Field(default=5, ge=1, le=64, description="Longest suffix that is looked up.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.promptLookupMin <= self.promptLookupMax",
                "promptLookupMin must not exceed promptLookupMax",
                "promptLookupMin",
            )
        )
    )


class AdaptiveVerification(StrEnum):
    """vLLM's adaptive verification at boot. Auto: off, until a measurement says otherwise."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Speculation(ApiModel):
    """How drafts are made, and how many at most."""

    method: Method = Field(description="Drafting method, by vLLM's name.")
    draft: Draft | None = Field(default=None, description="Draft model, for the methods that have one.")
    max_tokens: int = Field(
        default=5,
        ge=1,
        le=32,
        description="Largest k the engine boots with (num_speculative_tokens). A change restarts the pods.",
    )
    ngram: Ngram | None = Field(default=None, description="Window of the ngram methods.")
    adaptive_verification: AdaptiveVerification = Field(
        default=AdaptiveVerification.AUTO, description="vLLM's adaptive verification at boot."
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!(self.method in {list(DRAFT_METHODS)}) || has(self.draft)",
                "this method needs a draft: set speculation.draft.source",
                "draft",
            ),
            (
                f"!(self.method in {list(DRAFTLESS_METHODS)}) || !has(self.draft)",
                "this method has no draft model: remove speculation.draft",
                "draft",
            ),
            (
                "!has(self.ngram) || self.method in ['ngram', 'ngram_gpu']",
                "speculation.ngram is for the methods ngram and ngram_gpu",
                "ngram",
            ),
            (
                "!(self.method in ['ngram', 'ngram_gpu']) || self.adaptiveVerification != 'Enabled'",
                "adaptive verification needs draft probabilities, which the ngram methods do not have",
                "adaptiveVerification",
            ),
        )
    )


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


class TuningMode(StrEnum):
    """Auto decides and acts, Observe decides and tells, Manual does as the table says."""

    AUTO = "Auto"
    OBSERVE = "Observe"
    MANUAL = "Manual"


class ProbingMode(StrEnum):
    """Auto: in mode Auto yes, in mode Observe no."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Probing(ApiModel):
    """Short bursts of other ks that keep their estimates alive."""

    mode: ProbingMode = Field(default=ProbingMode.AUTO, description="Whether bursts are allowed.")
    max_share_percent: int = Field(
        default=5,
        ge=1,
        le=25,
        description="Share of steps that bursts may take, settling steps included, once observed.",
    )


class Tuning(ApiModel):
    """How k is chosen."""

    mode: TuningMode = Field(default=TuningMode.AUTO, description="Auto, Observe (recommend only) or Manual (table).")
    table: Annotated[list[TableRow], Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="The table of mode Manual: rows in ascending order, the first from 1 request.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    ladder: Annotated[list[K], Field(min_length=1, max_length=16)] | None = Field(
        default=None,
        description="The ks to choose from, 0 included; chosen from speculation.maxTokens if absent.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    interval_seconds: int = Field(default=10, ge=1, le=3600, description="Between two decisions.")
    min_gain_percent: int = Field(default=1, ge=0, le=50, description="Smaller expected gains do not move k.")
    probing: Probing = Field(default_factory=Probing, description="Bursts of other ks.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.mode != 'Manual' || has(self.table)", "mode Manual needs tuning.table", "table"),
            ("!has(self.table) || self.mode == 'Manual'", "tuning.table is for mode Manual only", "table"),
            (
                "!has(self.table) || self.table[0].fromRequests == 1",
                "tuning.table must start with fromRequests 1",
                "table",
            ),
            (
                "!has(self.table) || (self.table.map(r, r.fromRequests).isSorted() && "
                "self.table.all(a, self.table.exists_one(b, b.fromRequests == a.fromRequests)))",
                "the rows of tuning.table must ascend by fromRequests, each number once",
                "table",
            ),
            (
                "!has(self.ladder) || 0 in self.ladder",
                "tuning.ladder must contain 0, the way to stop speculating",
                "ladder",
            ),
        )
    )


class Slo(ApiModel):
    """Service levels that tuning respects."""

    tpot_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time per output token; a k that exceeds it at a load is no candidate there.",
    )
    ttft_p95_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=600_000,
        description="95th percentile of the time to first token: observed, not predicted; exceeded in two windows, k "
        "is lowered at the present load and above, and where that does not help, replicas are proposed.",
    )


class Rollout(ApiModel):
    """How pods are replaced. GPUs are scarce: by default a pod goes before its successor comes."""

    max_surge: int = Field(default=0, ge=0, le=1000, description="Pods above replicas during a rollout.")
    max_unavailable: int = Field(default=1, ge=0, le=1000, description="Pods below replicas during a rollout.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.maxSurge > 0 || self.maxUnavailable > 0",
                "maxSurge and maxUnavailable must not both be 0",
                "maxUnavailable",
            )
        )
    )


class ServingSpec(ApiModel):
    """Desired state of a SpeculativeServing."""

    replicas: int = Field(default=1, ge=0, le=10_000, description="Engine pods.")
    model: Model = Field(description="The target model.")
    speculation: Speculation = Field(description="How drafts are made, and how many at most.")
    engine: Engine = Field(default_factory=Engine, description="The vLLM engine of each replica.")
    tuning: Tuning = Field(default_factory=Tuning, description="How k is chosen.")
    slo: Slo = Field(default_factory=Slo, description="Service levels that tuning respects.")
    rollout: Rollout = Field(default_factory=Rollout, description="How pods are replaced.")
    suspend: bool = Field(default=False, description="Write no child, push nothing; status is still written.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!has(self.tuning.ladder) || self.tuning.ladder.all(k, k <= self.speculation.maxTokens)",
                "tuning.ladder has a k above speculation.maxTokens",
                "tuning.ladder",
            ),
            (
                "!has(self.tuning.table) || self.tuning.table.all(r, r.k <= self.speculation.maxTokens)",
                "tuning.table has a k above speculation.maxTokens",
                "tuning.table",
            ),
            (
                "!has(self.tuning.ladder) || self.tuning.ladder.size() <= self.engine.maxNumSeqs",
                "tuning.ladder is longer than engine.maxNumSeqs: each k owns at least one batch size at boot",
                "tuning.ladder",
            ),
            (
                "self.speculation.adaptiveVerification != 'Enabled' || (self.engine.device == 'GPU' && "
                "!self.engine.enforceEager && self.engine.pipelineParallelSize == 1)",
                "adaptive verification needs a GPU, CUDA graphs (enforceEager false) and pipelineParallelSize 1",
                "speculation.adaptiveVerification",
            ),
        )
    )


class SpeculativeServing(ApiModel):
    """A model served by vLLM pods that speculate, with k kept right by the operator."""

    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: ServingSpec
    status: ServingStatus = Field(default_factory=ServingStatus)

    model_config = ConfigDict(json_schema_extra=cel(NAME_RULE))
