"""Which load is there: decode time by load bucket in the newest samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from paceline_engine.protocol import LOAD_EDGES, Samples, load_bucket


@dataclass(frozen=True)
class Load:
    """Load of one pass over all engines that answered."""

    present: int | None = None
    """Bucket in the middle of the decode time (its weighted median); None where nothing decoded."""
    shares: Mapping[int, float] = field(default_factory=dict)
    """Load bucket -> share of the decode time of this pass; they sum to 1."""


def buckets_of(max_num_seqs: int) -> tuple[int, ...]:
    """Lower edges of the load buckets that an engine of `max_num_seqs` requests can reach."""
    return tuple(edge for edge in LOAD_EDGES if edge <= max_num_seqs)


def inside(rows: Iterable[tuple[int, int]], bucket: int) -> list[tuple[int, int]]:
    """Of a table's rows (from_requests ascending, k) those where it changes inside a load bucket: one that nobody has
    decided yet may."""
    return [
        (start, k)
        for (_, before), (start, k) in pairwise(rows)
        if before != k and start > bucket and load_bucket(start) == load_bucket(bucket)
    ]


def entries(k: int, changes: Iterable[tuple[int, int]]) -> str:
    """The k that a load bucket begins with, and where it changes `inside`, for people."""
    return ", ".join([f"k {k}", *(f"from {start} on k {other}" for start, other in changes)])


def observe(answers: Iterable[Samples], limit: int = LOAD_EDGES[-1]) -> Load:
    """The load in `answers`, each what came since its cursor; an idle engine adds nothing.

    A median rather than a mean: a burst of stragglers at the end of a phase moves a mean into a bucket nobody was in.
    Steps that no cost cell counts (prefill in each) still have their acceptance counted, so that stands in. An answer
    since boot says nothing of now; there the gauge of running requests does. A load above `limit`, of an engine that
    booted for more requests than the table has entries, counts as `limit`.
    """
    seconds: dict[int, float] = {}
    for samples in answers:
        for load, weight in _weights(samples):
            if load >= 1 and weight > 0:
                bucket = load_bucket(min(load, limit))
                seconds[bucket] = seconds.get(bucket, 0.0) + weight
    total = sum(seconds.values())
    if total <= 0:
        return Load()
    shares = {load: weight / total for load, weight in sorted(seconds.items())}
    reached = 0.0
    for load, share in shares.items():
        reached += share
        if reached >= 0.5:
            return Load(load, shares)
    return Load(load, shares)


def _weights(samples: Samples) -> Iterable[tuple[int, float]]:
    if samples.reset:
        return [(load_bucket(samples.gauges.running), 1.0)]
    if samples.cells:
        return [(cell.load, cell.seconds) for cell in samples.cells]
    return [(cell.load, cell.request_steps / max(1, cell.load)) for cell in samples.acceptance]
