"""What status tells of replicas: how many are wanted, why, and who wrote them."""

from __future__ import annotations

from pydantic import Field

from paceline_operator.api.base import ApiModel, Timestamp


class ScalingStatus(ApiModel):
    """Replicas as the autoscaler of this object sees them; absent in mode Disabled."""

    desired_replicas: int = Field(description="Pods that the last decision wants.")
    reason: str = Field(description="AboveTarget, BelowTarget, LowerKFirst, ... as in the condition ScalingActive.")
    message: str = Field(default="", max_length=1024, description="The numbers of that decision.")
    at: Timestamp = Field(description="When reason or desiredReplicas changed.")
    writer: str = Field(default="", description="Field manager that wrote spec.replicas last, as it is accepted.")
    written_at: Timestamp | None = Field(default=None, description="When, where that was not this operator.")
    foreign_writer: str | None = Field(
        default=None, description="Field manager for whom mode Builtin steps back; absent where there is none."
    )
