"""Student's t by scipy: tails, bounds, and the effect that a test finds.

Imported when something is judged: it takes 27 MB of memory, which an operator without experiments need not have.
"""

from __future__ import annotations


def both_tails(freedom: int, statistic: float) -> float:
    """P(|T| >= |statistic|)."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(statistic)))


def bound(freedom: int, share: float) -> float:
    """What |T| exceeds with probability `share`, which is above 0."""
    from scipy.special import stdtrit

    return float(-stdtrit(freedom, share / 2))


def shift(freedom: int, share: float, power: float) -> float:
    """True effect, in standard errors, with which T exceeds `bound(freedom, share)` with probability `power`."""
    from scipy.special import nctdtrinc

    return float(nctdtrinc(freedom, 1 - power, bound(freedom, share)))
