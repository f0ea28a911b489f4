"""The time to first token, from vLLM's own histogram on /metrics: what came between two readings. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from prometheus_client.parser import text_string_to_metric_families

SERIES = "vllm:time_to_first_token_seconds_bucket"
"""vllm/v1/metrics/loggers.py, 0.32 and 0.33: by engine, cumulative since boot, upper edges in seconds."""
QUANTILE = 0.95
MIN_REQUESTS = 20
"""Fewer have no 95th percentile but their worst."""
READ_SECONDS = 30.0
"""Between two readings: a page costs the API server and this process some milliseconds, and requests must come in."""


@dataclass(frozen=True)
class Histogram:
    """Requests by time to first token since boot."""

    counts: Mapping[float, float]
    """Upper edge, seconds -> requests up to it; the last edge is infinity."""


@dataclass(frozen=True)
class FirstTokens:
    """What was read last, by engine, and when (monotonic)."""

    seen: Mapping[str, Histogram] = field(default_factory=dict)
    at: float = -READ_SECONDS


def is_bucket(line: str) -> bool:
    """Whether a line of /metrics is of the histogram."""
    return line.startswith(SERIES)


def parse(lines: Iterable[str]) -> Histogram | None:
    """From lines of Prometheus text, summed over labels; None where there is none. Raises ValueError for nonsense."""
    counts: dict[float, float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if sample.name == SERIES:
                    edge = float(sample.labels["le"])
                    counts[edge] = counts.get(edge, 0.0) + sample.value
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:  # what garbage comes to
        raise ValueError(f"not Prometheus text: {str(error)[:200]}") from None
    rising = [counts[edge] for edge in sorted(counts)]
    if any(edge != edge for edge in counts) or any(not 0 <= low <= high for low, high in pairwise([0.0, *rising])):
        raise ValueError("the counts of a histogram must rise with its edges")
    return Histogram(dict(sorted(counts.items()))) if counts else None


def quantile(before: Histogram | None, after: Histogram | None) -> float | None:
    """The 95th percentile, seconds, of the requests between two readings of one engine; linear within a bucket.

    None where there are too few, and where the counts fell or the edges changed: the engine restarted in between.
    Beyond the last finite edge, that edge.
    """
    if before is None or after is None or list(before.counts) != list(after.counts):
        return None
    between = [high - low for low, high in zip(before.counts.values(), after.counts.values(), strict=True)]
    total = between[-1]
    if any(high < low for low, high in pairwise([0.0, *between])) or not MIN_REQUESTS <= total < float("inf"):
        return None
    wanted, edge_before, count_before = QUANTILE * total, 0.0, 0.0
    for edge, count in zip(after.counts, between, strict=True):
        if count >= wanted:
            if edge == float("inf"):
                return edge_before
            return edge_before + (edge - edge_before) * (wanted - count_before) / (count - count_before)
        edge_before, count_before = edge, count
    return None
