"""How pods are replaced: the canary that goes first, and when a change may restart anything."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import ConfigDict, Field, field_validator

from paceline_operator.api.base import ApiModel, cel


class Proposals(StrEnum):
    """What becomes of a restart that the operator itself would make. Propose: it is told and nothing more."""

    PROPOSE = "Propose"
    APPLY = "Apply"


class CanaryMode(StrEnum):
    """Auto: a canary goes first wherever a pod serves that it can be compared with."""

    AUTO = "Auto"
    DISABLED = "Disabled"


class Day(StrEnum):
    """A day of the week."""

    MONDAY = "Monday"
    TUESDAY = "Tuesday"
    WEDNESDAY = "Wednesday"
    THURSDAY = "Thursday"
    FRIDAY = "Friday"
    SATURDAY = "Saturday"
    SUNDAY = "Sunday"


class OutputContract(ApiModel):
    """What an answer must be, whatever it says. Nothing of answers is stored."""

    prompt: str = Field(min_length=1, max_length=8192, description="Sent as it is to the canary and to another pod.")
    max_tokens: int = Field(default=64, ge=1, le=1024, description="Of the answer.")
    json_fields: Annotated[list[Annotated[str, Field(min_length=1, max_length=256)]], Field(max_length=32)] = Field(
        default_factory=list,
        description="The answer must be a JSON object that has these fields; if empty, it need not be JSON.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    finish_reason: Literal["stop", "length"] | None = Field(
        default=None, description="What it must end for; either, if absent."
    )
    tool: str | None = Field(
        default=None,
        max_length=64,
        pattern=r"^[A-Za-z0-9_-]+$",
        description="The answer must call the function of this name, which the request offers, and jsonFields are its "
        "arguments. The engine needs --enable-auto-tool-choice and --tool-call-parser.",
    )


class Canary(ApiModel):
    """One pod with the new template, judged against those with the old one over the same time."""

    mode: CanaryMode = Field(default=CanaryMode.AUTO, description="Auto or Disabled: then pods are replaced at once.")
    observe_seconds: int = Field(
        default=120, ge=5, le=86_400, description="A ready canary is watched at least this long before it is promoted."
    )
    deadline_seconds: int = Field(
        default=1800,
        ge=10,
        le=604_800,
        description="A ready canary that too little is known of is watched at most this long; then a user's change is "
        "promoted if nothing speaks against it, and one of the operator's own is taken back.",
    )
    max_goodput_loss_percent: int = Field(
        default=5, ge=1, le=90, description="Goodput at the same load may be this much below that of the other pods."
    )
    max_latency_increase_percent: int = Field(
        default=20,
        ge=1,
        le=1000,
        description="Time per output token and time to first token may exceed those of the other pods by this much.",
    )
    max_errors_permille: int = Field(
        default=10,
        ge=0,
        le=1000,
        description="Failed requests may exceed those of the other pods by this share, x1000.",
    )
    output_contract: OutputContract | None = Field(
        default=None, description="A request that the canary is asked besides, and what its answer must be."
    )


class Window(ApiModel):
    """A time of the week in which pods may be restarted."""

    days: Annotated[list[Day], Field(max_length=7)] = Field(
        default_factory=list,
        description="Days on which it starts; every day if empty.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    start: str = Field(pattern=r"^([01]\d|2[0-3]):[0-5]\d$", max_length=5, description="Local time it starts, HH:MM.")
    duration_minutes: int = Field(ge=1, le=10_080, description="How long it lasts.")
    time_zone: str = Field(
        default="UTC", min_length=1, max_length=64, description="IANA name of the time zone (Europe/Berlin)."
    )

    @field_validator("time_zone")
    @classmethod
    def _known(cls, name: str) -> str:
        try:
            datetime.now(UTC).astimezone(ZoneInfo(name))
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"{name!r} is no IANA time zone that this system knows") from error
        return name


class Rollout(ApiModel):
    """How pods are replaced. GPUs are scarce: by default a pod goes before its successor comes."""

    max_surge: int = Field(default=0, ge=0, le=1000, description="Pods above replicas during a rollout.")
    max_unavailable: int = Field(default=1, ge=0, le=1000, description="Pods below replicas during a rollout.")
    canary: Canary = Field(default_factory=Canary, description="The pod that goes first.")
    require_canary: bool = Field(
        default=False,
        description="Never replace pods without a canary, not even the one pod of a serving that has no room for a "
        "second: the change then waits for room.",
    )
    proposals: Proposals = Field(
        default=Proposals.PROPOSE,
        description="Propose: what a restart would bring is told in status. Apply: the best proposal is laid over this "
        "spec (which is never written) and rolled out through a canary.",
    )
    restarts_per_day: int = Field(
        default=3,
        ge=0,
        le=100,
        description="Rollouts of the operator's own in any 24 hours, those taken back included.",
    )
    maintenance_windows: Annotated[list[Window], Field(max_length=16)] = Field(
        default_factory=list,
        description="When the operator's own changes may start; always if empty.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    windows_for_user_changes: bool = Field(
        default=False, description="Changes of this spec wait for a maintenance window, too."
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.maxSurge > 0 || self.maxUnavailable > 0",
                "maxSurge and maxUnavailable must not both be 0",
                "maxUnavailable",
            ),
            (
                "!self.windowsForUserChanges || self.maintenanceWindows.size() > 0",
                "windowsForUserChanges needs a maintenance window",
                "windowsForUserChanges",
            ),
            (
                "!self.requireCanary || self.canary.mode != 'Disabled'",
                "requireCanary and canary.mode Disabled exclude each other",
                "requireCanary",
            ),
        )
    )
