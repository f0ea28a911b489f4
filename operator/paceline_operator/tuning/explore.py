"""Which other ks to try, and how often: bursts that make a load observed, then keep the estimates alive."""

from __future__ import annotations

import math
from collections.abc import Sequence

from paceline_engine.protocol import Probe
from paceline_operator.tuning import acceptance, cost
from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.goodput import Z95, Scores

SETTLE_STEPS, BURST_STEPS = 2, 8
"""Pipeline depth + 1 steps are still under the old k; then as many count as a burst has at least."""
OBSERVING_SHARE = 0.25
"""Share of steps that bursts may take while a load is unknown: a fifth of a minute of it costs less than a wrong k."""
OBSERVING_PASSES = 30
"""Passes after which an unfinished observation falls back to the ordinary share: some k may never get clean steps."""
SETTLED_SHARE = 0.4
"""Of the ordinary share, where no other k could be better beyond the tie band."""
BAD_RATIO = 0.7
"""A k whose best case is below 0.7 of the incumbent's worst case is bad: it is only looked at now and then."""
RARE_SECONDS = 900.0


def lacking(scores: Scores, since_change: Array) -> tuple[int, ...]:
    """Ladder ks without their minimum count at this load, or without any since traffic changed."""
    return tuple(
        k
        for k, known, fresh in zip(scores.ladder, scores.known, since_change, strict=True)
        if not known or (k > 0 and fresh < acceptance.MIN_REQUEST_STEPS)
    )


def probe(
    present: Sequence[Scores],
    in_force: Sequence[int],
    missing: Sequence[int],
    share: float,
    min_gain: float,
    stale: Sequence[int],
) -> Probe | None:
    """Bursts for the loads that are there (`present`, with their k `in_force`); None where there is nothing to try.

    `missing`: ks to observe now, at the higher share. Otherwise all but the k in force and the bad ones take turns at
    `share` or less; k=0 (the baseline) and the smallest other k (whose drafts tell of a change of traffic) stay alive
    always, and a bad k is tried again when it was not seen for a while (`stale`).
    """
    if not present:
        return None
    only = set(in_force) if len(set(in_force)) == 1 else set()
    wanted = [k for k in missing if k not in only]
    if wanted:
        return _bursts(wanted, max(share, OBSERVING_SHARE))
    ladder = present[0].ladder
    kept = {0, min((k for k in ladder if k > 0), default=0)} | set(stale)
    good = {
        k for one, incumbent in zip(present, in_force, strict=True) for k in one.ladder if not _bad(one, k, incumbent)
    }
    open_question = any(
        _open(one, k, incumbent, min_gain) for one, incumbent in zip(present, in_force, strict=True) for k in one.ladder
    )
    ks = [k for k in ladder if (k in kept or k in good) and k not in only]
    return _bursts(ks, share if open_question else share * SETTLED_SHARE) if ks else None


def share_of(bursts: Probe) -> float:
    """Share of decode steps that bursts take, settling steps included."""
    return (bursts.settle_steps + bursts.burst_steps) / bursts.interval_steps


def pressing(wish: Probe, current: Probe) -> bool:
    """Whether `wish` should replace `current` at once: it asks for more, for another k, or for half as many."""
    observing = share_of(wish) >= OBSERVING_SHARE
    return (
        share_of(wish) > share_of(current)
        or not set(wish.ks) <= set(current.ks)
        or (observing and 2 * len(wish.ks) <= len(current.ks))
    )


def stale(costs: cost.Cost, loads: Sequence[int], now: float) -> tuple[int, ...]:
    """Ks that none of `loads` has measured for RARE_SECONDS."""
    width = len(costs.ladder)
    rows = [costs.loads.index(load) * width for load in loads]
    return tuple(
        k for column, k in enumerate(costs.ladder) if all(now - costs.seen[row + column] > RARE_SECONDS for row in rows)
    )


def _bursts(ks: Sequence[int], share: float) -> Probe:
    interval = max(20, math.ceil((SETTLE_STEPS + BURST_STEPS) / share))
    return Probe(ks=tuple(ks), settle_steps=SETTLE_STEPS, burst_steps=BURST_STEPS, interval_steps=interval)


def _bounds(scores: Scores, k: int) -> tuple[float, float]:
    row = scores.ladder.index(k)
    spread = Z95 * math.sqrt(max(0.0, float(scores.length_covariance[row, row] + scores.step_covariance[row, row])))
    log = float(scores.log_goodput[row])
    return log - spread, log + spread


def _bad(scores: Scores, k: int, incumbent: int) -> bool:
    if k not in scores.ladder or incumbent not in scores.ladder:
        return False
    return _bounds(scores, k)[1] < _bounds(scores, incumbent)[0] + math.log(BAD_RATIO)


def _open(scores: Scores, k: int, incumbent: int, min_gain: float) -> bool:
    """Whether `k` may yet turn out better than the incumbent by more than the least gain worth a move."""
    if incumbent not in scores.ladder or k == incumbent:
        return False
    gain, error = scores.gain(k, incumbent)
    return gain + Z95 * error > math.log1p(min_gain)
