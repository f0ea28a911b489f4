"""What a run was worth, on the numbers of the file and without noise, and the cases and the sum of many runs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from statistics import fmean
from typing import Any

from paceline_operator.replay.courses import STEADY_SECONDS, Course
from paceline_operator.replay.world import Run, Scenario

LEFT_OUT_SECONDS = 60.0
"""First of a run, and first after a workload switch: left out of the comparison with fixed ks."""
NOTABLE_GAIN_PCT = 2.0
"""Gain of the oracle over the best fixed k below which the share that was kept says nothing."""
WITHIN_PCT = 2.0


@dataclass
class Tally:
    """Sums over windows of one load, or of a whole run. Tokens are true ones."""

    seconds: float = 0.0
    got: float = 0.0
    oracle: float = 0.0
    steady_seconds: float = 0.0
    steady_got: float = 0.0
    steady_oracle: float = 0.0
    changes: int = 0
    """Of the table's k at this load, at steady state."""
    later_seconds: float = 0.0
    """Without the first minutes, here and below."""
    later_got: float = 0.0
    later_oracle: float = 0.0
    fixed: dict[int, float] = field(default_factory=dict)
    """Tokens of each k, had it been there all the time."""
    below_off: float = 0.0
    """Seconds with a k in the table that is slower than k=0."""
    bursts_below_off: float = 0.0
    """Seconds of bursts of other ks that are slower than k=0."""

    def add(self, other: Tally) -> None:
        """Count what `other` counted too."""
        for name, value in vars(other).items():
            if name == "fixed":
                for k, tokens in other.fixed.items():
                    self.fixed[k] = self.fixed.get(k, 0.0) + tokens
            else:
                setattr(self, name, getattr(self, name) + value)


def tallies(scenario: Scenario, run: Run) -> dict[int, Tally]:
    """By load."""
    found: dict[int, Tally] = {}
    switched, workload, past = 0.0, scenario.visits[0].workload, (-1, -1)
    ends = list(accumulate(visit.seconds for visit in scenario.visits))
    for window in run:
        visit = scenario.visits[window.visit]
        if visit.workload != workload:
            switched, workload = window.start, visit.workload
        rates, best = visit.rates, max(visit.rates.values())
        seconds = sum(window.seconds.values())
        got = sum(rates[k] * time for k, time in window.seconds.items())
        tally = found.setdefault(visit.load, Tally())
        tally.seconds += seconds
        tally.got += got
        tally.oracle += best * seconds
        if window.start >= ends[window.visit] - STEADY_SECONDS:
            tally.steady_seconds += seconds
            tally.steady_got += got
            tally.steady_oracle += best * seconds
            tally.changes += past[0] == window.visit and past[1] != window.table_k
        past = (window.visit, window.table_k)
        if window.start >= switched + LEFT_OUT_SECONDS:
            tally.later_seconds += seconds
            tally.later_got += got
            tally.later_oracle += best * seconds
            for k, rate in rates.items():
                tally.fixed[k] = tally.fixed.get(k, 0.0) + rate * seconds
            slower = {k for k, rate in rates.items() if rate < rates.get(0, 0.0)}
            tally.below_off += seconds if window.table_k in slower else 0.0
            tally.bursts_below_off += sum(window.seconds.get(k, 0.0) for k in slower - {window.table_k})
    return found


@dataclass(frozen=True)
class Case:
    """One row of the result; the fields are the JSON's. Percentages and ratios are means over runs."""

    table_id: str
    workload: str
    load: int | None
    """None: all loads of a grid together."""
    steady_regret_pct: float
    regret_pct: float
    oracle_ratio: float
    best_fixed_k: int
    ratio_to_best_fixed: float
    oracle_gain_pct: float
    gain_kept_pct: float | None
    time_below_off_pct: float | None
    bursts_below_off_pct: float | None
    changes_per_hour: float
    loads: tuple[Mapping[str, float], ...] | None = None
    """Of a grid: each load by itself."""

    def json(self) -> dict[str, Any]:
        """Without what does not apply."""
        return {name: value for name, value in asdict(self).items() if name != "loads" or value is not None}


def cases(course: Course, runs: Sequence[Mapping[int, Tally]]) -> list[Case]:
    """One for each load of a table's course, one for a grid's."""
    whole = [_sum(run.values()) for run in runs]
    best = [max(total.fixed, key=lambda k: (total.fixed[k], -k)) for total in whole]
    everywhere = _sum(whole).fixed
    best_fixed_k = max(everywhere, key=lambda k: (everywhere[k], -k))
    name = (course.table_id, course.workload)
    if course.by_load:
        return [
            _case(*name, load, [(run[load], k) for run, k in zip(runs, best, strict=True) if load in run], best_fixed_k)
            for load in course.loads
            if any(load in run for run in runs)
        ]
    loads = tuple(
        {"load": load, **_at(load, [run[load] for run in runs if load in run])}
        for load in course.loads
        if any(load in run for run in runs)
    )
    return [_case(*name, None, list(zip(whole, best, strict=True)), best_fixed_k, loads)]


def overall(found: Sequence[Case]) -> dict[str, float | int | None]:
    """Means and worsts over cases."""
    steady, regret = [case.steady_regret_pct for case in found], [case.regret_pct for case in found]
    return {
        "cases": len(found),
        "steady_mean_regret_pct": round(fmean(steady), 4) if found else None,
        "steady_worst_regret_pct": max(steady, default=None),
        "mean_regret_pct": round(fmean(regret), 4) if found else None,
        "worst_regret_pct": max(regret, default=None),
        "within_2pct": sum(value <= WITHIN_PCT for value in steady),
    }


def _sum(parts: Iterable[Tally]) -> Tally:
    total = Tally()
    for part in parts:
        total.add(part)
    return total


def _case(
    table_id: str,
    workload: str,
    load: int | None,
    runs: Sequence[tuple[Tally, int]],
    best_fixed_k: int,
    loads: tuple[Mapping[str, float], ...] | None = None,
) -> Case:
    later = [(tally, k) for tally, k in runs if tally.later_seconds > 0]
    fixed = sum(tally.fixed[k] for tally, k in later)
    got, oracle = (sum(getattr(tally, name) for tally, _ in later) for name in ("later_got", "later_oracle"))
    gain_pct = 100 * (oracle / fixed - 1)
    has_off = all(0 in tally.fixed for tally, _ in later)
    return Case(
        table_id=table_id,
        workload=workload,
        load=load,
        steady_regret_pct=round(100 * (1 - fmean(tally.steady_got / tally.steady_oracle for tally, _ in runs)), 4),
        regret_pct=round(100 * (1 - fmean(tally.got / tally.oracle for tally, _ in runs)), 4),
        oracle_ratio=round(fmean(tally.got / tally.oracle for tally, _ in runs), 6),
        best_fixed_k=best_fixed_k,
        ratio_to_best_fixed=round(fmean(tally.later_got / tally.fixed[k] for tally, k in later), 6),
        oracle_gain_pct=round(gain_pct, 4),
        gain_kept_pct=round(100 * (got - fixed) / (oracle - fixed), 4) if gain_pct >= NOTABLE_GAIN_PCT else None,
        time_below_off_pct=_share("below_off", [tally for tally, _ in later]) if has_off else None,
        bursts_below_off_pct=_share("bursts_below_off", [tally for tally, _ in later]) if has_off else None,
        changes_per_hour=round(
            3600 * sum(tally.changes for tally, _ in runs) / sum(tally.steady_seconds for tally, _ in runs), 4
        ),
        loads=loads,
    )


def _at(load: int, runs: Sequence[Tally]) -> dict[str, float]:
    later = [tally for tally in runs if tally.later_seconds > 0]
    return {
        "oracle_ratio": round(fmean(tally.got / tally.oracle for tally in runs), 6),
        "oracle_ratio_after_first_minute": round(fmean(tally.later_got / tally.later_oracle for tally in later), 6),
        "steady_regret_pct": round(100 * (1 - fmean(tally.steady_got / tally.steady_oracle for tally in runs)), 4),
        "time_below_off_pct": _share("below_off", later),
        "bursts_below_off_pct": _share("bursts_below_off", later),
    }


def _share(name: str, runs: Sequence[Tally]) -> float:
    """Percent of the time without the first minutes."""
    return round(100 * fmean(getattr(tally, name) / tally.later_seconds for tally in runs), 4)
