"""How many pods, and who decides it: a person, an autoscaler of the cluster's, KEDA, or the operator itself."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, cel

MAX_REPLICAS = 10_000
Query = Annotated[str, Field(min_length=1, max_length=4096)]
Address = Annotated[str, Field(min_length=8, max_length=1024, pattern=r"^https?://\S+$")]


class AutoscalingMode(StrEnum):
    """Disabled: replicas are whose-ever they are. Builtin: this operator writes them. KEDA: a ScaledObject is made."""

    DISABLED = "Disabled"
    BUILTIN = "Builtin"
    KEDA = "KEDA"


class ScaleUp(ApiModel):
    """More pods. Names and the stabilisation default are the HorizontalPodAutoscaler's."""

    stabilization_window_seconds: int = Field(
        default=0, ge=0, le=3600, description="The least that was wanted within this time is what is done."
    )
    max_step_replicas: int = Field(default=4, ge=1, le=1000, description="Pods that one decision adds at most.")


class ScaleDown(ApiModel):
    """Fewer pods. A pod that goes takes its loaded model with it, hence one at a time."""

    stabilization_window_seconds: int = Field(
        default=300, ge=0, le=3600, description="The most that was wanted within this time is what is done."
    )
    max_step_replicas: int = Field(default=1, ge=1, le=1000, description="Pods that one decision takes away at most.")


class Behavior(ApiModel):
    """How fast replicas follow what is wanted."""

    scale_up: ScaleUp = Field(default_factory=ScaleUp, description="Upwards.")
    scale_down: ScaleDown = Field(default_factory=ScaleDown, description="Downwards.")


class Keda(ApiModel):
    """What mode KEDA needs to know: the Prometheus that scrapes the engines."""

    server_address: Address | None = Field(
        default=None, description="URL of Prometheus, as KEDA reaches it; metrics.prometheus.url if absent."
    )
    query: Query | None = Field(
        default=None,
        description="PromQL for all requests of this serving, one value; if absent, vLLM's running and waiting "
        "requests of its pods, by the labels namespace and pod.",
    )
    wake_up_query: Query | None = Field(
        default=None,
        description="PromQL for the requests that wait at the router or gateway. It counts where no engine is there to "
        "be scraped; minReplicas 0 needs it.",
    )
    cooldown_period_seconds: int = Field(
        default=300, ge=0, le=86_400, description="From the last request to zero pods, with minReplicas 0."
    )


class Autoscaling(ApiModel):
    """Replicas by load. Whoever scales writes spec.replicas through the scale subresource."""

    mode: AutoscalingMode = Field(
        default=AutoscalingMode.DISABLED,
        description="Disabled (a person or a HorizontalPodAutoscaler of your own), Builtin (this operator, k before "
        "pods) or KEDA (a ScaledObject is made).",
    )
    min_replicas: int = Field(default=1, ge=0, le=MAX_REPLICAS, description="Fewest pods.")
    max_replicas: int | None = Field(default=None, ge=1, le=MAX_REPLICAS, description="Most pods.")
    target_running_requests: int | None = Field(
        default=None,
        ge=1,
        le=100_000,
        description="Requests a pod, running and waiting. Builtin can do with slo.tpotMilliseconds instead: then the "
        "largest load at which some measured k meets it.",
    )
    behavior: Behavior = Field(default_factory=Behavior, description="How fast.")
    keda: Keda = Field(default_factory=Keda, description="For mode KEDA.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.mode == 'Disabled' || has(self.maxReplicas)",
                "modes Builtin and KEDA need autoscaling.maxReplicas",
                "maxReplicas",
            ),
            (
                "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
                "autoscaling.minReplicas must not exceed maxReplicas",
                "minReplicas",
            ),
            (
                "self.mode != 'Builtin' || self.minReplicas > 0",
                "mode Builtin cannot wake from zero pods: it counts requests at the pods; use mode KEDA with "
                "keda.wakeUpQuery",
                "minReplicas",
            ),
            (
                "self.mode != 'KEDA' || self.minReplicas > 0 || has(self.keda.wakeUpQuery)",
                "minReplicas 0 needs keda.wakeUpQuery: with no pod, only the router or gateway sees a request",
                "keda.wakeUpQuery",
            ),
            (
                "self.mode != 'KEDA' || has(self.targetRunningRequests)",
                "mode KEDA needs autoscaling.targetRunningRequests",
                "targetRunningRequests",
            ),
        )
    )
