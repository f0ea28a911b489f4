"""What drafts were worth, position by position and over time. Pure.

Variants are ranked by consistency, efficiency = median acceptance length / (k + 1), and not by their best moment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from paceline_operator.experiment.results import VariantResult


@dataclass(frozen=True)
class Consistency:
    """Acceptance of one variant over all its windows."""

    variant: str
    k: int
    median_length: float
    min_length: float
    max_length: float
    points: int
    firing_rate: float | None

    @property
    def efficiency(self) -> float:
        """Median acceptance length over the positions that each step computes."""
        return self.median_length / (self.k + 1)


@dataclass(frozen=True)
class Position:
    """One position of the draft, from 1; shares of drafts, tokens of one request's step."""

    position: int
    survival: float
    """Accepted up to here."""
    conditional: float | None
    """Of those accepted up to the position before."""
    length: float
    """Acceptance length with this many drafted."""
    per_computed: float
    """Tokens per computed position with this many drafted; what a saturated GPU lives on."""

    @property
    def marginal(self) -> float:
        """Tokens that this last position adds: its survival."""
        return self.survival


def positions(survival: Sequence[float]) -> tuple[Position, ...]:
    """The table of a draft, from shares accepted up to each position (non-increasing, in 0 to 1)."""
    lengths = list(accumulate(survival, initial=1.0))
    return tuple(
        Position(at, share, min(1.0, share / before) if before else None, length, length / (at + 1))
        for at, (before, share, length) in enumerate(zip((1.0, *survival), survival, lengths[1:], strict=False), 1)
    )


def survival(result: VariantResult) -> tuple[float, ...]:
    """Shares accepted up to each position over all windows, each by its drafts."""
    counted = [one.acceptance for one in result.windows if one.acceptance and one.acceptance.by_position]
    drafts = sum(one.drafts for one in counted)
    width = max((len(one.by_position) for one in counted), default=0)
    if not drafts:
        return ()
    return tuple(
        sum(one.drafts * one.by_position[at] for one in counted if at < len(one.by_position)) / drafts
        for at in range(width)
    )


def consistency(result: VariantResult) -> Consistency | None:
    """Of one variant; None where it drafted nothing. Lengths outside of windows are warm-up, and do not count."""
    lengths = [
        point.length
        for point in result.lengths
        if any(window.started_at <= point.at <= window.ended_at for window in result.windows)
    ]
    rates = [rate for window in result.windows if (rate := window.firing_rate) is not None]
    if not lengths or not result.k:
        return None
    firing = fmean(rates) if rates else None
    return Consistency(result.variant, result.k, median(lengths), min(lengths), max(lengths), len(lengths), firing)


def ranked(results: Iterable[VariantResult]) -> tuple[Consistency, ...]:
    """Variants that drafted, the most efficient first."""
    found = [one for result in results if (one := consistency(result))]
    return tuple(sorted(found, key=lambda one: (-one.efficiency, one.variant)))
