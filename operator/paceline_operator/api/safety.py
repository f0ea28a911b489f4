"""What the operator does about engines that crash or stand still, and when."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from paceline_operator.api.base import ApiModel


class SafetyMode(StrEnum):
    """Act: speculation is taken back where it crashes, and hung pods are replaced. Observe: that is told alone."""

    ACT = "Act"
    OBSERVE = "Observe"


class Safety(ApiModel):
    """What the operator does about engines that crash or stand still."""

    mode: SafetyMode = Field(default=SafetyMode.ACT, description="Act, or Observe: tell what would be done.")
    crashes: int = Field(
        default=2, ge=1, le=16, description="Ends of speculating engines within the window that take speculation back."
    )
    window_seconds: int = Field(default=1800, ge=60, le=86_400, description="The window.")
    hang_seconds: int = Field(
        default=60,
        ge=10,
        le=3600,
        description="An engine with requests running and no token for so long, and for 50 of its usual steps, hangs.",
    )
    stable_seconds: int = Field(
        default=900,
        ge=10,
        le=604_800,
        description="A remedy must stay up this long, and ten times as long as engines lived before they crashed.",
    )
    contract_every_seconds: int | None = Field(
        default=None,
        ge=10,
        le=86_400,
        description="Ask a speculating and a plain pod (routing.plain) so often for what rollout.canary.outputContract "
        "says; never if absent.",
    )
    restarts_per_hour: int = Field(
        default=3, ge=0, le=60, description="Hung pods that are deleted in any hour; more are told alone."
    )
