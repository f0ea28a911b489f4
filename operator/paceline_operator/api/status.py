"""Status of a SpeculativeServing: what is in force, the numbers behind it, and the decisions.

Timestamps, never ages; milli-units in place of floats. An absent field is unknown.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paceline_operator.api.base import ApiModel, Timestamp
from paceline_operator.api.conditions import Conditions
from paceline_operator.api.learned import LearnedStatus
from paceline_operator.api.status_boots import BootField, BootRecord
from paceline_operator.api.status_cache import ModelCacheStatus
from paceline_operator.api.status_history import HistoryStatus
from paceline_operator.api.status_rollout import RolloutStatus
from paceline_operator.api.status_safety import SafetyStatus
from paceline_operator.api.status_scaling import ScalingStatus

MAX_K = 32
"""Largest k that a table row can say."""
K = Annotated[int, Field(ge=0, le=MAX_K)]


class TableRow(ApiModel):
    """From this many sampling requests on, draft k tokens."""

    from_requests: int = Field(ge=1, le=4096, description="First number of sampling requests that this row is for.")
    k: K = Field(description="Tokens to draft.")


class Tier(StrEnum):
    """How k reaches the pods: Live (the plugin acts), Restart (boot schedule only), Off (no drafter)."""

    LIVE = "Live"
    RESTART = "Restart"
    OFF = "Off"
    UNKNOWN = "Unknown"


class GoodputRow(ApiModel):
    """Measured numbers of one k at one load. Milli-units keep floats out of the API."""

    k: int = Field(description="Tokens drafted.")
    goodput_milli_tokens_per_second: int = Field(description="Accepted + bonus tokens per second of step time, x1000.")
    low_milli_tokens_per_second: int = Field(description="Lower end of the 95 % interval, x1000.")
    high_milli_tokens_per_second: int = Field(description="Upper end of the 95 % interval, x1000.")
    step_microseconds: int = Field(description="Mean decode step time.")
    acceptance_length_milli: int = Field(description="Tokens a request gets per step (1 = no draft accepted), x1000.")
    steps: int = Field(description="Decode steps that this rests on.")
    firing_rate_permille: int | None = Field(
        default=None, description="Request-steps that had a draft, x1000, where some methods have none."
    )
    survival_permille: list[int] = Field(
        default_factory=list,
        max_length=32,
        description="Request-steps whose draft was accepted up to position 1, 2, ... k, x1000.",
    )
    borrowed: bool | None = Field(
        default=None, description="True: cost or acceptance are those of neighbouring loads or the prior."
    )


class BucketStatus(ApiModel):
    """What is known at one load bucket."""

    from_requests: int = Field(description="Lower edge of the load bucket, sampling requests.")
    k: int = Field(description="k in force at this load.")
    recommended_k: int | None = Field(default=None, description="k that the measurements favour, where they differ.")
    observed: bool = Field(description="Every ladder k has its minimum count here.")
    candidates: list[GoodputRow] = Field(default_factory=list, max_length=16, description="Measured ks.")


class VerificationMode(StrEnum):
    """How drafts are verified. Two kinds of off: AbsentAtBoot, and All in an engine that booted with AV."""

    ABSENT_AT_BOOT = "AbsentAtBoot"
    ALL = "All"
    ADAPTIVE = "Adaptive"
    CAPPED = "Capped"
    MIXED = "Mixed"
    """Pods differ: see pods."""


class VerificationRow(ApiModel):
    """A measured way to verify at one load, against verifying all at the best k."""

    from_requests: int = Field(description="Lower edge of the load bucket, sampling requests.")
    mode: VerificationMode = Field(description="Adaptive or Capped.")
    k: int = Field(description="Tokens drafted.")
    cap_tokens: int | None = Field(default=None, description="Draft tokens verified a step at most, where Capped.")
    gain_permille: int = Field(description="Goodput over that of verifying all, x1000.")
    low_permille: int = Field(description="Lower end of the 95 % interval, x1000.")
    high_permille: int = Field(description="Upper end of the 95 % interval, x1000.")


class VerificationStatus(ApiModel):
    """Adaptive verification (AV) in the engines that answered last."""

    mode: VerificationMode = Field(description="In force, by the engines' own word.")
    cap_tokens: int | None = Field(default=None, description="Draft tokens verified a step at most, where Capped.")
    starved: bool = Field(default=False, description="Drafts are paid for and (almost) none is verified.")
    message: str = Field(default="", description="Why it is not switchable, or what went wrong.")
    measured: list[VerificationRow] = Field(default_factory=list, max_length=64, description="By load.")


class Cell(ApiModel):
    """A k at a load."""

    from_requests: int = Field(description="Lower edge of the load bucket, sampling requests.")
    k: int = Field(description="Tokens to draft.")


class ExplorationStatus(ApiModel):
    """What trying other ks, and other ways to verify, cost over about the last hour."""

    step_share_permille: int = Field(description="Share of decode steps, settling steps included, x1000.")
    time_share_permille: int = Field(description="Share of decode time, x1000.")
    tokens_lost: int = Field(description="Tokens that the k in force would have given more; negative: fewer.")
    quarantined: list[Cell] = Field(default_factory=list, max_length=64, description="Far below, and tried rarely.")


class ProposalStatus(ApiModel):
    """Something that only a restart or a person can do."""

    reason: str = Field(description="NoDrafter, DrafterPays, MaxTokens, TtftLimit, ... as in events.")
    message: str = Field(description="The numbers for it, as they were when it came up, and what a restart costs.")
    changes: list[BootField] = Field(default_factory=list, max_length=16, description="Fields of spec to change.")
    gain_permille: int | None = Field(default=None, description="Expected gain in goodput, x1000; absent: not known.")
    gain_low_permille: int | None = Field(default=None, description="Lower end of its interval, x1000.")
    gain_high_permille: int | None = Field(default=None, description="Upper end of its interval, x1000.")
    restart_seconds: int | None = Field(default=None, description="That one pod does not serve, as observed.")
    tokens_at_risk: int | None = Field(default=None, description="Tokens that the serving gives in that time.")


class DecisionRecord(ApiModel):
    """One change of the k in force, or of how drafts are verified, and why."""

    at: Timestamp = Field(description="When.")
    reason: str = Field(description="Load, Acceptance, Cost, TpotLimit, TtftLimit, Baseline, ... as in events.")
    message: str = Field(description="The goodputs and intervals that made it.")
    requests: int = Field(default=0, description="Load bucket it was decided at, sampling requests.")
    from_k: int = Field(description="k before.")
    to_k: int = Field(description="k after.")
    generation: int = Field(description="Policy generation that carries it.")
    verification: VerificationMode | None = Field(default=None, description="The new way to verify, where it changed.")
    candidates: list[GoodputRow] = Field(
        default_factory=list, max_length=16, description="What was known of each k then: of the newest five decisions."
    )


class PodStatus(ApiModel):
    """One engine pod as last seen."""

    name: str = Field(description="Pod.")
    tier: Tier = Field(description="How k reaches it.")
    generation: int = Field(default=0, description="Policy generation in force.")
    verification: VerificationMode | None = Field(default=None, description="How it verifies drafts.")
    message: str = Field(default="", description="Why it is not Live, or not answering.")


class ServingStatus(ApiModel):
    """Observed state. Timestamps, never ages; measured numbers are refreshed with a decision or a change above 5 %."""

    observed_generation: int = Field(default=0, description="Generation of the spec that this status is about.")
    conditions: Conditions = Field(
        default_factory=list,
        description="Ready (= Accepted and Available), MetricsAvailable, SpeculationEffective, Tuned, ...",
    )
    replicas: int = Field(default=0, description="Pods that exist.")
    ready_replicas: int = Field(default=0, description="Pods that are ready.")
    selector: str = Field(default="", description="Label selector of the pods, for /scale.")
    tier: Tier = Field(default=Tier.UNKNOWN, description="Lowest tier among the pods.")
    k: str = Field(default="", description="k in force at the present load; a range where pods differ.")
    policy_generation: int = Field(default=0, description="Generation of the table pushed last.")
    acknowledged_pods: int = Field(default=0, description="Pods that confirmed it.")
    table: list[TableRow] = Field(default_factory=list, max_length=64, description="The table in force.")
    recommended_table: list[TableRow] = Field(
        default_factory=list, max_length=64, description="What mode Auto would set, while Observing or in mode Observe."
    )
    load_requests: int | None = Field(
        default=None, description="Load bucket of the present load, sampling requests a pod."
    )
    ratio_to_k0_permille: int | None = Field(
        default=None, description="Goodput in force over that of k=0 in the same engines, x1000. Absent: not measured."
    )
    ratio_to_no_drafter_permille: int | None = Field(
        default=None,
        description="Goodput in force over that of an engine without a drafter, x1000. Absent: unknown, as without "
        "plain pods (routing.plain).",
    )
    verification: VerificationStatus | None = Field(default=None, description="How drafts are verified.")
    scaling: ScalingStatus | None = Field(default=None, description="Replicas, where something scales them.")
    exploration: ExplorationStatus | None = Field(default=None, description="What exploration costs.")
    history: HistoryStatus | None = Field(default=None, description="The load of the hours before.")
    model_cache: ModelCacheStatus | None = Field(default=None, description="What is on the claim of model.cache.")
    rollout: RolloutStatus = Field(
        default_factory=RolloutStatus, description="How the present template came to be, and what was tried."
    )
    safety: SafetyStatus = Field(
        default_factory=SafetyStatus, description="What is done about engines that crash or stand still."
    )
    proposals: list[ProposalStatus] = Field(
        default_factory=list, max_length=8, description="What a restart or a person could do."
    )
    boots: list[BootRecord] = Field(
        default_factory=list, max_length=4, description="How speculation was booted, the one in force first."
    )
    buckets: list[BucketStatus] = Field(default_factory=list, max_length=24, description="What is known, by load.")
    learned: LearnedStatus | None = Field(default=None, description="What a SpeculationProfile is made of.")
    decisions: list[DecisionRecord] = Field(default_factory=list, max_length=20, description="Newest first.")
    pods: list[PodStatus] = Field(default_factory=list, max_length=64, description="Engine pods, the first 64 by name.")
