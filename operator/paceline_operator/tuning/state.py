"""What the tuner carries from pass to pass, and how a new process takes over what the engines already run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from paceline_engine.protocol import Policy, State, Verification, VerificationPolicy
from paceline_operator.api.speculation import Method
from paceline_operator.tuning import acceptance, cost, direct
from paceline_operator.tuning.acceptance import Acceptance, Array
from paceline_operator.tuning.account import Account
from paceline_operator.tuning.arms import Verified
from paceline_operator.tuning.baseline import Baseline
from paceline_operator.tuning.cost import Cost
from paceline_operator.tuning.direct import Direct
from paceline_operator.tuning.engines import Offer
from paceline_operator.tuning.guard import Ttft
from paceline_operator.tuning.holdout import History
from paceline_operator.tuning.load import Load, buckets_of
from paceline_operator.tuning.model import BucketView, Engine, Interval, Profile, Settings
from paceline_operator.tuning.moves import Decided


@dataclass(frozen=True, slots=True)
class Read:
    """How far one engine's samples are in the beliefs."""

    boot_id: str
    uptime: float
    seen: float
    """When it answered last, in the caller's seconds."""


@dataclass(frozen=True)
class Published:
    """The measured numbers as status shows them: taken with a decision, else at most once a minute."""

    at: float
    buckets: tuple[BucketView, ...]
    ratio_to_k0: Interval | None
    ratio_to_no_drafter: Interval | None
    load: int | None


@dataclass(frozen=True)
class TunerState:
    """Beliefs, decisions and what was pushed. Opaque to callers."""

    key: tuple[Method, tuple[int, ...], int]
    """Boot configuration that all of this is about; another one starts anew."""
    now: float
    acceptance: Acceptance
    cost: Cost
    direct: Direct
    base: tuple[int, ...]
    """Table of the loads that are not decided: the boot table, or what the engines ran when this process started."""
    table: tuple[int, ...]
    """Table that should be in force."""
    profile: Profile | None = None
    """What the beliefs started from."""
    policy: Policy | None = None
    """Pushed last (or found in force at the start)."""
    read: Mapping[str, Read] = field(default_factory=dict)
    """By engine; forgotten an hour after it was seen last."""
    silent: Mapping[str, float] = field(default_factory=dict)
    """Engine -> seconds for which it had running requests but made no step."""
    decided: Mapping[int, Decided] = field(default_factory=dict)
    leaning: Mapping[int, int] = field(default_factory=dict)
    """Load bucket that was not observed yet -> k that was better by far than its entry."""
    auto: tuple[int, ...] = ()
    """The table of mode Auto, whichever mode is in force."""
    views: Mapping[int, BucketView] = field(default_factory=dict)
    """By load bucket; those of loads that are not there may be a minute old."""
    shown: Mapping[int, Array] = field(default_factory=dict)
    """Log goodput by ladder position, as in `views`."""
    waited: Mapping[int, float] = field(default_factory=dict)
    """Load bucket -> bursts that were to get its missing counts."""
    quarantine: Mapping[tuple[int, int], float] = field(default_factory=dict)
    """(load bucket, k) far below the k in force -> since when."""
    offer: Offer = field(default_factory=Offer)
    verified: Verified = field(default_factory=Verified)
    baseline: Baseline = field(default_factory=Baseline)
    history: History = field(default_factory=History)
    held: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    """Load bucket that fell below its baseline -> until when k stays 0, and for how long that was."""
    ttft: Ttft = field(default_factory=Ttft)
    account: Account = field(default_factory=Account)
    load: Load = field(default_factory=Load)
    lately: Mapping[int, float] = field(default_factory=dict)
    """Load bucket -> decode time, forgotten over minutes."""
    in_force: tuple[int, int] | None = None
    """Load and k of the last decision or start: what a change of the k in force is told against."""
    moving: tuple[int, int] = (-1, 0)
    """k that the load asks for, and in how many passes in a row."""
    probe_wish: int = 0
    """Passes in a row that wished for other bursts than the ones pushed."""
    unacknowledged: int = 0
    """Passes in a row in which some engine did not run the policy pushed before."""
    published: Published | None = None
    passes: int = 0


def fresh(settings: Settings, live: Sequence[Engine], now: float) -> TunerState:
    """State at the start of a process: the newest table among the engines is the incumbent."""
    loads = buckets_of(settings.max_num_seqs)
    state = TunerState(
        key=key(settings),
        now=now,
        acceptance=acceptance.empty(settings.ladder, settings.method),
        cost=cost.empty(loads, settings.ladder),
        direct=direct.empty(loads, settings.ladder),
        base=settings.boot_table,
        table=settings.boot_table,
        auto=settings.boot_table,
    )
    newest = max((engine.state for engine in live if engine.state), key=lambda found: found.generation, default=None)
    if newest is None or newest.generation == 0 or len(newest.table) != len(settings.boot_table):
        return state
    base = newest.table if set(newest.table) <= set(settings.ladder) else settings.boot_table
    return replace(
        state,
        base=base,
        auto=base,
        table=newest.table,
        policy=Policy(
            generation=newest.generation,
            table=newest.table,
            probe=newest.probe,
            adaptive_verification=_verification(newest),
        ),
    )


def _verification(state: State) -> VerificationPolicy | None:
    """How a policy put an engine to verify; None where none did."""
    found = state.adaptive_verification
    if found is None or found.generation == 0:
        return None
    capped = found.mode is Verification.CAPPED and found.cap is not None
    if found.mode is Verification.CAPPED and not capped:
        return None
    return VerificationPolicy(mode=found.mode, cap=found.cap if capped else None)


@lru_cache(maxsize=1024)
def one(table: tuple[int, ...]) -> tuple[int, ...]:
    """A table of the same entries that all servings share: one takes 2 KB, and a serving has several."""
    return table


def key(settings: Settings) -> tuple[Method, tuple[int, ...], int]:
    """What beliefs and latches are about."""
    return settings.method, settings.ladder, settings.max_num_seqs
