"""Which other ks to try, and how often: bursts that make a load observed, then keep the estimates alive."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from paceline_engine.protocol import Probe, Samples
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS, Array
from paceline_operator.tuning.cost import Cost
from paceline_operator.tuning.goodput import LARGEST_LOG, Z95, Scores
from paceline_operator.tuning.model import Settings
from paceline_operator.tuning.timing import places

SETTLE_STEPS, BURST_STEPS = 2, 8
"""Pipeline depth + 1 steps are still under the old k; then as many count as a burst has at least."""
OBSERVING_SHARE = 0.25
"""Share of steps that bursts may take while a load is unknown: a fifth of a minute of it costs less than a wrong k."""
OBSERVING_BURSTS = 12.0
"""Bursts for each ladder k after which an unfinished observation falls back to the ordinary share: some k may never get
clean steps."""
SETTLED_LOSS, OFF_LOSS = 0.002, 0.005
"""Of goodput, that bursts may cost where no other k could be better beyond the tie band; and at k=0, where nothing else
tells that drafts are accepted again."""
BAD_RATIO = 0.9
"""A k whose best case is below 0.9 of the incumbent is in quarantine: tried when it was not seen for as long as it had
been there, so at intervals that double."""
LEAVING = 1.0
"""Standard errors more that a k in the bursts must be below, so that a push does not follow every flicker."""
KEEP_ALIVE_SECONDS, RARE_SECONDS = 300.0, 3600.0
"""After which a k that was not measured is probed whatever is known of it: one that is not bad, and the longest that a
bad one rests."""
NEAR_REST_SECONDS = 600.0
"""Longest that the bad k nearest to the one in force rests: whether it is good again, nothing else tells. A burst of a
k four times slower costs 0.1 % of that."""
BASELINE_SECONDS = 10.0
"""Between two bursts that only make the baseline known, or look at the nearest bad k once it has rested."""
ALIVE_SECONDS = 80.0
"""At k=0, at most between two bursts of the k that tells of a change, whatever they cost."""
LONGEST_INTERVAL = 1_000_000
"""Steps; no plugin takes a longer one."""
FULL_CACHE = 0.95
"""KV cache use from which a burst of a k above the one in force might preempt a request."""
QUEUE_SHARE = 0.1
"""Waiting over running requests from which there is no headroom for bursts that only keep estimates alive."""

Quarantine = Mapping[tuple[int, int], float]
"""(load bucket, k) -> when it was found bad."""


@dataclass(frozen=True)
class Headroom:
    """What the engines can spare. Bursts that observe, or that may find a better k, are made in any case: they are
    short, and at a full engine a wrong k costs most."""

    queued: bool = False
    full: bool = False


def headroom(answers: Iterable[Samples]) -> Headroom:
    """Of the engines together."""
    gauges = [samples.gauges for samples in answers]
    waiting, running = sum(one.waiting for one in gauges), sum(one.running for one in gauges)
    full = any(one.kv_cache_usage >= FULL_CACHE for one in gauges)
    return Headroom(queued=waiting > max(1.0, QUEUE_SHARE * running), full=full)


def lacking(scores: Scores, since_change: Array, bad: Quarantine) -> tuple[int, ...]:
    """Ladder ks without their minimum count at this load, or not measured since cost or traffic changed; and `bad` ones
    that may have become faster, so that a second look is not put off until they have rested."""
    rows = zip(
        scores.ladder,
        scores.known.tolist(),
        scores.outdated.tolist(),
        scores.faster.tolist(),
        (scores.told & (since_change < MIN_REQUEST_STEPS)).tolist(),
        strict=True,
    )
    return tuple(
        k
        for k, known, outdated, faster, stale in rows
        if not known or outdated or (k > 0 and stale) or (faster and (scores.load, k) in bad)
    )


class Look(NamedTuple):
    """A load that is there: what every ladder k gains over the one in force. Lists follow the ladder."""

    load: int
    in_force: int
    gains: list[float]
    errors: list[float]
    known: list[bool]
    slow: list[float]
    """Step time over that of the k in force."""


def look(scores: Scores, in_force: int) -> Look:
    """At `scores` from the k in force; empty where that is not of the ladder."""
    if in_force not in scores.ladder:
        return Look(scores.load, in_force, [], [], [], [])
    gains, errors = scores.gains(in_force)
    slow = np.exp(np.minimum(scores.log_step - scores.log_step[scores.ladder.index(in_force)], LARGEST_LOG))
    return Look(scores.load, in_force, gains, errors, scores.known.tolist(), slow.tolist())


def quarantined(past: Quarantine, present: Sequence[Look], ladder: Sequence[int], now: float) -> Quarantine:
    """`past`, and what the loads that are there say of their ks now."""
    found = dict(past)
    for one in present:
        for k, gain, error, known in zip(ladder, one.gains, one.errors, one.known, strict=False):
            if k != one.in_force and known and gain + Z95 * error < math.log(BAD_RATIO):
                found.setdefault((one.load, k), now)
            else:
                found.pop((one.load, k), None)
    return found


def wish(
    present: Sequence[Look],
    missing: Collection[int],
    settings: Settings,
    ages: Mapping[int, float],
    bad: Quarantine,
    now: float,
    room: Headroom,
    current: Probe | None,
    thin: bool = False,
    pace: float = 0.0,
) -> tuple[Probe | None, bool]:
    """Bursts for the loads that are there (`present`, not empty), and whether to push them at once in place of
    `current`.

    `missing`: ks to observe now, at the higher share. Otherwise the ks that may yet be better than the one in force
    take turns at the ordinary share (where they are no better, they are hardly worse). Where there is none, those that
    are not bad do and k=0 (the baseline; at k=0 the smallest other k, whose drafts tell of a change of traffic), as
    rarely as keeps their cost at SETTLED_LOSS. A k that was not seen for long (`ages`, seconds) is tried in any case,
    a bad one at intervals that double; k=0 also while the baseline is `thin`. A k of `current` leaves only when it is
    clearer than when it came. `pace`: decode steps of an engine in a pass.
    """
    ladder, share = settings.ladder, settings.probe_share
    in_force = [one.in_force for one in present]
    only = set(in_force) if len(set(in_force)) == 1 else set()
    probed = set(current.ks) if current else set()
    good: set[int] = set()
    better: set[int] = set()
    losses: dict[int, float] = {}
    slow: dict[int, float] = {}
    for one in present:
        for k, gain, error, ratio in zip(ladder, one.gains, one.errors, one.slow, strict=False):
            best = gain + (Z95 + LEAVING * (k in probed)) * error
            losses[k] = max(losses.get(k, 0.0), -math.expm1(min(gain, 0.0)) * ratio)
            slow[k] = max(slow.get(k, 1.0), ratio)
            if k != one.in_force and best > math.log1p(settings.min_gain):
                better.add(k)
            if best > math.log(BAD_RATIO):
                good.add(k)
    if observed := [k for k in ladder if k in missing and k not in only]:
        wanted = _bursts(observed, _of_time(max(share, OBSERVING_SHARE), observed, slow))
        return wanted, current is None or wanted.ks != current.ks or share_of(wanted) < share_of(current) / 2
    alive = {min((k for k in ladder if k > 0), default=0) if 0 in in_force else ladder[-1]}
    if room.full:
        better = {k for k in better if k <= max(in_force)}
    kept = better or (set() if room.queued else good | alive)
    rests = {k: KEEP_ALIVE_SECONDS if k in good else _rest(k, age, bad, now) for k, age in ages.items()}
    # At k=0 the smallest other k tells when the rest are to be measured anew.
    rests |= {k: RARE_SECONDS for k in rests if 0 in in_force and k not in good | alive}
    stale = {k for k, age in ages.items() if age > rests[k]}
    stale |= {0} & set(ladder) if thin else set()
    due = {k for k in _nearest(present, bad) - good if ages.get(k, 0.0) > NEAR_REST_SECONDS}
    # One burst of it, and no turns of others before it.
    ks = [k for k in ladder if k in (due if due and not better else kept | stale | due) and k not in only]
    if not ks:
        return None, False
    share = _of_time(share, ks, slow)
    if not better:
        lost, most = sum(losses.get(k, 0.0) for k in ks) / len(ks), OFF_LOSS if 0 in in_force else SETTLED_LOSS
        rare = share * 0.5 ** max(0, math.ceil(math.log2(max(lost, 1e-6) * share / most)))
        rest = BASELINE_SECONDS if thin or due else ALIVE_SECONDS if 0 in in_force else math.inf
        passes = max(1.0, rest / settings.interval_seconds)
        share = min(share, max(rare, (SETTLE_STEPS + BURST_STEPS) / (pace * passes))) if pace > 0 else rare
    wanted = _bursts(ks, share)
    if current is not None and wanted.ks == current.ks and 0.5 <= share_of(wanted) / share_of(current) <= 2:
        wanted = current
    needless = probed - set(ks) - good
    observing = current is not None and share_of(current) > 1.2 * settings.probe_share
    return wanted, observing or bool(needless)


def _of_time(share: float, ks: Sequence[int], slow: Mapping[int, float]) -> float:
    """Share of steps with which bursts of `ks` take no more than `share` of steps, and of time: a step far beyond a
    cliff may last ten others."""
    ratio = max(1.0, sum(slow.get(k, 1.0) for k in ks) / len(ks))
    return share / (share + (1 - share) * ratio)


def _nearest(present: Sequence[Look], bad: Quarantine) -> set[int]:
    """Of each load that is there, the bad k that is nearest to the one in force."""
    found = ([k for load, k in bad if load == one.load] for one in present)
    return {min(ks, key=lambda k: abs(k - one.in_force)) for ks, one in zip(found, present, strict=True) if ks}


def _rest(k: int, age: float, bad: Quarantine, now: float) -> float:
    """Seconds that a bad k rests between two bursts: as long as it had been bad when it was seen last."""
    since = [at for (_, one), at in bad.items() if one == k]
    return min(RARE_SECONDS, max(KEEP_ALIVE_SECONDS, now - age - max(since))) if since else KEEP_ALIVE_SECONDS


def share_of(bursts: Probe) -> float:
    """Share of decode steps that bursts take, settling steps included."""
    return (bursts.settle_steps + bursts.burst_steps) / bursts.interval_steps


def ages(costs: Cost, loads: Sequence[int], now: float) -> dict[int, float]:
    """Seconds since any of `loads` measured each ladder k."""
    width, rows = len(costs.ladder), places(costs.loads)
    starts = [rows[load] * width for load in loads]
    seen = [costs.seen[start : start + width].tolist() for start in starts]
    return {k: now - max(each) for k, *each in zip(costs.ladder, *seen, strict=True)}


def _bursts(ks: Sequence[int], share: float) -> Probe:
    length = SETTLE_STEPS + BURST_STEPS
    return _probe(tuple(ks), max(20, math.ceil(length / max(share, length / LONGEST_INTERVAL))))


@lru_cache(maxsize=4096)
def _probe(ks: tuple[int, ...], interval: int) -> Probe:
    """The same one for the same bursts: every pass wishes for some, and nearly always for those that it has."""
    return Probe(ks=ks, settle_steps=SETTLE_STEPS, burst_steps=BURST_STEPS, interval_steps=interval)
