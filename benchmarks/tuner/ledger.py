"""What a run spent on looking around: time at other ks than the one it settled on, and the tokens that this cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

from paceline_operator.replay.courses import STEADY_SECONDS
from paceline_operator.replay.world import Run, Scenario


@dataclass
class Ledger:
    """Sums over the last five minutes of visits, and bursts over all the time."""

    seconds: float = 0.0
    elsewhere: float = 0.0
    """At another k than the one that was there most of those five minutes."""
    tokens: float = 0.0
    """What that one gives in all the time."""
    lost: float = 0.0
    """Of these, what the time elsewhere cost. Negative where the others were better."""
    whole: float = 0.0
    bursts: float = 0.0
    """Seconds of the engine's probe bursts, of `whole`."""

    def add(self, other: Ledger) -> None:
        """Count what `other` counted too."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def shares(self) -> dict[str, float]:
        """In percent."""
        return {
            "elsewhere_pct": round(100 * self.elsewhere / self.seconds, 3) if self.seconds else 0.0,
            "elsewhere_cost_pct": round(100 * self.lost / self.tokens, 3) if self.tokens else 0.0,
            "burst_pct": round(100 * self.bursts / self.whole, 3) if self.whole else 0.0,
        }


def ledger(scenario: Scenario, run: Run) -> Ledger:
    """Of one run."""
    found = Ledger()
    ends = list(accumulate(visit.seconds for visit in scenario.visits))
    by_visit: dict[int, dict[int, float]] = {}
    for window in run:
        found.whole += sum(window.seconds.values())
        found.bursts += sum(time for k, time in window.seconds.items() if k != window.table_k)
        if window.start >= ends[window.visit] - STEADY_SECONDS:
            spent = by_visit.setdefault(window.visit, {})
            for k, time in window.seconds.items():
                spent[k] = spent.get(k, 0.0) + time
    for index, spent in by_visit.items():
        _count(found, spent, scenario.visits[index].rates)
    return found


def _count(found: Ledger, spent: Mapping[int, float], rates: Mapping[int, float]) -> None:
    main, seconds = max(spent, key=lambda k: spent[k]), sum(spent.values())
    found.seconds += seconds
    found.tokens += rates[main] * seconds
    for k, time in spent.items():
        if k != main:
            found.elsewhere += time
            found.lost += (rates[main] - rates[k]) * time
