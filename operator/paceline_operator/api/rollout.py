"""How pods are replaced."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, cel


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
