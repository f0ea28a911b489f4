"""Which other ks to try, and how often: bursts that make a load observed, then keep the estimates alive."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from paceline_engine.protocol import Probe
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS, Array
from paceline_operator.tuning.cost import Cost
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
"""A k whose best case is below 0.7 of the incumbent is bad: it is only looked at now and then."""
LEAVING = 1.0
"""Standard errors more that a k in the bursts must be below, so that a push does not follow every flicker."""
KEEP_ALIVE_SECONDS, RARE_SECONDS = 300.0, 900.0
"""After which a k that was not measured is probed whatever is known of it: one that is not bad, and a bad one."""


def lacking(scores: Scores, since_change: Array) -> tuple[int, ...]:
    """Ladder ks without their minimum count at this load, or not measured since cost or traffic changed."""
    rows = zip(scores.ladder, scores.known.tolist(), scores.outdated.tolist(), since_change.tolist(), strict=True)
    return tuple(
        k for k, known, outdated, fresh in rows if not known or outdated or (k > 0 and fresh < MIN_REQUEST_STEPS)
    )


def wish(
    present: Sequence[Scores],
    in_force: Sequence[int],
    missing: Collection[int],
    share: float,
    min_gain: float,
    ages: Mapping[int, float],
    current: Probe | None,
) -> tuple[Probe | None, bool]:
    """Bursts for the loads that are there (`present`, not empty, each with its k `in_force`), and whether to push them
    at once in place of `current`.

    `missing`: ks to observe now, at the higher share. Otherwise the ks that may yet be better than the one in force
    take turns at `share` (where they are no better, they are hardly worse). Where there is none, all but the bad ones
    do, more rarely: k=0 (the baseline) and the smallest other k (whose drafts tell of a change of traffic) stay alive
    always. A k that was not seen for long (`ages`, seconds) is tried in any case, a bad one after longer. A k of
    `current` leaves only when it is clearer than when it came.
    """
    ladder = present[0].ladder
    only = set(in_force) if len(set(in_force)) == 1 else set()
    probed = set(current.ks) if current else set()
    good: set[int] = set()
    better: set[int] = set()
    for one, incumbent in zip(present, in_force, strict=True):
        gains, errors = one.gains(incumbent) if incumbent in ladder else ([], [])
        for k, gain, error in zip(ladder, gains, errors, strict=False):
            best = gain + (Z95 + LEAVING * (k in probed)) * error
            if k != incumbent and best > math.log1p(min_gain):
                better.add(k)
            if best > math.log(BAD_RATIO):
                good.add(k)
    if observed := [k for k in ladder if k in missing and k not in only]:
        wanted = _bursts(observed, max(share, OBSERVING_SHARE))
        return wanted, wanted != current
    alive = {0, min((k for k in ladder if k > 0), default=0)}
    kept = better or good | alive
    stale = {k for k, age in ages.items() if age > (KEEP_ALIVE_SECONDS if k in good else RARE_SECONDS)}
    ks = [k for k in ladder if k in kept | stale and k not in only]
    if not ks:
        return None, False
    whole = bool(better) or 0 in in_force  # at k=0 only bursts can tell that drafts are accepted again
    wanted = _bursts(ks, share if whole else share * SETTLED_SHARE)
    needless = probed - set(ks) - good - alive
    observing = current is not None and share_of(current) >= max(OBSERVING_SHARE, 1.01 * share)
    return wanted, observing or bool(needless)


def share_of(bursts: Probe) -> float:
    """Share of decode steps that bursts take, settling steps included."""
    return (bursts.settle_steps + bursts.burst_steps) / bursts.interval_steps


def ages(costs: Cost, loads: Sequence[int], now: float) -> dict[int, float]:
    """Seconds since any of `loads` measured each ladder k."""
    width = len(costs.ladder)
    seen = np.max([costs.seen[row * width : (row + 1) * width] for row in map(costs.loads.index, loads)], axis=0)
    return dict(zip(costs.ladder, (now - seen).tolist(), strict=True))


def _bursts(ks: Sequence[int], share: float) -> Probe:
    interval = max(20, math.ceil((SETTLE_STEPS + BURST_STEPS) / share))
    return Probe(ks=tuple(ks), settle_steps=SETTLE_STEPS, burst_steps=BURST_STEPS, interval_steps=interval)
