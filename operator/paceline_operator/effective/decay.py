"""How drafts fare in long contexts against short ones, under the same k at the same time: what falls is told, and
changes nothing.

Drafters are trained on texts of some thousand tokens, and their heads have few positions. The engine counts acceptance
by position without context; tokens a step say it by context (`CostCell`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline_engine.protocol import CONTEXT_EDGES, CostCell, Verification
from paceline_operator.effective.shift import FALLEN, RISEN, Pair, interval

MEMORY = 40_000.0
"""Request-steps after which what came before counts for half or less: an hour of one engine."""
KINDS = 256
"""Pairs of k and context at most: an engine that names ever new ones is broken."""
LEAST = 2000.0
"""Request-steps of each side."""


@dataclass(frozen=True, slots=True)
class Decay:
    """(k, lower edge of the context bucket) -> (request-steps with drafts, accepted share of k summed over them)."""

    counts: Mapping[tuple[int, int], Pair] = field(default_factory=dict)


def added(past: Decay, cells: Sequence[CostCell]) -> Decay:
    """`past` with what was sampled since. Steps that verify adaptively, or with other ks than were drafted, are left
    out."""
    counts = dict(past.counts)
    for cell in cells:
        of = cell.request_steps - cell.first_tokens
        if (
            cell.k_drafted <= 0
            or of <= 0
            or cell.k_verified != cell.k_drafted
            or cell.verification is not Verification.ALL
        ):
            continue
        # Each request-step gives one token beside those that were accepted.
        share = min(1.0, max(0, cell.emitted - cell.request_steps) / (of * cell.k_drafted))
        key = cell.k_drafted, cell.context
        if key not in counts and len(counts) >= KINDS:
            continue
        before = counts.get(key, (0.0, 0.0))
        keep = MEMORY / (MEMORY + of)
        counts[key] = (keep * before[0] + of, keep * before[1] + share * of)
    return Decay(counts)


def decayed(decay: Decay, was: bool) -> str:
    """From which context on drafts are accepted less often, in words; empty where they are not. `was`: they were."""
    limit, end = (RISEN, 0) if was else (FALLEN, 1)
    for edge in CONTEXT_EDGES[1:]:
        for k in sorted({k for k, context in decay.counts if context == edge}):
            (of, hits), (short_of, short_hits) = decay.counts[k, edge], decay.counts.get((k, CONTEXT_EDGES[0]), (0, 0))
            if min(of, short_of) >= LEAST and interval(hits, of)[end] < limit * interval(short_hits, short_of)[0]:
                return f"drafts are accepted less often in contexts from {edge} tokens on than in short ones"
    return ""
