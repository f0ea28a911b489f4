"""SpeculativeServing: a model served by vLLM pods that speculate, with k kept right by the operator.

Field names follow vLLM's where vLLM has one and Kubernetes' where Kubernetes has one. No floats; units in the names.
A section of spec is a module of its own; here they are put together, with the rules that reach over sections.
"""

from __future__ import annotations

from functools import cache

from pydantic import ConfigDict, Field

from paceline_operator.api.autoscaling import MAX_REPLICAS, Autoscaling
from paceline_operator.api.base import NAME_RULE, ApiModel, ObjectMeta, cel
from paceline_operator.api.engine import Engine
from paceline_operator.api.metrics_source import Metrics
from paceline_operator.api.model import Model
from paceline_operator.api.rollout import Rollout
from paceline_operator.api.routing import Routing
from paceline_operator.api.safety import Safety
from paceline_operator.api.speculation import Speculation
from paceline_operator.api.status import ServingStatus
from paceline_operator.api.tuning import Slo, Tuning

MULTI_NODE_NAME_LENGTH = 36
"""`<name>-group-plain-<group>` names a StatefulSet, whose revision label (63) adds 11 to it."""
MULTI_NODE_NAME_RULE = (
    f"!has(self.spec.engine.multiNode) || self.metadata.name.size() <= {MULTI_NODE_NAME_LENGTH}",
    f"with engine.multiNode the name must be at most {MULTI_NODE_NAME_LENGTH} characters: StatefulSets, "
    "whose names must be shorter than others, are named after it",
    "metadata.name",
)


class ServingSpec(ApiModel):
    """Desired state of a SpeculativeServing."""

    replicas: int = Field(
        default=1, ge=0, le=MAX_REPLICAS, description="Engine pods. Whoever scales writes it through /scale."
    )
    model: Model = Field(description="The target model.")
    speculation: Speculation = Field(description="How drafts are made, and how many at most.")
    engine: Engine = Field(default_factory=Engine, description="The vLLM engine of each replica.")
    tuning: Tuning = Field(default_factory=Tuning, description="How k is chosen.")
    metrics: Metrics = Field(default_factory=Metrics, description="Sources of metrics beside the engines themselves.")
    slo: Slo = Field(default_factory=Slo, description="Service levels that tuning respects.")
    autoscaling: Autoscaling = Field(default_factory=Autoscaling, description="Replicas by load.")
    routing: Routing = Field(default_factory=Routing, description="How requests reach the engines.")
    rollout: Rollout = Field(default_factory=Rollout, description="How pods are replaced.")
    safety: Safety = Field(default_factory=Safety, description="What is done about engines that crash or hang.")
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
                "!self.engine.enforceEager && self.engine.pipelineParallelSize == 1 && !has(self.engine.lora) && "
                "(!has(self.engine.cudagraphMode) || self.engine.cudagraphMode.startsWith('FULL')))",
                "adaptive verification needs a GPU, full CUDA graphs (no enforceEager, no cudagraphMode NONE or "
                "PIECEWISE), pipelineParallelSize 1 and no LoRA",
                "speculation.adaptiveVerification",
            ),
            (
                "self.engine.device == 'GPU' || !(self.speculation.method in ['ngram_gpu', 'dspark'])",
                "this method needs a GPU",
                "speculation.method",
            ),
            (
                "!has(self.speculation.draft) || !has(self.speculation.draft.tensorParallelSize) || "
                "self.speculation.draft.tensorParallelSize in [1, self.engine.tensorParallelSize]",
                "speculation.draft.tensorParallelSize must be 1 or engine.tensorParallelSize",
                "speculation.draft.tensorParallelSize",
            ),
            (
                "self.autoscaling.mode != 'Builtin' || has(self.autoscaling.targetRunningRequests) || "
                "has(self.slo.tpotMilliseconds)",
                "mode Builtin needs autoscaling.targetRunningRequests or slo.tpotMilliseconds",
                "autoscaling.targetRunningRequests",
            ),
            (
                "self.autoscaling.mode != 'Builtin' || self.engine.plugin.injection != 'None'",
                "mode Builtin counts requests through the plugin: without it, use a HorizontalPodAutoscaler or KEDA",
                "autoscaling.mode",
            ),
            (
                "self.autoscaling.mode != 'KEDA' || has(self.autoscaling.keda.serverAddress) || "
                "(has(self.metrics.prometheus) && has(self.metrics.prometheus.url))",
                "mode KEDA needs autoscaling.keda.serverAddress or metrics.prometheus.url",
                "autoscaling.keda.serverAddress",
            ),
        )
    )


@cache
def _nothing() -> ServingStatus:
    """One for all: servings are parsed without their status."""
    return ServingStatus()


class SpeculativeServing(ApiModel):
    """A model served by vLLM pods that speculate, with k kept right by the operator."""

    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: ServingSpec
    status: ServingStatus = Field(default_factory=_nothing)

    model_config = ConfigDict(
        json_schema_extra=cel(
            NAME_RULE,
            MULTI_NODE_NAME_RULE,
        )
    )
