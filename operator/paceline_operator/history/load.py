"""What hours of load come to: how long how many requests were there, in a few quantiles and a share for each bucket."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from paceline_engine.protocol import load_bucket
from paceline_operator.api.conditions import Reason


class Source(StrEnum):
    """Who was asked."""

    PROMETHEUS = "Prometheus"
    OWN_SAMPLES = "OwnSamples"
    """The operator's own readings of the engines since it began to look after the serving."""


@dataclass(frozen=True)
class Distribution:
    """How long how many requests were there: quantiles weighted by time."""

    hours: float
    """Observed, all pods together where it is about one pod: two pods for three hours are six."""
    p50: int
    p90: int
    p99: int
    largest: int
    shares: Mapping[int, float]
    """Load bucket (lower edge; 0 = idle) -> share of the time; they sum to 1. Buckets never seen are absent."""

    def busy(self) -> Mapping[int, float]:
        """`shares` of the time in which there was any request; empty where there never was."""
        total = sum(share for load, share in self.shares.items() if load)
        return {load: share / total for load, share in self.shares.items() if load} if total > 0 else {}


@dataclass(frozen=True)
class Load:
    """The load of a serving over the hours before now."""

    source: Source
    running: Distribution
    """Requests running in one pod."""
    demand: Distribution
    """Requests running and waiting in all pods together."""


@dataclass(frozen=True)
class Absence:
    """Why there is no Load. Proposals that need one are not made."""

    reason: Reason
    """HistoryEmpty, HistoryNan, HistoryStale, HistoryError, HistoryTimeout."""
    message: str


def distribution(seconds: Mapping[int, float]) -> Distribution | None:
    """Of requests -> seconds with so many; None where no time is in it."""
    held = sorted((requests, weight) for requests, weight in seconds.items() if requests >= 0 and weight > 0)
    total = sum(weight for _, weight in held)
    if total <= 0:
        return None
    shares: dict[int, float] = {}
    for requests, weight in held:
        bucket = load_bucket(requests)
        shares[bucket] = shares.get(bucket, 0.0) + weight / total

    def quantile(share: float) -> int:
        reached = 0.0
        for requests, weight in held:
            reached += weight
            if reached >= share * total:
                return requests
        return held[-1][0]

    return Distribution(total / 3600, quantile(0.5), quantile(0.9), quantile(0.99), held[-1][0], shares)
