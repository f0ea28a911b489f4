"""What exploration costs: time at other ks (and other ways to verify) against what the k in force would have given."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paceline_engine.protocol import CostCell, Verification

HALF_LIFE_SECONDS = 3600.0


@dataclass(frozen=True)
class Account:
    """Sums over about the last hour."""

    steps: float = 0.0
    seconds: float = 0.0
    tried_steps: float = 0.0
    tried_seconds: float = 0.0
    lost: float = 0.0
    """Tokens."""


def booked(
    past: Account,
    cells: Iterable[CostCell],
    goodput: Mapping[int, float],
    settling: float,
    trial: tuple[Verification, int] | None,
    seconds: float,
) -> Account:
    """`past`, `seconds` older, and the cells of a pass.

    `goodput`: tokens a second in force, by load; where it is not known, what a burst lost is not either. `settling`:
    steps of a burst over those that are counted. `trial`: mode and k of a trial of adaptive verification.
    """
    keep = 0.5 ** (seconds / HALF_LIFE_SECONDS)
    steps, total = past.steps * keep, past.seconds * keep
    tried, tried_seconds, lost = past.tried_steps * keep, past.tried_seconds * keep, past.lost * keep
    for cell in cells:
        whole = settling if cell.probe else 1.0
        steps, total = steps + cell.steps * whole, total + cell.seconds * whole
        if cell.probe or (cell.verification, cell.k_drafted) == trial:
            tried, tried_seconds = tried + cell.steps * whole, tried_seconds + cell.seconds * whole
            if cell.load in goodput and cell.emitted:
                lost += (cell.seconds * goodput[cell.load] - cell.emitted) * whole
    return Account(steps, total, tried, tried_seconds, lost)
