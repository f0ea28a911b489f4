"""Status of the safety ladder: all that the next pass, or the next process, needs to carry it on."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from paceline_operator.api.base import ApiModel, Timestamp
from paceline_operator.api.status_boots import BootField

MAX_DEATHS, MAX_SEEN, MAX_RESTARTS = 16, 256, 60


class Phase(StrEnum):
    """Of the climb."""

    REST = "Rest"
    """No remedy is in force."""
    TRIAL = "Trial"
    """A rung runs on one canary, and is watched; all other pods run without speculation."""
    STABLE = "Stable"
    """A rung stayed up, and all pods run it."""
    SPENT = "Spent"
    """Every rung failed, or none helps: without speculation until a person or a new version comes."""


class Breaker(StrEnum):
    """Closed: engines speculate. Open: they do not, until the ladder found what stays up."""

    CLOSED = "Closed"
    OPEN = "Open"


class DeathStatus(ApiModel):
    """One end, or standstill, of an engine."""

    at: Timestamp = Field(description="When.")
    pod: str = Field(description="Pod.")
    kind: str = Field(description="Crash, OutOfMemory, Hang, NeverReady or Evicted.")
    fingerprint: str = Field(description="A known signature's name, or the same digits for two ends of one kind.")
    title: str = Field(default="", description="What was found in its last lines.")
    incident: str = Field(default="", description="Name of its record (`paceline incidents show`).")
    lived_seconds: int | None = Field(default=None, description="Since the container's start.")
    counts: bool = Field(default=False, description="Towards the breaker: a speculating pod's, not answered yet.")


class SafetyStatus(ApiModel):
    """What is done about engines that crash."""

    breaker: Breaker = Field(default=Breaker.CLOSED, description="Open: pods boot without speculation.")
    phase: Phase = Field(default=Phase.REST, description="Where the ladder is.")
    rung: str = Field(default="", description="The remedy in trial, or in force.")
    changes: list[BootField] = Field(default_factory=list, max_length=16, description="What it changes in the spec.")
    began_at: Timestamp | None = Field(default=None, description="When the breaker opened, or the last rung failed.")
    since: Timestamp | None = Field(default=None, description="Since when an engine under the rung is ready.")
    tried: list[str] = Field(default_factory=list, max_length=16, description="Rungs that failed, in order.")
    fault: str = Field(default="", description="Fingerprint of what the ladder is climbed for.")
    evidence: str = Field(default="", description="What opened the breaker.")
    lived_seconds: list[int] = Field(
        default_factory=list, max_length=16, description="How long engines lived that died of it."
    )
    acceptance_permille: list[int] = Field(
        default_factory=list, max_length=32, description="Share accepted up to position 1, 2, ... before it, x1000."
    )
    engine: str = Field(default="", description="Engine that it is about: another one begins anew.")
    deaths: list[DeathStatus] = Field(default_factory=list, max_length=MAX_DEATHS, description="Newest first.")
    seen: list[str] = Field(
        default_factory=list, max_length=MAX_SEEN, description="Ends of containers that were answered: pod UID/number."
    )
    restarting: list[str] = Field(default_factory=list, max_length=64, description="UIDs of hung pods to be deleted.")
    restarts: list[Timestamp] = Field(
        default_factory=list, max_length=MAX_RESTARTS, description="When hung pods were deleted, newest first."
    )
    retried: str = Field(
        default="", max_length=256, description="Value of the annotation paceline.dev/retry when last seen."
    )
