"""What a pod's /metrics says of requests: how long they took, and which failed. Pure.

Series of vLLM (vllm/v1/metrics/loggers.py, 0.32 and 0.33) and of the HTTP server beside it
(prometheus-fastapi-instrumentator: http_requests_total, status in classes), summed over their other labels.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

FIRST = "vllm:time_to_first_token_seconds_bucket"
MEAN = "vllm:request_time_per_output_token_seconds_bucket"
FINISHED = "vllm:request_success_total"
ANSWERED = "http_requests_total"
READ = (FIRST, MEAN, FINISHED, ANSWERED)
FAILED_STATUS = "5xx"
FAILED_REASON = "error"
"""vLLM turns it into an HTTP 500; where the server counts answers, it is in those."""
LARGEST = 1e15


@dataclass(frozen=True)
class Page:
    """Counters since the engine's start."""

    first_token: Mapping[float, float] = field(default_factory=dict)
    """Upper edge, seconds -> requests up to it; infinity is the last."""
    token: Mapping[float, float] = field(default_factory=dict)
    """The same for a request's mean time per output token."""
    answered: float = 0.0
    failed: float = 0.0


def is_read(line: str) -> bool:
    """Whether a line of /metrics is needed."""
    return line.startswith(READ)


def parse(lines: Iterable[str]) -> Page | None:
    """From lines of Prometheus text; None where none of the series is there. Raises ValueError for nonsense."""
    edges: dict[str, dict[float, float]] = {FIRST: {}, MEAN: {}}
    counts: dict[tuple[str, str], float] = {}
    try:
        for family in text_string_to_metric_families("\n".join(lines) + "\n"):
            for sample in family.samples:
                if not 0 <= sample.value <= LARGEST:
                    raise ValueError(f"{sample.name} is {sample.value}")
                if sample.name in edges:
                    edge = float(sample.labels["le"])
                    edges[sample.name][edge] = edges[sample.name].get(edge, 0.0) + sample.value
                elif sample.name in (FINISHED, ANSWERED):
                    key = sample.name, sample.labels.get("finished_reason") or sample.labels.get("status", "")
                    counts[key] = counts.get(key, 0.0) + sample.value
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:  # what garbage comes to
        raise ValueError(f"not Prometheus text: {str(error)[:200]}") from None
    if any(edge != edge for rows in edges.values() for edge in rows):
        raise ValueError("a histogram has an edge that is no number")
    if not counts and not any(edges.values()):
        return None
    source, bad = (
        (ANSWERED, FAILED_STATUS) if any(name == ANSWERED for name, _ in counts) else (FINISHED, FAILED_REASON)
    )
    return Page(
        first_token=dict(sorted(edges[FIRST].items())),
        token=dict(sorted(edges[MEAN].items())),
        answered=sum(value for (name, _), value in counts.items() if name == source),
        failed=counts.get((source, bad), 0.0),
    )


def between(before: Page, after: Page) -> Page | None:
    """What came between two readings of one engine; None where it started anew in between."""
    if after.answered < before.answered or after.failed < before.failed:
        return None
    return Page(
        first_token=_risen(before.first_token, after.first_token),
        token=_risen(before.token, after.token),
        answered=after.answered - before.answered,
        failed=after.failed - before.failed,
    )


def total(pages: Iterable[Page]) -> Page:
    """Of several engines."""
    found = list(pages)
    return Page(
        first_token=_summed([page.first_token for page in found]),
        token=_summed([page.token for page in found]),
        answered=sum(page.answered for page in found),
        failed=sum(page.failed for page in found),
    )


def _risen(before: Mapping[float, float], after: Mapping[float, float]) -> dict[float, float]:
    return {edge: max(0.0, count - before.get(edge, 0.0)) for edge, count in after.items()}


def _summed(histograms: list[Mapping[float, float]]) -> dict[float, float]:
    """Over the edges that all of them have: engines of other versions may have others."""
    filled = [one for one in histograms if one]
    shared = set.intersection(*(set(one) for one in filled)) if filled else set()
    return {edge: sum(one[edge] for one in filled) for edge in sorted(shared)}
