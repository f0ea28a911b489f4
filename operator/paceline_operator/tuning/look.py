"""What is known of every k at the loads that are there: which are bad, which hopeless, and which yet to be measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from paceline_engine.protocol import Verification
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS, Array
from paceline_operator.tuning.goodput import LARGEST_LOG, Z95, Scores

BAD_RATIO = 0.9
"""A k whose best case is below 0.9 of the incumbent is in quarantine: tried when it was not seen for as long as it had
been there, so at intervals that double."""
SURE_ERRORS = 3.0
"""Standard errors by which a k that was never measured must be below that: a prior is less than a measurement."""

Quarantine = Mapping[tuple[int, int], float]
"""(load bucket, k) -> when it was found bad."""


class Look(NamedTuple):
    """A load that is there: what every ladder k gains over the one in force. Lists follow the ladder."""

    load: int
    in_force: int
    gains: list[float]
    errors: list[float]
    known: list[bool]
    """Or known to be hopeless."""
    slow: list[float]
    """Step time over that of the k in force."""
    step: float = 0.0
    """Seconds of a step of the k in force."""
    ceilings: Sequence[float] = ()
    """Where that is 0: gains, at best, if every draft were accepted."""


def hopeless(scores: Scores) -> list[bool]:
    """By ladder position, whether a k that was not measured here is so far below one that was that bursts of it would
    cost more than they tell. What its cost is borrowed from may be wrong: that is in its error. Only where all drafts
    are verified: under adaptive verification a large k may be the best."""
    known = scores.known.tolist()
    if all(known) or not any(known):
        return [False] * len(known)
    log = scores.log_goodput.tolist()
    best = max((row for row, there in enumerate(known) if there), key=log.__getitem__)
    rows = zip(known, scores.told.tolist(), *scores.gains(scores.ladder[best]), strict=True)
    return [
        not there and told and gain + SURE_ERRORS * error < math.log(BAD_RATIO) for there, told, gain, error in rows
    ]


def settled(scores: Scores, modes: Collection[Verification]) -> list[bool]:
    """By ladder position: known, or hopeless. `modes`: how the engines can be told to verify."""
    if Verification.ADAPTIVE in modes:
        found: list[bool] = scores.known.tolist()
        return found
    return [known or other for known, other in zip(scores.known.tolist(), hopeless(scores), strict=True)]


def lacking(
    scores: Scores,
    since_change: Array,
    bad: Quarantine,
    modes: Collection[Verification] = (),
    clear: Sequence[bool] | None = None,
) -> tuple[int, ...]:
    """Ladder ks without their minimum count at this load (but for hopeless ones), or not measured since cost or traffic
    changed (but for those that no traffic could make good); and `bad` ones that may have become faster, so that a
    second look is not put off until they have rested. `clear`: which are settled, where that is known already."""
    before = (scores.told & (since_change < MIN_REQUEST_STEPS)).tolist()
    if any(before) and Verification.ADAPTIVE not in modes and scores.ladder[-1] == 0 and scores.known[-1]:
        limit = math.log(BAD_RATIO)
        before = [stale and ceiling > limit for stale, ceiling in zip(before, _ceilings(scores), strict=True)]
    clear = clear or settled(scores, modes)
    rows = zip(scores.ladder, clear, scores.outdated.tolist(), scores.faster.tolist(), before, strict=True)
    return tuple(
        k
        for k, known, outdated, faster, stale in rows
        if not known or outdated or (k > 0 and stale) or (faster and (scores.load, k) in bad)
    )


def look(scores: Scores, in_force: int, modes: Collection[Verification] = ()) -> Look:
    """At `scores` from the k in force; empty where that is not of the ladder."""
    if in_force not in scores.ladder:
        return Look(scores.load, in_force, [], [], [], [])
    gains, errors = scores.gains(in_force)
    own = float(scores.log_step[scores.ladder.index(in_force)])
    slow = np.exp(np.minimum(scores.log_step - own, LARGEST_LOG))
    return Look(
        load=scores.load,
        in_force=in_force,
        gains=gains,
        errors=errors,
        known=settled(scores, modes),
        slow=slow.tolist(),
        step=math.exp(min(own, LARGEST_LOG)),
        ceilings=() if in_force else _ceilings(scores),
    )


def _ceilings(scores: Scores) -> list[float]:
    """Log goodput over that of k=0 if every draft were accepted, and the step as fast as it may be."""
    row, cost = scores.ladder.index(0), scores.step_covariance
    own = cost.diagonal()
    doubt = np.sqrt(np.maximum(own + own[row] - 2 * cost[row], 0.0))
    found: list[float] = (np.log1p(scores.ladder) - scores.log_step + scores.log_step[row] + Z95 * doubt).tolist()
    return found


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
