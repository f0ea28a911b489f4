"""Which k at each load: score all, take the best, but stay unless the gain is beyond doubt; and the table from it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline_engine.protocol import MAX_K
from paceline_operator.tuning.goodput import Scores

STANDARD_ERRORS = 2.0
LEAST_ERRORS = 1.0
"""No band is narrower, but to k=0."""
OFF_FAVOUR = 0.5
"""Of min_gain, that k=0 may be believed to give less than the incumbent and still be taken: such a difference takes
hours to find, in which half of such ties would be below the baseline."""
CONFIRMATIONS = 2
"""Windows in a row that must ask for the same move."""


@dataclass(frozen=True)
class Choice:
    """The k that one window favours at one load, and the arithmetic."""

    k: int
    gain: float
    """Expected gain over the incumbent, as a fraction (0.16 = 16 %)."""
    band: float
    """Gain that a move must exceed."""
    limited: bool = False
    """The time-per-token limit decided."""


def choose(
    scores: Scores,
    incumbent: int,
    min_gain: float,
    restless: float = 0.0,
    limit_seconds: float | None = None,
    bounds: tuple[int, int] | None = None,
) -> Choice:
    """The best known k at a load, or the incumbent where the best is not better by more than the tie band.

    The band is max(min_gain, two standard errors of the difference), to k=0 less (_band); `restless`, the recent
    changes here (decaying), widens it, so that noise cannot make a cell flap. `limit_seconds` (time per output token)
    removes candidates; where it removes all, the fastest stays a candidate. Of several that are better, one within
    `bounds` (what the neighbouring loads have) is taken where that costs less than the noise, and k=0 where the best is
    not better than that by a standard error.
    """
    known = [k for k, there in zip(scores.ladder, scores.known.tolist(), strict=True) if there]
    if incumbent not in known:
        return Choice(incumbent, 0.0, math.inf)
    gains, errors = (dict(zip(scores.ladder, row, strict=True)) for row in scores.gains(incumbent))
    fastest = max(known, key=gains.__getitem__)
    within = known
    if limit_seconds is not None:
        log = dict(zip(scores.ladder, scores.log_goodput.tolist(), strict=True))
        within = [k for k in known if scores.requests / math.exp(log[k]) <= limit_seconds] or [fastest]
    if incumbent not in within:
        best = max(within, key=gains.__getitem__)
        return Choice(best, math.expm1(gains[best]), 0.0, limited=True)
    bands = {k: _band(errors[k], min_gain, restless, off=k == 0) for k in within}
    better = [k for k in within if k != incumbent and math.expm1(gains[k]) > bands[k]]
    best = max(better, key=gains.__getitem__, default=incumbent)
    if bounds is not None and better and not bounds[0] <= best <= bounds[1]:
        smooth = [k for k in better if bounds[0] <= k <= bounds[1] and gains[best] - gains[k] <= errors[best]]
        best = max(smooth, key=gains.__getitem__, default=best)
    if best and 0 in better:
        gain, error = scores.gain(best, 0)
        best = best if gain > LEAST_ERRORS * error else 0
    shown = best if better else fastest
    return Choice(best, math.expm1(gains[shown]), bands.get(shown, min_gain))


def _band(error: float, min_gain: float, restless: float, *, off: bool) -> float:
    """The gain that a move must exceed. To k=0 it is narrower, and may be a loss: of two ks that are nearly equal, the
    one that drafts nothing is never below the baseline."""
    if off:
        return max(-OFF_FAVOUR * min_gain, math.expm1((LEAST_ERRORS + restless / 2) * error) - off_allowance(min_gain))
    return max(min_gain + min_gain * restless, math.expm1((STANDARD_ERRORS + restless / 2) * error))


def off_allowance(min_gain: float) -> float:
    """By how much less than a standard error k=0 must gain."""
    return (1 + OFF_FAVOUR) * min_gain


def table(base: Sequence[int], decided: Mapping[int, int], loads: Sequence[int]) -> tuple[int, ...]:
    """Dense table: decided load buckets as decided, the others as in `base`, but between their decided neighbours.

    The best k falls as load rises, so what was decided at a smaller load bounds an undecided one from above, and what
    was decided at a larger load from below (neighbours that contradict that bound it as they are).
    """
    dense = list(base)
    ordered = sorted(load for load in decided if load in loads)
    for load, end in zip(loads, [*loads[1:], len(base)], strict=True):
        if load in decided:
            dense[load:end] = [decided[load]] * (end - load)
            continue
        position = bisect_left(ordered, load)
        below = decided[ordered[position - 1]] if position else None
        above = decided[ordered[position]] if position < len(ordered) else None
        if below is None and above is None:
            continue
        highest = below if below is not None else max(base)
        low, high = sorted((above if above is not None else 0, highest))
        dense[load:end] = [min(max(k, low), high) for k in dense[load:end]]
    dense[0] = dense[1]
    return tuple(dense)


def between(decided: Mapping[int, int], load: int) -> tuple[int, int] | None:
    """Smallest and largest k at `load` with which the table falls from its decided neighbour below to the one above;
    None where these rise themselves."""
    more, less = [one for one in decided if one > load], [one for one in decided if one < load]
    low, high = decided[min(more)] if more else 0, decided[max(less)] if less else MAX_K
    return (low, high) if low <= high else None


def overlaid(dense: tuple[int, ...], rows: Mapping[int, int], loads: Sequence[int]) -> tuple[int, ...]:
    """`dense` with the buckets of `rows` (load -> k) replaced."""
    found = list(dense)
    for load, end in zip(loads, [*loads[1:], len(dense)], strict=True):
        if load in rows:
            found[load:end] = [rows[load]] * (end - load)
    found[0] = found[1]
    return tuple(found)
