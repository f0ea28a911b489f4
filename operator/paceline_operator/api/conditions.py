"""Condition types and reasons of every kind. A reason reads the same in condition, event, log and metric label."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from paceline_operator.api.base import ApiModel, Timestamp


class ConditionType(StrEnum):
    """Ready = Accepted and Available; the others never make it False."""

    READY = "Ready"
    ACCEPTED = "Accepted"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    PREFLIGHT_PASSED = "PreflightPassed"
    MODEL_AVAILABLE = "ModelAvailable"
    METRICS_AVAILABLE = "MetricsAvailable"
    SPECULATION_EFFECTIVE = "SpeculationEffective"
    TUNED = "Tuned"
    PROFILE_APPLIED = "ProfileApplied"
    INTEGRATIONS_AVAILABLE = "IntegrationsAvailable"
    POD_SECURITY = "PodSecurity"
    ROLLED_BACK = "RolledBack"
    ROLLOUT_BLOCKED = "RolloutBlocked"
    REMEDY_IN_FORCE = "RemedyInForce"
    SCALING_ACTIVE = "ScalingActive"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"


class Reason(StrEnum):
    """Why. Grouped by the condition they explain."""

    # Accepted
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    OWNED_ARGUMENT = "OwnedArgument"
    INCOMPATIBLE = "Incompatible"
    LADDER_TOO_LONG = "LadderTooLong"
    CHILD_CONFLICT = "ChildConflict"
    # Available, Progressing, Ready
    REPLICAS_READY = "ReplicasReady"
    REPLICAS_UNAVAILABLE = "ReplicasUnavailable"
    SCALED_TO_ZERO = "ScaledToZero"
    UNSCHEDULABLE = "Unschedulable"
    CRASH_LOOP = "CrashLoop"
    OUT_OF_MEMORY = "OutOfMemory"
    ROLLING_OUT = "RollingOut"
    SETTLED = "Settled"
    NOT_ACCEPTED = "NotAccepted"
    APPLY_FAILED = "ApplyFailed"
    # IntegrationsAvailable
    KINDS_SERVED = "KindsServed"
    KIND_NOT_SERVED = "KindNotServed"
    KIND_FORBIDDEN = "KindForbidden"
    # PodSecurity
    RESTRICTED = "Restricted"
    WEAKENED = "Weakened"
    # Progressing and RolloutBlocked, and events about rollouts
    CANARY_STARTED = "CanaryStarted"
    CANARY_PROMOTED = "CanaryPromoted"
    CANARY_DISABLED = "CanaryDisabled"
    NO_CAPACITY = "NoCapacity"
    OUTSIDE_WINDOW = "OutsideWindow"
    BUDGET_SPENT = "BudgetSpent"
    # RolledBack, and what is found about a canary
    CANARY_GOOD = "CanaryGood"
    CANARY_UNJUDGED = "CanaryUnjudged"
    CANARY_NOT_READY = "CanaryNotReady"
    GOODPUT_LOST = "GoodputLost"
    TPOT_INCREASED = "TpotIncreased"
    TTFT_INCREASED = "TtftIncreased"
    REQUESTS_FAILED = "RequestsFailed"
    OUTPUT_CONTRACT = "OutputContract"
    # RemedyInForce, and events about engines that ended or stand still
    NO_FAULT = "NoFault"
    ENGINE_CRASHED = "EngineCrashed"
    ENGINE_HUNG = "EngineHung"
    ENGINE_REPLACED = "EngineReplaced"
    BREAKER_OPEN = "BreakerOpen"
    REMEDY_TRIED = "RemedyTried"
    REMEDY_FAILED = "RemedyFailed"
    STABLE_UNDER_CHANGE = "StableUnderChange"
    REMEDIES_SPENT = "RemediesSpent"
    REMEDY_LIFTED = "RemedyLifted"
    # PreflightPassed
    CHECKS_PASSED = "ChecksPassed"
    CHECKS_PENDING = "ChecksPending"
    CHECK_FAILED = "CheckFailed"
    # ModelAvailable
    MODEL_READY = "ModelReady"
    DOWNLOAD_PENDING = "DownloadPending"
    DOWNLOADING = "Downloading"
    DOWNLOAD_FAILED = "DownloadFailed"
    TOKEN_MISSING = "TokenMissing"  # noqa: S105 a reason
    MODEL_NOT_FOUND = "ModelNotFound"
    DISK_FULL = "DiskFull"
    DIGEST_MISMATCH = "DigestMismatch"
    SOURCE_UNSUPPORTED = "SourceUnsupported"
    CACHE_UNWRITABLE = "CacheUnwritable"
    # Events about children
    CHILD_CREATED = "ChildCreated"
    CHILD_CORRECTED = "ChildCorrected"
    CHILD_PRUNED = "ChildPruned"
    # Events about engines
    ENGINE_LOST = "EngineLost"
    ENGINE_RESTARTED = "EngineRestarted"
    # MetricsAvailable: each absence has its own reason, and each holds k
    METRICS_FOUND = "MetricsFound"
    NO_PODS = "NoPods"
    POD_NOT_ANSWERING = "PodNotAnswering"
    PLUGIN_ABSENT = "PluginAbsent"
    TOKEN_REFUSED = "TokenRefused"  # noqa: S105 a reason
    ENGINE_SERIES_MISSING = "EngineSeriesMissing"
    METRICS_STALE = "MetricsStale"
    MALFORMED_ANSWER = "MalformedAnswer"
    ENGINE_WARMING_UP = "EngineWarmingUp"
    # SpeculationEffective
    EFFECTIVE = "Effective"
    OFF_BY_DECISION = "OffByDecision"
    NO_DRAFTS_YET = "NoDraftsYet"
    NOT_SPECULATING = "NotSpeculating"
    METHOD_FELL_BACK = "MethodFellBack"
    SCHEDULE_DROPPED = "ScheduleDropped"
    K_IGNORED = "KIgnored"
    VERIFICATION_REFUSED = "VerificationRefused"
    COUNTERS_ABSENT = "CountersAbsent"
    DRAFTER_COLLAPSED = "DrafterCollapsed"
    ACCEPTANCE_SHIFTED = "AcceptanceShifted"
    GRAPHS_MISSED = "GraphsMissed"
    # Tuned, and decisions
    BOOT = "Boot"
    OBSERVING = "Observing"
    OBSERVE_ONLY = "ObserveOnly"
    MANUAL = "Manual"
    LOAD = "Load"
    ACCEPTANCE = "Acceptance"
    COST = "Cost"
    INCUMBENT = "Incumbent"
    TPOT_LIMIT = "TpotLimit"
    TTFT_LIMIT = "TtftLimit"
    BASELINE = "Baseline"
    ADAPTIVE_VERIFICATION = "AdaptiveVerification"
    NO_DRAFTER = "NoDrafter"
    DRAFTER_PAYS = "DrafterPays"
    METHOD_PAYS = "MethodPays"
    MAX_TOKENS = "MaxTokens"
    BOOT_TABLE = "BootTable"
    VERIFICATION_AT_BOOT = "VerificationAtBoot"
    GRAPH_MODE = "GraphMode"
    HOLDING = "Holding"
    RESTART_TIER = "RestartTier"
    NOT_ACKNOWLEDGED = "NotAcknowledged"
    # ProfileApplied
    KEY_MATCHES = "KeyMatches"
    KEY_MISMATCH = "KeyMismatch"
    KEY_UNKNOWN = "KeyUnknown"
    PROFILE_NOT_FOUND = "ProfileNotFound"
    PROFILE_INVALID = "ProfileInvalid"
    PROFILE_UNREADABLE = "ProfileUnreadable"
    # ScalingActive
    WITHIN_TARGET = "WithinTarget"
    ABOVE_TARGET = "AboveTarget"
    BELOW_TARGET = "BelowTarget"
    BETTER_K_FIRST = "BetterKFirst"
    STABILIZING = "Stabilizing"
    AT_MINIMUM = "AtMinimum"
    AT_MAXIMUM = "AtMaximum"
    PODS_PENDING = "PodsPending"
    FROZEN = "Frozen"
    FOREIGN_REPLICAS_WRITER = "ForeignReplicasWriter"
    SCALED_OBJECT_READY = "ScaledObjectReady"
    SCALED_OBJECT_NOT_READY = "ScaledObjectNotReady"
    # Suspended
    SUSPENDED = "Suspended"
    ACTIVE = "Active"
    # Complete, of experiments
    MEASURING = "Measuring"
    SERVING_NOT_FOUND = "ServingNotFound"
    ALL_MEASURED = "AllMeasured"
    PARTLY_MEASURED = "PartlyMeasured"
    NOTHING_MEASURED = "NothingMeasured"
    CANCELLED = "Cancelled"
    # History of the load: each absence has its own reason, and each holds proposals
    HISTORY_EMPTY = "HistoryEmpty"
    HISTORY_NAN = "HistoryNan"
    HISTORY_STALE = "HistoryStale"
    HISTORY_ERROR = "HistoryError"
    HISTORY_TIMEOUT = "HistoryTimeout"


class Condition(ApiModel):
    """As Kubernetes' metav1.Condition."""

    type: str = Field(min_length=1, max_length=316, description="What it is about.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    reason: str = Field(
        min_length=1,
        max_length=1024,
        pattern=r"^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
        description="Why, as a word for programs.",
    )
    message: str = Field(default="", max_length=32768, description="Why, for people.")
    last_transition_time: Timestamp = Field(description="When status changed last.")
    observed_generation: int = Field(default=0, ge=0, description="Generation of the spec that it is about.")


Conditions = Annotated[
    list[Condition],
    Field(max_length=24, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
]


class AcceptanceStatus(ApiModel):
    """Status of the kinds that are so far only judged, not acted on."""

    observed_generation: int = Field(default=0, description="Generation of the spec that this status is about.")
    conditions: Conditions = Field(default_factory=list, description="Accepted: whether the spec makes sense.")
