"""Status of a rollout: all that the next pass, or the next process, needs to carry it on."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from paceline_operator.api.base import ApiModel, Timestamp


class Phase(StrEnum):
    """Where the change of the pods' template is. Steady: there is none."""

    STEADY = "Steady"
    BLOCKED = "Blocked"
    """It may not start now: condition RolloutBlocked says why."""
    CANARY = "Canary"
    """One pod has the new template and is judged."""
    PROMOTING = "Promoting"
    """The canary was good: the other pods follow, one by one."""
    ROLLING = "Rolling"
    """Pods are replaced without a canary."""
    ROLLED_BACK = "RolledBack"
    """The canary was bad: the pods keep the template they had, until the spec changes or a retry is asked for."""


class CanaryStatus(ApiModel):
    """The canary that is there."""

    revision: str = Field(description="ControllerRevision with its template.")
    started_at: Timestamp = Field(description="When it was asked for.")
    in_place: bool = Field(default=False, description="It takes the place of one of the other pods: there was no room.")


class FailedRollout(ApiModel):
    """A template that was tried and taken back: it is not tried again until a retry is asked for."""

    revision: str = Field(description="ControllerRevision with the template.")
    fields: list[str] = Field(default_factory=list, max_length=16, description="Fields of spec that it changed.")
    reason: str = Field(description="Why it was taken back.")
    message: str = Field(default="", description="The numbers for it.")
    own: bool = Field(default=False, description="It was a proposal of the operator's own.")
    proposal: str = Field(default="", description="Which: its changes.")
    at: Timestamp = Field(description="When.")


class FieldChange(ApiModel):
    """One field that the operator changed on its own."""

    path: str = Field(description="Field of spec.")
    value: str = Field(description="Its value, as JSON; `null` takes the field away.")
    was: str = Field(
        description="What the spec said then, as JSON: where it says otherwise now, the user's word holds."
    )


class AppliedProposal(ApiModel):
    """A proposal that is laid over the spec (rollout.proposals Apply)."""

    changes: list[FieldChange] = Field(max_length=16, description="What it changes.")
    reason: str = Field(description="Why, as in status.proposals.")
    evidence: str = Field(default="", description="The numbers for it, as they were.")
    at: Timestamp = Field(description="When it was accepted.")


class RolloutStatus(ApiModel):
    """How the present template came to be, and what was tried."""

    phase: Phase = Field(default=Phase.STEADY, description="Where the change of the pods' template is.")
    revision: str = Field(default="", description="ControllerRevision of the stable pods.")
    target: str = Field(default="", description="ControllerRevision that the spec asks for, where it is another.")
    fields: list[str] = Field(
        default_factory=list, max_length=16, description="Fields of spec that caused the last rollout, or the present."
    )
    own: bool = Field(default=False, description="It is a proposal of the operator's own.")
    canary: CanaryStatus | None = Field(default=None, description="The canary that is there.")
    verdict: str = Field(default="", description="What was found about the last canary, or why there was none.")
    changed_at: Timestamp | None = Field(default=None, description="When the stable pods were last given a template.")
    failed: list[FailedRollout] = Field(default_factory=list, max_length=4, description="Taken back, newest first.")
    applied: list[AppliedProposal] = Field(default_factory=list, max_length=8, description="Proposals in force.")
    restarts: list[Timestamp] = Field(
        default_factory=list, max_length=128, description="When rollouts of the operator's own started, newest first."
    )
    no_capacity_at: Timestamp | None = Field(default=None, description="When a canary last found no room.")
    retried: str = Field(
        default="", max_length=256, description="Value of the annotation paceline.dev/retry when last seen."
    )
