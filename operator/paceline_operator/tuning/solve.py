"""Which k at each load: score all, take the best, but stay unless the gain is beyond doubt; and the table from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline_operator.tuning.goodput import Scores

STANDARD_ERRORS = 2.0
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
    scores: Scores, incumbent: int, min_gain: float, restless: float = 0.0, limit_seconds: float | None = None
) -> Choice:
    """The best known k at a load, or the incumbent where the best is not better by more than the tie band.

    The band is max(min_gain, two standard errors of the difference); `restless`, the recent changes here (decaying),
    widens it, so that noise cannot make a cell flap. `limit_seconds` (time per output token) removes candidates; where
    it removes all, the fastest stays a candidate.
    """
    known = [k for k, there in zip(scores.ladder, scores.known, strict=True) if there]
    if incumbent not in known:
        return Choice(incumbent, 0.0, math.inf)
    log = dict(zip(scores.ladder, scores.log_goodput, strict=True))
    fastest = max(known, key=lambda k: log[k])
    if limit_seconds is not None:
        per_token = {k: scores.requests / math.exp(log[k]) for k in known}
        within = [k for k in known if per_token[k] <= limit_seconds] or [fastest]
        if incumbent not in within:
            best = max(within, key=lambda k: log[k])
            return Choice(best, math.expm1(log[best] - log[incumbent]), 0.0, limited=True)
    best, best_gain, best_band = incumbent, 0.0, _band(0.0, min_gain, restless)
    for k in known:
        gain, error = scores.gain(k, incumbent)
        band = _band(error, min_gain, restless)
        if math.expm1(gain) > band and gain > best_gain:
            best, best_gain, best_band = k, gain, band
    if best == incumbent and fastest != incumbent:
        gain, error = scores.gain(fastest, incumbent)
        return Choice(incumbent, math.expm1(gain), _band(error, min_gain, restless))
    return Choice(best, math.expm1(best_gain), best_band)


def _band(error: float, min_gain: float, restless: float) -> float:
    return max(min_gain * (1 + restless), math.expm1((STANDARD_ERRORS + restless / 2) * error))


def table(base: Sequence[int], decided: Mapping[int, int], loads: Sequence[int]) -> tuple[int, ...]:
    """Dense table: decided load buckets as decided, the others as in `base`, but between their decided neighbours.

    The best k falls as load rises, so what was decided at a smaller load bounds an undecided one from above, and what
    was decided at a larger load from below (neighbours that contradict that bound it as they are).
    """
    dense = list(base)
    ordered = sorted(load for load in decided if load in loads)
    edges = [*loads, len(base)]
    for position, load in enumerate(loads):
        span = range(load, edges[position + 1])
        if load in decided:
            for n in span:
                dense[n] = decided[load]
            continue
        below = [decided[other] for other in ordered if other < load]
        above = [decided[other] for other in ordered if other > load]
        bounds = sorted((above[0] if above else 0, below[-1] if below else max(base)))
        for n in span:
            dense[n] = min(max(dense[n], bounds[0]), bounds[1])
    dense[0] = dense[1]
    return tuple(dense)
