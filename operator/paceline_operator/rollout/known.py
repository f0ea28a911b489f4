"""What proposals rest on, and a gain as an interval. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import BucketStatus, GoodputRow, VerificationRow
from paceline_operator.api.status_boots import BootLoad, BootRecord
from paceline_operator.history.load import Load
from paceline_operator.rollout import boots
from paceline_operator.rollout.proposal import Proposal

COVERED = 0.8
"""Of the busy time whose loads must be measured before a gain is one of the whole."""
LEAST_HOURS = 1.0
"""Of history, all pods together, before the distribution of loads says anything of tomorrow's."""


@dataclass(frozen=True)
class Known:
    """All that proposals rest on."""

    spec: ServingSpec
    """In force on the stable pods."""
    live: bool
    """k reaches the pods without a restart."""
    buckets: Sequence[BucketStatus] = ()
    """What was measured, by load."""
    plain: Mapping[int, BootLoad] = field(default_factory=dict)
    """Load bucket -> what an engine without a drafter gives there."""
    verified: Sequence[VerificationRow] = ()
    """Adaptive verification against verifying all."""
    without_drafter: Gain | None = None
    """Of an engine without a drafter over what is in force, where it is above 0 for sure."""
    off_for_long: bool = False
    """k was 0 for nearly all decode time of the last hours."""
    ttft_lowered: int | None = None
    """Steps of the ladder that k was lowered by, and the time to first token still exceeds its limit."""
    load: Load | None = None
    """None: proposals that rest on the distribution of loads are not made."""
    past: Sequence[BootRecord] = ()
    """Boots, the one in force first."""
    held: bool = False
    """Speculation was taken away for safety: only a retry that was asked for, or another engine version, brings it
    back."""
    restart_seconds: float | None = None
    """From a pod's start to its being ready, as observed. None: nothing is proposed."""
    pods: int = 1
    tokens_per_second: float = 0.0
    """Of all pods together, lately."""
    now: datetime | None = None

    def shares(self) -> Mapping[int, float]:
        """Load bucket -> share of the busy time; empty where too little is known of it."""
        running = self.load.running if self.load else None
        return running.busy() if running is not None and running.hours >= LEAST_HOURS else {}

    def rows(self) -> dict[int, dict[int, GoodputRow]]:
        """Load bucket -> k -> what was measured there, not borrowed."""
        rows = {one.from_requests: {row.k: row for row in one.candidates if not row.borrowed} for one in self.buckets}
        return {load: found for load, found in rows.items() if found}

    def given(self) -> dict[int, BootLoad]:
        """What the boot in force gives at each load: at its best k, or without a drafter."""
        if not self.spec.speculation.enabled:
            return dict(self.plain)
        return {one.from_requests: one for one in boots.best(self.buckets)}

    def proposal(
        self, changes: Mapping[str, object], reason: Reason, gain: Gain | None, evidence: str
    ) -> Iterator[Proposal]:
        """One, with what its restart costs."""
        seconds = self.restart_seconds or 0.0
        yield Proposal(
            changes=changes,
            reason=reason,
            gain_low=gain.low if gain else 0.0,
            restart_seconds=seconds,
            tokens_at_risk=seconds * self.tokens_per_second,
            evidence=evidence,
            gain=gain.value if gain else None,
            gain_high=gain.high if gain else None,
        )


@dataclass(frozen=True)
class Gain:
    """In goodput, as a fraction, with the ends of its interval."""

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{100 * self.value:+.1f} % goodput ({100 * self.low:+.1f} to {100 * self.high:+.1f})"


def over(shares: Mapping[int, float], new: Mapping[int, BootLoad], now: Mapping[int, BootLoad]) -> Gain | None:
    """Gain of `new` over `now` over the busy time; None where less than COVERED of it is known of both."""
    both = [load for load in shares if load in new and load in now and now[load].low_milli_tokens_per_second > 0]
    covered = sum(shares[load] for load in both)
    if covered < COVERED:
        return None

    def mean(above: str, below: str) -> float:
        ratios = (shares[load] * getattr(new[load], above) / getattr(now[load], below) for load in both)
        return float(sum(ratios) / covered - 1)

    value, low, high = (f"{end}_milli_tokens_per_second" for end in ("goodput", "low", "high"))
    return Gain(mean(value, value), mean(low, high), mean(high, low))
