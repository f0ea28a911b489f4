"""The arithmetic behind a load's candidates, as rows and as text: by position of the draft, and by k."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_operator.tuning.model import BucketView, Candidate, Interval


@dataclass(frozen=True)
class PositionRow:
    """One position of the drafts of one k. Shares are of drafts; tokens are per request and step."""

    position: int
    survival: float
    """Share of drafts accepted up to here."""
    conditional: float | None
    """Share of those accepted up to the position before; None where none was."""
    marginal: float
    """Tokens that this position adds: survival times the firing rate."""


@dataclass(frozen=True)
class KRow:
    """One k at one load."""

    k: int
    acceptance_length: Interval
    per_position: float
    """Tokens per computed position: acceptance length over k + 1. What counts when the GPU is saturated."""
    goodput: Interval
    step_milliseconds: float
    firing_rate: float | None
    steps: int
    borrowed: bool


def positions(candidate: Candidate) -> tuple[PositionRow, ...]:
    """What each position of `candidate`'s drafts is worth; empty at k=0."""
    fired = candidate.firing_rate if candidate.firing_rate else 1.0
    rows, before = [], 1.0
    for position, share in enumerate(candidate.survival, start=1):
        survival = min(1.0, share / fired)
        rows.append(PositionRow(position, survival, survival / before if before > 0 else None, share))
        before = survival
    return tuple(rows)


def by_k(view: BucketView) -> tuple[KRow, ...]:
    """Every k of the ladder at `view`'s load, largest first."""
    return tuple(
        KRow(
            k=found.k,
            acceptance_length=found.acceptance_length,
            per_position=found.acceptance_length.value / (found.k + 1),
            goodput=found.goodput,
            step_milliseconds=1000 * found.step_seconds.value,
            firing_rate=found.firing_rate,
            steps=found.steps,
            borrowed=found.borrowed,
        )
        for found in view.candidates
    )


def text(view: BucketView) -> str:
    """Both tables of one load. Positions are those of the k in force; where it drafts nothing, of the largest k."""
    lines = [f"load {view.load}: k {view.k} in force, {'observed' if view.observed else 'observing'}"]
    if view.recommended_k != view.k:
        lines[0] += f", k {view.recommended_k} recommended"
    lines.append("   k  length  per position  step ms      tok/s (95 %)            steps")
    lines += [
        f"{row.k:4d}  {row.acceptance_length.value:6.2f}  {row.per_position:12.2f}  {row.step_milliseconds:7.2f}"
        f"  {row.goodput.value:9.1f} ({row.goodput.low:.1f} to {row.goodput.high:.1f})"
        f"  {row.steps}{'  borrowed' if row.borrowed else ''}"
        for row in by_k(view)
    ]
    drafting = [found for found in view.candidates if found.k > 0]
    shown = next((found for found in drafting if found.k == view.k), drafting[0] if drafting else None)
    if shown is None:
        return "\n".join(lines)
    fired = "" if shown.firing_rate is None else f", drafts fire in {shown.firing_rate:.0%} of request-steps"
    lines += [f"drafts of k {shown.k}{fired}", "  position  survival  conditional  adds tokens"]
    for at in positions(shown):
        conditional = "-" if at.conditional is None else f"{at.conditional:.1%}"
        lines.append(f"{at.position:10d}  {at.survival:8.1%}  {conditional:>11}  {at.marginal:11.3f}")
    return "\n".join(lines)
