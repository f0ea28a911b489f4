"""Status of the boot configurations that served: what each gave, to be gone back to or compared with."""

from __future__ import annotations

from pydantic import Field

from paceline_operator.api.base import ApiModel, Timestamp


class BootField(ApiModel):
    """A field of spec that speculation is booted by."""

    path: str = Field(description="Field of spec.")
    value: str = Field(description="Its value, as JSON; `null`: absent.")


class BootLoad(ApiModel):
    """What one boot gave at one load, with the k that was best there."""

    from_requests: int = Field(description="Lower edge of the load bucket, sampling requests.")
    k: int = Field(description="Tokens drafted.")
    goodput_milli_tokens_per_second: int = Field(description="Of one engine, x1000.")
    low_milli_tokens_per_second: int = Field(description="Lower end of the 95 % interval, x1000.")
    high_milli_tokens_per_second: int = Field(description="Upper end of the 95 % interval, x1000.")


class BootRecord(ApiModel):
    """One boot configuration."""

    fields: list[BootField] = Field(max_length=16, description="What it is booted by.")
    since: Timestamp = Field(description="When the stable pods took it, last.")
    left_at: Timestamp | None = Field(default=None, description="When they left it. Absent: it is in force.")
    visits: int = Field(default=1, ge=1, description="How often they took it: each time, the way back waits longer.")
    loads: list[BootLoad] = Field(
        default_factory=list, max_length=24, description="What it gave last; of the one in force, see buckets."
    )
