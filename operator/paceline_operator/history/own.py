"""The operator's own readings of the engines, in place of a Prometheus. Pure.

Older time counts less, by half each HALF_LIFE_HOURS: what is kept is bounded by how many requests there can be, and a
habit of last week gives way to today's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline_engine.protocol import Gauges
from paceline_operator.api.conditions import Reason
from paceline_operator.history.load import Absence, Load, Source, distribution

HALF_LIFE_HOURS = 24.0
LONGEST_SECONDS = 60.0
"""That one reading stands for: longer gaps are time of which nothing is known."""
LEAST_SECONDS = 600.0
"""Of one pod, before anything is told."""
MAX_REQUESTS = 65_536
MAX_ENTRIES = 4_096
NEGLIGIBLE = 1e-3
"""Seconds: an entry that has faded to less is forgotten."""


@dataclass(frozen=True)
class Own:
    """Seconds by number of requests, faded; both bounded."""

    at: float | None = None
    """Of the last reading (monotonic)."""
    running: Mapping[int, float] = field(default_factory=dict)
    demand: Mapping[int, float] = field(default_factory=dict)


def observed(own: Own, gauges: Iterable[Gauges], now: float) -> Own:
    """`own` with a reading of the engines that answered at `now`, which stands for the time since the one before."""
    read = list(gauges)
    if own.at is None or not read:
        return Own(now, own.running, own.demand)
    passed = max(0.0, now - own.at)
    told = min(passed, LONGEST_SECONDS)
    fade = 0.5 ** (passed / (HALF_LIFE_HOURS * 3600))
    running = {requests: seconds * fade for requests, seconds in own.running.items()}
    demand = {requests: seconds * fade for requests, seconds in own.demand.items()}
    for one in read:
        _add(running, one.running, told)
    _add(demand, sum(one.running + one.waiting for one in read), told)
    return Own(now, _bounded(running), _bounded(demand))


def load(own: Own) -> Load | Absence:
    """What the readings come to."""
    running, demand = distribution(own.running), distribution(own.demand)
    if running is None or demand is None or demand.hours * 3600 < LEAST_SECONDS:
        text = f"the operator has looked at the engines for less than {LEAST_SECONDS / 60:.0f} minutes"
        return Absence(Reason.HISTORY_EMPTY, text)
    return Load(Source.OWN_SAMPLES, running, demand)


def _add(seconds: dict[int, float], requests: int, told: float) -> None:
    at = min(requests, MAX_REQUESTS)
    seconds[at] = seconds.get(at, 0.0) + told


def _bounded(seconds: dict[int, float]) -> dict[int, float]:
    kept = {requests: weight for requests, weight in seconds.items() if weight >= NEGLIGIBLE}
    if len(kept) <= MAX_ENTRIES:
        return kept
    return dict(sorted(kept.items(), key=lambda item: item[1])[-MAX_ENTRIES:])
