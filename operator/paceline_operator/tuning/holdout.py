"""Engines without a drafter beside speculating ones: what the same load gives there.

The only live source of `ratioToNoDrafter`: k=0 in a speculative engine is another machine (a draft pass is still paid,
and graphs and memory differ; vllm#53426). An experiment or a profile may stand in with step times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline_engine.protocol import CostCell, State
from paceline_operator.tuning.baseline import Running, added, bounds
from paceline_operator.tuning.model import Interval
from paceline_operator.tuning.timing import robust_mean

HISTORY_HALF_LIFE_SECONDS = 3600.0
PROPOSE_SECONDS = 1800.0
"""Decode time for which it must have been so: a restart costs minutes, and traffic comes back."""
PROPOSE_SHARE = 0.9
"""Of the decode time of the last hours that the loads in question had."""


@dataclass(frozen=True)
class History:
    """Decode seconds by load bucket over the last hours, and of these, those at k=0."""

    seconds: Mapping[int, float] = field(default_factory=dict)
    off_seconds: float = 0.0


def is_without_drafter(state: State) -> bool:
    """Whether an engine drafts nothing because it was booted so."""
    return state.capabilities.max_k == 0


def step_seconds(windows: Iterable[Iterable[CostCell]]) -> dict[int, float]:
    """Mean seconds of decode-only steps by load bucket in the windows of engines without a drafter."""
    sums: dict[int, list[float]] = {}
    for window in windows:
        for cell in window:
            if not cell.prompt and (kept := robust_mean(cell)):
                total = sums.setdefault(cell.load, [0.0, 0.0])
                total[0] += kept[0] * kept[2]
                total[1] += kept[2]
    return {load: seconds / steps for load, (seconds, steps) in sums.items()}


def compared(
    running: Mapping[int, Running], goodput: Mapping[int, tuple[int, float, float]], off: Mapping[int, float]
) -> Mapping[int, Running]:
    """One more window: `goodput` by load is (k in force, tokens a second, mean requests) of an engine with a drafter,
    `off` the step seconds of one without."""
    for load, (k, rate, requests) in goodput.items():
        if off.get(load, 0.0) > 0 and rate > 0 and requests > 0:
            running = added(running, load, k, math.log(rate * off[load] / requests))
    return running


def aged(past: History, decoded: Mapping[int, float], table: tuple[int, ...], seconds: float) -> History:
    """`past`, `seconds` older, and the decode seconds by load of a pass."""
    keep = 0.5 ** (seconds / HISTORY_HALF_LIFE_SECONDS)
    total = {load: spent * keep for load, spent in past.seconds.items() if spent * keep > 1.0}
    for load, spent in decoded.items():
        total[load] = total.get(load, 0.0) + spent
    off = sum(spent for load, spent in decoded.items() if load < len(table) and table[load] == 0)
    return History(total, past.off_seconds * keep + off)


def better_without(running: Mapping[int, Running], history: History) -> Interval | None:
    """Mean ratio to an engine without a drafter, over the loads of the last hours, where the interval's upper end is
    below 1 and those loads are known; None otherwise."""
    if not running or (total := sum(history.seconds.values())) < PROPOSE_SECONDS:
        return None
    known = {load: found for load, one in running.items() if load in history.seconds and (found := bounds(one))}
    covered = sum(history.seconds[load] for load in known)
    if covered < PROPOSE_SHARE * total:
        return None
    mean = sum(history.seconds[load] * found[0] for load, found in known.items()) / covered
    half = sum(history.seconds[load] * found[1] for load, found in known.items()) / covered
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half)) if mean + half < 0 else None


def off_for_long(history: History) -> bool:
    """Whether k was 0 for nearly all decode time of the last hours."""
    total = sum(history.seconds.values())
    return total >= PROPOSE_SECONDS and history.off_seconds >= PROPOSE_SHARE * total
