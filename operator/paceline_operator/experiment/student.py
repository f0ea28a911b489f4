"""Student's t for whole degrees of freedom: tails, bounds, and the effect that a test finds. Pure; numpy alone.

The operator judges experiments too, and scipy would cost it 70 MB of memory.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np

CLOSE = 1e-12
POINTS = 4001
REACH = 9.0
"""Standard deviations of the sample's spread, twelve and more, beyond which nothing is left to integrate."""
_erf = np.vectorize(math.erf, otypes=[float])


def both_tails(freedom: int, statistic: float) -> float:
    """P(|T| >= |statistic|): a finite series (Abramowitz, Stegun, Handbook of Mathematical Functions, 26.7.3-4)."""
    angle = math.atan(abs(statistic) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine, cosine if freedom > 1 else 0.0) if odd else (1.0, 1.0)
    for power in range(2 + odd, freedom - 1, 2):
        term *= cosine * cosine * (power - 1) / power
        total += term
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(0.0, 1 - inside))


def bound(freedom: int, share: float) -> float:
    """What |T| exceeds with probability `share`, which is above 0."""
    return _root(lambda at: share - both_tails(freedom, at))


@lru_cache
def shift(freedom: int, share: float, power: float) -> float:
    """True effect, in standard errors, with which T exceeds `bound(freedom, share)` with probability `power`."""
    limit = bound(freedom, share)
    return _root(lambda effect: above(limit, freedom, effect) - power)


def above(limit: float, freedom: int, effect: float) -> float:
    """P(T > limit) of a non-central t: the normal's tail over the distribution of the spread that is estimated."""
    half = REACH / math.sqrt(freedom)
    spread = np.linspace(max(1e-9, 1 - half), 1 + half, POINTS)
    log_density = (
        math.log(2) + freedom / 2 * math.log(freedom / 2) - math.lgamma(freedom / 2)
        + (freedom - 1) * np.log(spread) - freedom / 2 * spread**2
    )  # fmt: skip
    tail = (1 + _erf((effect - limit * spread) / math.sqrt(2))) / 2
    values = np.exp(log_density) * tail
    return float(np.sum((values[1:] + values[:-1]) / 2) * (spread[1] - spread[0]))


def _root(rising: Callable[[float], float]) -> float:
    """Where a function that rises from below 0 at 0 crosses it."""
    low, high = 0.0, 1.0
    while rising(high) < 0:
        low, high = high, 2 * high
    while high - low > CLOSE * max(1.0, high):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high
