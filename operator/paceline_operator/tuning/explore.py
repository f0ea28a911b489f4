"""Which other ks to try, and how often: bursts that make a load observed, then keep the estimates alive."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from paceline_engine.protocol import MAX_K, Probe, Samples
from paceline_operator.tuning.cost import Cost
from paceline_operator.tuning.goodput import Z95
from paceline_operator.tuning.look import BAD_RATIO, Look, Quarantine
from paceline_operator.tuning.model import Settings
from paceline_operator.tuning.timing import places

SETTLE_STEPS, BURST_STEPS = 2, 8
"""Pipeline depth + 1 steps are still under the old k; then as many count as a burst has at least."""
LENGTH = SETTLE_STEPS + BURST_STEPS
OBSERVING_SHARE = 0.25
"""Share of steps that bursts may take while a load is unknown: a fifth of a minute of it costs less than a wrong k."""
OBSERVED_SECONDS = 2.5
"""That a round of bursts may take: where steps are slow, what the nearest ks say may spare the others. A pass of ten
seconds has as much at that share."""
OBSERVING_BURSTS = 12.0
"""Bursts for each ladder k after which an unfinished observation falls back to the ordinary share: some k may never get
clean steps."""
SETTLED_LOSS, OFF_LOSS = 0.002, 0.005
"""Of goodput, that bursts may cost where no other k could be better beyond the tie band; and at k=0, where nothing else
tells that drafts are accepted again."""
LEAVING = 1.0
"""Standard errors more that a k in the bursts must be below, so that a push does not follow every flicker."""
KEEP_ALIVE_SECONDS, RARE_SECONDS = 300.0, 3600.0
"""After which a k that was not measured is probed whatever is known of it: one that is not bad, and the longest that a
bad one rests."""
NEAR_REST_SECONDS = 600.0
"""Longest that the bad k nearest to the one in force rests, where its burst costs no more than SETTLED_LOSS of that:
whether it is good again, nothing else tells."""
BASELINE_SECONDS = 10.0
"""Between two bursts that only make the baseline known, or look at the nearest bad k once it has rested."""
OVERDUE_SHARE = 1 / 6
"""Of the time for which that one has been due already, which passes between two bursts of it: it may never get a clean
step."""
ALIVE_SECONDS = 80.0
"""At k=0, between two bursts of the k that tells of a change of traffic, where no more of them would cost OFF_LOSS."""
LONGEST_INTERVAL = 1_000_000
"""Steps; no plugin takes a longer one."""
FULL_CACHE = 0.95
"""KV cache use from which a burst of a k above the one in force might preempt a request."""
QUEUE_SHARE = 0.1
"""Waiting over running requests from which there is no headroom for bursts that only keep estimates alive."""


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

    `missing`: ks to observe now, at the higher share, the nearest to the one in force first. Otherwise the ks that may
    yet be better than the one in force take turns at the ordinary share (where they are no better, they are hardly
    worse); k=0 does unless it is worse for sure. Where there is none, those that are not bad do and k=0 (the baseline;
    at k=0 the smallest other k, whose drafts tell of a change of traffic), as rarely as keeps their cost at
    SETTLED_LOSS. A k that was not seen for long (`ages`, seconds) is tried in any case, a bad one at intervals that
    double, and the longer the more its burst costs; k=0 also while the baseline is `thin`. A k of `current` leaves only
    when it is clearer than when it came. `pace`: decode steps of an engine in a pass.
    """
    ladder, share = settings.ladder, settings.probe_share
    in_force = [one.in_force for one in present]
    only = set(in_force) if len(set(in_force)) == 1 else set()
    probed = set(current.ks) if current else set()
    good: set[int] = set()
    better: set[int] = set()
    losses = dict.fromkeys(ladder, 0.0)
    slow = dict.fromkeys(ladder, 1.0)
    least, limit = math.log1p(settings.min_gain), math.log(BAD_RATIO)
    for one in present:
        for k, gain, error, ratio in zip(ladder, one.gains, one.errors, one.slow, strict=False):
            best = gain + (Z95 + LEAVING if k in probed else Z95) * error
            if gain < 0 and (lost := -math.expm1(gain) * ratio) > losses[k]:
                losses[k] = lost
            if ratio > slow[k]:
                slow[k] = ratio
            if k != one.in_force and best > (least if k else 0.0):
                better.add(k)
            if best > limit:
                good.add(k)
    burst = LENGTH * max(one.step for one in present)
    if missing := [k for k in ladder if k in missing and k not in only]:
        missing.sort(key=lambda k: (abs(k - in_force[0]), k))
        observed = _affordable(missing, burst, slow)
        wanted = _bursts(observed, _of_time(max(share, OBSERVING_SHARE), observed, slow))
        return wanted, current is None or wanted.ks != current.ks or not _alike(wanted, current)
    alive = {min((k for k in ladder if k > 0), default=0) if 0 in in_force else ladder[-1]}
    if room.full:
        better = {k for k in better if k <= max(in_force)}
    kept = better or (set() if room.queued else good | alive)
    stale = {0} & set(ladder) if thin else set[int]()
    due = dict[int, float]()
    # None rests for less.
    if old := {k: age for k, age in ages.items() if age > KEEP_ALIVE_SECONDS}:
        costs = {k: min(RARE_SECONDS, burst * losses[k] / SETTLED_LOSS) for k in old}
        since = _since(bad)
        # Of a k that was never measured, the time since it was found hopeless.
        old = {k: now - since[k] if math.isinf(age) and k in since else age for k, age in old.items()}
        rests = {k: KEEP_ALIVE_SECONDS if k in good else _rest(age, since.get(k), now) for k, age in old.items()}
        if 0 in in_force:
            # There the smallest other k tells when the rest are to be measured anew.
            rests |= dict.fromkeys(rests.keys() - good - alive, RARE_SECONDS)
        stale |= {k for k, age in old.items() if age > max(rests[k], costs[k])}
        near = (_nearest(present, bad) - good) & old.keys()
        due = {k: late for k in near if (late := old[k] - max(NEAR_REST_SECONDS, costs[k])) > 0}
    # Soon a burst of it, with turns of none but what was not seen for as long.
    turns = (stale if due and not better else kept | stale) | due.keys()
    ks = [k for k in ladder if k in turns and k not in only]
    if not ks:
        return None, False
    share = _of_time(share, ks, slow)
    if better and thin and 0 in ks and not {0} & (kept | due.keys()):
        ks = _seldom_off(ks, share * losses[0])
    if not better:
        lost, most = sum(losses[k] for k in ks) / len(ks), OFF_LOSS if 0 in in_force else SETTLED_LOSS
        rare = share * 0.5 ** max(0, math.ceil(math.log2(max(lost, 1e-6) * share / most)))
        rest = math.inf
        if thin or due:
            rest = BASELINE_SECONDS if thin else max(BASELINE_SECONDS, OVERDUE_SHARE * min(due.values()))
        elif 0 in in_force:
            rest = _alive(present, ladder, burst * max(losses[k] for k in ks))
        passes = max(1.0, rest / settings.interval_seconds)
        share = min(share, max(rare, LENGTH / (pace * passes))) if pace > 0 else rare
    wanted = _bursts(ks, share)
    if current is not None and set(wanted.ks) == probed and _alike(wanted, current):
        wanted = current
    needless = probed - set(ks) - good
    observing = current is not None and share_of(current) > 1.2 * settings.probe_share
    return wanted, observing or bool(needless)


def _affordable(ks: Sequence[int], burst: float, slow: Mapping[int, float]) -> list[int]:
    """The first of `ks`, as many as take OBSERVED_SECONDS for a burst each, and one at least. `burst`: seconds of one
    at the k in force."""
    found, left = list[int](), OBSERVED_SECONDS
    for k in ks:
        left -= burst * slow.get(k, 1.0)
        if found and left < 0:
            break
        found.append(k)
    return found


def _seldom_off(ks: Sequence[int], lost: float) -> list[int]:
    """`ks` in which k=0, there for the baseline alone, has so few of the turns that it costs no more than SETTLED_LOSS
    of goodput, of which it would take `lost` with all of them."""
    others = [k for k in ks if k]
    rounds = math.ceil((lost / SETTLED_LOSS - 1) / len(others))
    return others * min(max(1, rounds), (MAX_K - 1) // len(others)) + [0]


def _since(bad: Quarantine) -> dict[int, float]:
    """When each bad k was found so last, at any load."""
    found: dict[int, float] = {}
    for (_, k), at in bad.items():
        if k not in found or at > found[k]:
            found[k] = at
    return found


def _alive(present: Sequence[Look], ladder: Sequence[int], lost: float) -> float:
    """Seconds between two bursts at k=0 that tell of a change, each of which loses `lost` seconds: rarer, where no text
    could make drafts pay at these loads."""
    hope = any(k and ceiling > 0 for one in present for k, ceiling in zip(ladder, one.ceilings, strict=False))
    least, most = (ALIVE_SECONDS, OFF_LOSS) if hope else (KEEP_ALIVE_SECONDS, SETTLED_LOSS)
    return min(RARE_SECONDS, max(least, lost / most))


def _of_time(share: float, ks: Sequence[int], slow: Mapping[int, float]) -> float:
    """Share of steps with which bursts of `ks` take no more than `share` of steps, and of time: a step far beyond a
    cliff may last ten others."""
    ratio = max(1.0, sum(slow.get(k, 1.0) for k in ks) / len(ks))
    return share / (share + (1 - share) * ratio)


def _nearest(present: Sequence[Look], bad: Quarantine) -> set[int]:
    """Of each load that is there, the bad k that is nearest to the one in force."""
    found = set[int]()
    for one in present:
        ks = [k for load, k in bad if load == one.load]
        if ks:
            found.add(min(ks, key=lambda k: abs(k - one.in_force)))
    return found


def _rest(age: float, since: float | None, now: float) -> float:
    """Seconds that a bad k rests between two bursts: as long as it had been bad when it was seen last."""
    return KEEP_ALIVE_SECONDS if since is None else min(RARE_SECONDS, max(KEEP_ALIVE_SECONDS, now - age - since))


def share_of(bursts: Probe) -> float:
    """Share of decode steps that bursts take, settling steps included."""
    return (bursts.settle_steps + bursts.burst_steps) / bursts.interval_steps


def equal(one: Probe | None, other: Probe | None) -> bool:
    """Whether they say the same: as `==`, whose comparison of fields by name costs more than all the rest of a wish."""
    if one is None or other is None or one is other:
        return one is other
    same = one.ks == other.ks and one.interval_steps == other.interval_steps
    return same and (one.settle_steps, one.burst_steps) == (other.settle_steps, other.burst_steps)


def _alike(one: Probe, other: Probe) -> bool:
    """Whether they take about the same share of steps, and turns of about as many: k=0 may have few of them."""
    return 0.5 <= share_of(one) / share_of(other) <= 2 and 0.5 <= len(one.ks) / len(other.ks) <= 2


def ages(costs: Cost, loads: Sequence[int], now: float) -> dict[int, float]:
    """Seconds since any of `loads` measured each ladder k."""
    width, rows = len(costs.ladder), places(costs.loads)
    starts = [rows[load] * width for load in loads]
    seen = [costs.seen[start : start + width].tolist() for start in starts]
    return {k: now - max(each) for k, *each in zip(costs.ladder, *seen, strict=True)}


def _bursts(ks: Sequence[int], share: float) -> Probe:
    return _probe(tuple(ks), max(20, math.ceil(LENGTH / max(share, LENGTH / LONGEST_INTERVAL))))


@lru_cache(maxsize=4096)
def _probe(ks: tuple[int, ...], interval: int) -> Probe:
    """The same one for the same bursts: every pass wishes for some, and nearly always for those that it has."""
    return Probe(ks=ks, settle_steps=SETTLE_STEPS, burst_steps=BURST_STEPS, interval_steps=interval)
