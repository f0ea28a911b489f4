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
LEAVING = 1.0
"""Standard errors more that a k in the bursts must be below, so that a push does not follow every flicker."""
RARE_SECONDS = 900.0


def lacking(scores: Scores, since_change: Array) -> tuple[int, ...]:
    """Ladder ks without their minimum count at this load, or not measured since cost or traffic changed."""
    rows = zip(scores.ladder, scores.known.tolist(), scores.outdated.tolist(), since_change.tolist(), strict=True)
    return tuple(
        k
        for k, known, outdated, fresh in rows
        if not known or outdated or (k > 0 and fresh < acceptance.MIN_REQUEST_STEPS)
    )


def probe(
    present: Sequence[Scores],
    in_force: Sequence[int],
    missing: Sequence[int],
    share: float,
    min_gain: float,
    stale: Sequence[int],
    current: Probe | None,
) -> Probe | None:
    """Bursts for the loads that are there (`present`, with their k `in_force`); None where there is nothing to try.

    `missing`: ks to observe now, at the higher share. Otherwise the ks that may yet be better than the one in force
    take turns at `share` (where they are no better, they are hardly worse). Where there is none, all but the bad ones
    do, more rarely: k=0 (the baseline) and the smallest other k (whose drafts tell of a change of traffic) stay alive
    always. A k that was not seen for a while (`stale`) is tried again in any case. A k of `current`, the bursts pushed
    before, leaves only when it is clearer than when it came.
    """
    if not present:
        return None
    only = set(in_force) if len(set(in_force)) == 1 else set()
    wanted = [k for k in missing if k not in only]
    if wanted:
        return _bursts(wanted, max(share, OBSERVING_SHARE))
    ladder = present[0].ladder
    probed = set(current.ks) if current else set()
    good: set[int] = set()
    open_ks: set[int] = set()
    for one, incumbent in zip(present, in_force, strict=True):
        if incumbent not in ladder:
            continue
        gains, errors = one.gains(incumbent)
        for k, gain, error in zip(ladder, gains, errors, strict=True):
            best = gain + (Z95 + LEAVING * (k in probed)) * error
            if k != incumbent and best > math.log1p(min_gain):
                open_ks.add(k)
            if best > math.log(BAD_RATIO):
                good.add(k)
    kept = open_ks or good | {0, min((k for k in ladder if k > 0), default=0)}
    ks = [k for k in ladder if k in kept | set(stale) and k not in only]
    whole = bool(open_ks) or 0 in in_force  # at k=0 only bursts can tell that drafts are accepted again
    return _bursts(ks, share if whole else share * SETTLED_SHARE) if ks else None


def share_of(bursts: Probe) -> float:
    """Share of decode steps that bursts take, settling steps included."""
    return (bursts.settle_steps + bursts.burst_steps) / bursts.interval_steps


def pressing(wish: Probe, current: Probe) -> bool:
    """Whether `wish` replaces `current` at once: while observing, a needless burst costs more than a push."""
    return max(share_of(current), share_of(wish)) >= OBSERVING_SHARE


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
