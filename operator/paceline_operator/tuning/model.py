"""The values that travel through the tuner: what it is told (Settings, Engine), what it remembers (Memory), what it
answers (Step).

All frozen. Times are seconds of a monotonic clock given by the caller; goodput is tokens per second of one engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline_engine.protocol import Policy, Samples, State, Verification
from paceline_operator.api.conditions import Reason
from paceline_operator.api.speculation import AdaptiveVerification, Method
from paceline_operator.api.status import Tier
from paceline_operator.api.tuning import TuningMode


@dataclass(frozen=True)
class Settings:
    """What the spec asks of the tuner."""

    mode: TuningMode
    method: Method
    ladder: tuple[int, ...]
    """Candidate ks, descending, 0 included."""
    max_num_seqs: int
    boot_table: tuple[int, ...]
    """Dense table of the seed schedule: in force until the first push."""
    manual_table: tuple[int, ...] | None
    interval_seconds: float
    min_gain: float
    """Fraction: 0.01 is 1 %."""
    probing: bool
    probe_share: float
    """Fraction of steps that bursts may take once a load is observed."""
    tpot_limit_seconds: float | None = None
    ttft_limit_seconds: float | None = None
    """Of the 95th percentile of the time to first token: an observed guard, not a constraint of the solver."""
    adaptive_verification: AdaptiveVerification = AdaptiveVerification.AUTO
    """Disabled: engines that booted with AV verify all. Otherwise measurement decides."""
    off_step_seconds: Mapping[int, float] = field(default_factory=dict)
    """Load bucket -> step seconds of an engine without a drafter, from an experiment or a profile."""
    profile: Profile | None = None
    """What was learnt under the same key before."""
    fixed: str = ""
    """Why engines are given no schedule, so that k is one for all loads; empty where they are given one."""


@dataclass(frozen=True)
class Profile:
    """Cost and acceptance learnt before, under the same key (GPU, TP, model and draft digests, engine version, graphs).

    A prior: it counts for half of each minimum, so that live samples confirm it before anything is decided.
    """

    step_seconds: Mapping[tuple[int, int], float]
    """(load bucket, k) -> mean step seconds."""
    survival: Mapping[int, tuple[float, ...]]
    """k -> share of request-steps whose draft was accepted up to position 1..k."""
    adaptive_loads: tuple[int, ...] = ()
    """Load buckets where AV was measured to pay."""


@dataclass(frozen=True)
class Engine:
    """One engine as this pass saw it: an answer (state, samples) or a failure with its reason."""

    name: str
    state: State | None = None
    samples: Samples | None = None
    failure: Reason | None = None
    failure_message: str = ""
    ttft_p95_seconds: float | None = None
    """Over the last period; None = unknown."""
    counters: Mapping[str, float] | None = None
    """vLLM's own series by name, summed over labels, of an engine that serves without the plugin (PluginAbsent)."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One k at one load: the arithmetic behind a decision."""

    k: int
    goodput: Interval
    step_seconds: Interval
    acceptance_length: Interval
    """Tokens a request gets per step, 1 = nothing accepted."""
    steps: int
    """Effective decode steps that the cost rests on; 0 = borrowed from neighbours."""
    firing_rate: float | None
    survival: tuple[float, ...]
    """Share of request-steps whose draft was accepted up to position 1..k."""
    borrowed: bool
    """True where cost or acceptance come from neighbouring cells or the prior, not from this cell."""
    acceptance_known: bool = True
    """False where the engine tells of no drafts: the length is then tokens over request-steps of this load alone."""


@dataclass(frozen=True, slots=True)
class BucketView:
    """What is known at one load bucket, and what follows."""

    load: int
    k: int
    recommended_k: int
    observed: bool
    """Every ladder k has (or, once, had) its minimum count here, or is far below what was measured."""
    candidates: Sequence[Candidate]


@dataclass(frozen=True)
class Decision:
    """A change of the k in force at the load that is there, and why."""

    reason: Reason
    """Load, Acceptance, Cost, TpotLimit, Manual."""
    message: str
    load: int
    from_k: int
    to_k: int
    generation: int
    evidence: BucketView | None
    """The candidates at that load: None for Manual."""
    verification: Verification | None = None
    """How drafts are verified from now on, where that is what changed (from_k may then equal to_k)."""


@dataclass(frozen=True)
class Exploration:
    """What trying other ks (and other ways to verify) cost, over about the last hour."""

    step_share: float = 0.0
    """Of decode steps, settling steps included."""
    time_share: float = 0.0
    """Of decode time, settling included."""
    tokens_lost: float = 0.0
    """That the k in force would have given more in that time; negative where what was tried was better."""
    quarantined: tuple[tuple[int, int], ...] = ()
    """(load bucket, k) that are far below the k in force and are tried rarely."""


@dataclass(frozen=True)
class VerificationView:
    """What is known of adaptive verification at one load."""

    load: int
    mode: Verification
    k: int
    cap: int | None
    """Draft tokens verified a step at most, where that is what the mode is."""
    goodput: Interval
    windows: int
    gain: Interval
    """Goodput over that of verifying all at the best k, as a ratio."""


@dataclass(frozen=True)
class Restarts:
    """What the tuner knows of what only a restart or a person can do."""

    without_drafter: Interval | None = None
    """Goodput in force over that of an engine without a drafter over the last hours, where the interval's upper end is
    below 1 and nearly all of their decode time is covered."""
    off_for_long: bool = False
    """k was 0 for nearly all decode time of the last hours."""
    ttft_lowered: int | None = None
    """Steps of the ladder by which k is lowered while the time to first token exceeds its limit all the same."""


@dataclass(frozen=True)
class Memory:
    """What one serving's tuner carries from pass to pass.

    Lost with the process and rebuilt from the engines' own history: an absent cursor makes a plugin send everything
    since its boot.
    """

    cursors: Mapping[str, str] = field(default_factory=dict)
    """Engine name -> cursor for its next `GET /samples`."""
    state: object = None
    """The tuner's own (tuning.decide.TunerState); opaque to callers."""


@dataclass(frozen=True)
class Step:
    """Answer of one pass of the tuner."""

    memory: Memory
    reason: Reason
    """Why the table is what it is now: Observing, ObserveOnly, Manual, Load, Acceptance, Cost, Incumbent, TpotLimit,
    NotAcknowledged, RestartTier, Holding."""
    message: str
    holding: bool
    """True: k holds because what it needs is missing; metrics_reason says which."""
    metrics_reason: Reason
    metrics_message: str
    tier: Tier
    tiers: Mapping[str, tuple[Tier, str]]
    """Engine name -> its tier and, where not Live, why."""
    table: tuple[int, ...]
    """Dense table that should be in force after this pass."""
    recommended_table: tuple[int, ...] | None
    """What mode Auto would set; None where nothing is known yet."""
    generation: int
    """Generation of `table` (0 = the boot table, nothing pushed)."""
    policy: Policy | None
    """To push now to every name in `push_to`; None = nothing to push."""
    push_to: tuple[str, ...]
    acknowledged: tuple[str, ...]
    """Engines that already run `generation`."""
    decisions: tuple[Decision, ...]
    """Made in this pass, oldest first (empty in most passes)."""
    load: int | None
    """Load bucket of the present load, sampling requests of one engine; None = idle or unknown."""
    k: int | None
    """table[load]."""
    buckets: tuple[BucketView, ...]
    ratio_to_k0: Interval | None
    """Goodput of the k in force over that of k=0 in the same engines at the loads seen lately; None = not measured."""
    generations: Mapping[str, int] = field(default_factory=dict)
    """Engine name -> generation in force there; engines that do not answer are absent."""
    k_by_engine: Mapping[str, int] = field(default_factory=dict)
    """Engine name -> k its own table gives at the present (or, idle, the last) load."""
    ratio_to_no_drafter: Interval | None = None
    """Goodput in force over that of an engine without a drafter; None = no plain pods."""
    verification: Verification | None = None
    """How drafts are verified; None where no engine booted with AV, or not all did."""
    verifications: tuple[VerificationView, ...] = ()
    exploration: Exploration = field(default_factory=Exploration)
    contexts: Mapping[int, float] = field(default_factory=dict)
    """Context bucket -> share of decode time lately; costs shown are for this mix."""
    restarts: Restarts = field(default_factory=Restarts)
    errors: tuple[str, ...] = ()
    """Links of the pass that failed and were left out: bugs, to be logged and counted. Everything else went on."""
