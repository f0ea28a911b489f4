"""Two readings of an engine's /metrics -> the server's side of the window between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from paceline_engine.trial.facts import Acceptance, Latency, Quantiles, ResultError, Window

HISTOGRAMS = {
    "ttft": "vllm:time_to_first_token_seconds",
    "tpot": "vllm:request_time_per_output_token_seconds",
    "itl": "vllm:inter_token_latency_seconds",
    "e2e": "vllm:e2e_request_latency_seconds",
}
"""vllm/v1/metrics/loggers.py, 0.32 and 0.33."""
HITS, QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
DRAFTS, DRAFTED, ACCEPTED, AT = (
    f"vllm:spec_decode_num_{name}_total"
    for name in ("drafts", "draft_tokens", "accepted_tokens", "accepted_tokens_per_pos")
)
"""vllm/v1/spec_decode/metrics.py, 0.32 and 0.33."""
COUNTERS = (HITS, QUERIES, DRAFTS, DRAFTED, ACCEPTED, *(f"{name}_sum" for name in HISTOGRAMS.values()))
MOST = 1e15
"""No counter is there; beyond it a float does not count in ones."""
MILLISECONDS = 1000.0


@dataclass(frozen=True)
class ServerSide:
    """What one engine says of a window; None = it does not tell, or there was none."""

    latency: Latency
    """Quantiles are linear within a bucket; beyond the last finite edge, that edge."""
    prefix_cache_hit_rate: float | None
    acceptance: Acceptance | None

    def beside(self, window: Window) -> Window:
        """`window`, which clients measured, with this."""
        return window.model_copy(
            update={
                "server": self.latency,
                "prefix_cache_hit_rate": self.prefix_cache_hit_rate,
                "acceptance": self.acceptance or window.acceptance,
            }
        )


@dataclass
class _Reading:
    """Sums over all labels but the ones that count."""

    counters: dict[str, float] = field(default_factory=dict)
    buckets: dict[str, dict[float, float]] = field(default_factory=dict)
    """Histogram -> upper edge, seconds -> count up to it."""
    positions: dict[int, float] = field(default_factory=dict)


def between(before: str, after: str) -> ServerSide:
    """Raises ResultError for what is no Prometheus text, and where a counter fell: the engine restarted in between."""
    try:
        return _between(_read(before), _read(after))
    except ValidationError as error:
        raise ResultError(f"/metrics: {error.errors()[0]['msg']}") from None


def _between(first: _Reading, last: _Reading) -> ServerSide:
    counted = {name: value - first.counters.get(name, 0.0) for name, value in last.counters.items()}
    at = {position: value - first.positions.get(position, 0.0) for position, value in last.positions.items()}
    if any(value < 0 for value in (*counted.values(), *at.values())):
        raise ResultError("/metrics: a counter fell between two readings: the engine restarted")
    latencies = {
        side: _quantiles(
            {edge: count - first.buckets.get(name, {}).get(edge, 0.0) for edge, count in last.buckets[name].items()},
            counted.get(f"{name}_sum", 0.0),
        )
        for side, name in HISTOGRAMS.items()
        if name in last.buckets
    }
    queries, hits, drafts = (counted.get(name, 0.0) for name in (QUERIES, HITS, DRAFTS))
    return ServerSide(
        Latency(**latencies),
        min(1.0, hits / queries) if queries else None,
        Acceptance(
            drafts=int(drafts),
            drafted=int(counted.get(DRAFTED, 0.0)),
            accepted=int(counted.get(ACCEPTED, 0.0)),
            by_position=tuple(min(1.0, at[position] / drafts) for position in sorted(at)),
        )
        if drafts
        else None,
    )


def _read(text: str) -> _Reading:
    reading = _Reading()
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                _add(reading, sample.name, sample.labels, sample.value)
    except (ValueError, LookupError, TypeError, AttributeError) as error:  # what the parser raises on garbage
        raise ResultError(f"/metrics: not Prometheus text: {str(error)[:200]}") from None
    return reading


def _add(reading: _Reading, name: str, labels: Mapping[str, str], value: float) -> None:
    if name not in COUNTERS and name != AT and not name.endswith("_bucket"):
        return
    if not 0 <= value < MOST:
        raise ValueError(f"{name} is {value}")
    if name in COUNTERS:
        reading.counters[name] = reading.counters.get(name, 0.0) + value
    elif name == AT:
        position = int(labels["position"])
        reading.positions[position] = reading.positions.get(position, 0.0) + value
    elif (histogram := name.removesuffix("_bucket")) in HISTOGRAMS.values():
        edge = float(labels["le"])
        if not edge >= 0:
            raise ValueError(f"{name} has the edge {edge}")
        counts = reading.buckets.setdefault(histogram, {})
        counts[edge] = counts.get(edge, 0.0) + value


def _quantiles(counts: Mapping[float, float], seconds: float) -> Quantiles | None:
    edges = sorted(counts)
    rising = [counts[edge] for edge in edges]
    if any(low > high for low, high in pairwise([0.0, *rising])):
        raise ResultError("/metrics: the counts of a histogram must rise with its edges")
    total = rising[-1]
    if not total:
        return None
    finite = [edge for edge in edges if edge < float("inf")]
    if not finite:
        return None
    known = [counts[edge] for edge in finite]
    p50, p95, p99 = (
        float(np.interp(share * total, [0.0, *known], [0.0, *finite])) * MILLISECONDS for share in (0.50, 0.95, 0.99)
    )
    return Quantiles(mean=seconds / total * MILLISECONDS, p50=p50, p95=p95, p99=p99)
