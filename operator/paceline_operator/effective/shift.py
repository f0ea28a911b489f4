"""How drafts fare lately against how they fared before, position by position: what fell is told, and changes nothing.

Another workload does that, and so does a drafter that lost what it was trained for. Steps whose drafts are verified
adaptively are left out: that an acceptance length falls under adaptive verification is how it works.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from paceline_engine.protocol import AcceptanceCell, Verification

ERRORS = 2.0
"""Standard errors by which a share must be beyond its limit."""
POSITIONS = 4
"""Of a draft that are watched: later ones are reached too rarely to tell."""
LATELY, BEFORE = 2000.0, 40_000.0
"""Drafts after which what came before counts for half or less: some minutes of one engine, and an hour."""
LEAST_LATELY, LEAST_BEFORE = 500.0, 5000.0
FALLEN, RISEN = 0.70, 0.85
"""Of the share before: below the one, beyond doubt, it fell; above the other it is as it was. A choice: far beyond the
two per cent that `LATELY` drafts are sure to, and far from a drafter that has collapsed, which is told by itself."""
Pair = tuple[float, float]
"""(of how many, how many)"""


@dataclass(frozen=True, slots=True)
class Shift:
    """Firing (of request-steps, those with a draft), then acceptance at positions 1, 2, ...: lately, and before."""

    lately: tuple[Pair, ...] = ()
    before: tuple[Pair, ...] = ()


def added(past: Shift, cells: Sequence[AcceptanceCell]) -> Shift:
    """`past` with what was sampled since."""
    counted = [cell for cell in cells if cell.k > 0 and cell.verification is Verification.ALL]
    news: list[Pair] = [(sum(c.request_steps for c in counted), sum(c.drafts for c in counted))]
    for at in range(POSITIONS):
        there = [c for c in counted if min(len(c.drafted), len(c.accepted)) > at]
        news.append((sum(c.drafted[at] for c in there), sum(c.accepted[at] for c in there)))
    if not news[0][0]:
        return past
    return Shift(_mixed(past.lately, news, LATELY), _mixed(past.before, news, BEFORE))


def fallen(shift: Shift, was: bool) -> str:
    """What fell, in words without a number that goes on changing; empty where nothing did. `was`: it had fallen."""
    limit, end = (RISEN, 0) if was else (FALLEN, 1)  # beyond doubt either way
    for at, (lately, before) in enumerate(zip_longest(shift.lately, shift.before, fillvalue=(0.0, 0.0))):
        if lately[0] < LEAST_LATELY or before[0] < LEAST_BEFORE:
            continue
        if interval(lately[1], lately[0])[end] < limit * interval(before[1], before[0])[0]:
            return f"drafts are accepted less often at position {at}" if at else "fewer request-steps have a draft"
    return ""


def interval(hits: float, of: float) -> Pair:
    """Wilson's score interval of a share; 0 to 1 without evidence."""
    if of <= 0:
        return 0.0, 1.0
    share, square = min(1.0, hits / of), ERRORS * ERRORS
    middle = share + square / (2 * of)
    half = ERRORS * math.sqrt(share * (1 - share) / of + square / (4 * of * of))
    return max(0.0, (middle - half) / (1 + square / of)), min(1.0, (middle + half) / (1 + square / of))


def _mixed(past: Sequence[Pair], news: Sequence[Pair], memory: float) -> tuple[Pair, ...]:
    mixed = []
    for (of, hits), (more, found) in zip_longest(past, news, fillvalue=(0.0, 0.0)):
        keep = min(memory / (memory + more), memory / max(of, memory))
        mixed.append((keep * of + more, keep * hits + min(found, more)))
    return tuple(mixed)
