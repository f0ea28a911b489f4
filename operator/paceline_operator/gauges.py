"""Servings as series on the operator's /metrics: what status says of each, for dashboards and alerts.

Unknown is an absent series, never a 0. Gone with the serving, and of MAX_SERVINGS at most, so that a scrape stays
bounded.
"""

from __future__ import annotations

import threading
from array import array
from collections.abc import Iterable, Iterator
from functools import lru_cache

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline_operator.api.status import BucketStatus, GoodputRow, ServingStatus
from paceline_operator.clock import moment

MAX_SERVINGS = 2000
"""About 60 series each: 120,000 in all, 15 MB of text."""
PREFIX = "paceline_serving_"
OWNER = ("namespace", "serving")
CONDITION_VALUES = {"True": 1.0, "False": 0.0, "Unknown": -1.0}
SERIES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("condition", ("type", "reason"), "A condition of the serving: 1 True, 0 False, -1 Unknown."),
    ("replicas", (), "Pods that exist."),
    ("ready_replicas", (), "Pods that are ready."),
    ("load_requests", (), "Load bucket of the present load, sampling requests an engine."),
    ("k", (), "Draft tokens per request (k) in force at the present load."),
    ("table_k", ("from_requests",), "The table in force: k from so many sampling requests on."),
    ("ratio_to_k0", (), "Goodput in force over that of k=0 in the same engines."),
    ("ratio_to_no_drafter", (), "Goodput in force over that of an engine without a drafter."),
    ("goodput_tokens_per_second", ("k",), "Accepted and bonus tokens per second of step time, at the present load."),
    ("step_seconds", ("k",), "Mean decode step at the present load."),
    ("acceptance_length", ("k",), "Tokens a request gets per step at the present load (1: no draft accepted)."),
    ("tokens_per_position", ("k",), "Tokens per computed position: acceptance length over k + 1."),
    ("accepted_share", ("position",), "Request-steps accepted up to the position, at the k and load in force."),
    ("exploration_step_share", (), "Share of decode steps that tried something else, over about an hour."),
    ("policy_generation", (), "Generation of the table pushed last."),
    ("acknowledged_pods", (), "Pods that confirmed it."),
    ("decision_timestamp_seconds", ("reason",), "When k, or how drafts are verified, changed last (Unix time)."),
    ("pass_timestamp_seconds", (), "When the operator looked at the serving last (Unix time)."),
)
"""(name without PREFIX, labels beside OWNER, help)."""
Series = tuple[str, tuple[str, ...]]
"""(name without PREFIX, label values beside OWNER)."""
Value = tuple[str, tuple[str, ...], float]


class ServingSeries(Collector):
    """What prometheus_client asks, from the thread of a scrape, and passes tell."""

    def __init__(self, limit: int = MAX_SERVINGS) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._servings: dict[tuple[str, str], tuple[tuple[Series, ...], array[float]]] = {}
        """The values, not the status: that takes many times the memory."""

    def put(self, serving: tuple[str, str], status: ServingStatus | None, now: float = 0.0) -> None:
        """The status of (namespace, name) after a pass at `now` (Unix time); None: it is gone."""
        with self._lock:
            if status is None:
                self._servings.pop(serving, None)
            else:
                told = (*values(status), ("pass_timestamp_seconds", (), now))
                series = tuple(_series(name, labels) for name, labels, _ in told)
                self._servings[serving] = series, array("d", (value for _, _, value in told))

    def clear(self) -> None:
        """This process looks after nothing any more."""
        with self._lock:
            self._servings.clear()

    def describe(self) -> Iterable[Metric]:
        """Names alone."""
        return self._families().values()

    def collect(self) -> Iterable[Metric]:
        """The series now."""
        with self._lock:
            servings = sorted(self._servings.items())[: self._limit]
        found = self._families()
        for owner, (series, told) in servings:
            for (name, labels), value in zip(series, told, strict=True):
                found[name].add_metric((*owner, *labels), value)
        return found.values()

    @staticmethod
    def _families() -> dict[str, GaugeMetricFamily]:
        return {
            name: GaugeMetricFamily(f"paceline_serving_{name}", text, labels=OWNER + of) for name, of, text in SERIES
        }


@lru_cache(maxsize=8192)
def _series(name: str, labels: tuple[str, ...]) -> Series:
    """One copy for all servings."""
    return name, labels


def values(status: ServingStatus) -> Iterator[Value]:
    """(name, label values, value) of everything that is known."""
    for condition in status.conditions:
        yield "condition", (condition.type, condition.reason), CONDITION_VALUES[condition.status]
    yield "replicas", (), status.replicas
    yield "ready_replicas", (), status.ready_replicas
    for row in status.table:
        yield "table_k", (str(row.from_requests),), row.k
    if status.ratio_to_k0_permille is not None:
        yield "ratio_to_k0", (), status.ratio_to_k0_permille / 1000
    if status.ratio_to_no_drafter_permille is not None:
        yield "ratio_to_no_drafter", (), status.ratio_to_no_drafter_permille / 1000
    if status.exploration:
        yield "exploration_step_share", (), status.exploration.step_share_permille / 1000
    yield "policy_generation", (), status.policy_generation
    yield "acknowledged_pods", (), status.acknowledged_pods
    if status.decisions and (at := moment(status.decisions[0].at)) is not None:
        yield "decision_timestamp_seconds", (status.decisions[0].reason,), at.timestamp()
    if status.load_requests is not None:
        yield "load_requests", (), status.load_requests
        bucket = next((one for one in status.buckets if one.from_requests == status.load_requests), None)
        yield from _bucket(bucket) if bucket else ()


def _bucket(bucket: BucketStatus) -> Iterator[Value]:
    yield "k", (), bucket.k
    for row in bucket.candidates:
        yield from _row(row)
        if row.k == bucket.k:
            for position, share in enumerate(row.survival_permille, start=1):
                yield "accepted_share", (str(position),), share / 1000


def _row(row: GoodputRow) -> Iterator[Value]:
    k, length = (str(row.k),), row.acceptance_length_milli / 1000
    yield "goodput_tokens_per_second", k, row.goodput_milli_tokens_per_second / 1000
    yield "step_seconds", k, row.step_microseconds / 1e6
    yield "acceptance_length", k, length
    yield "tokens_per_position", k, length / (row.k + 1)


SERVINGS = ServingSeries()
REGISTRY.register(SERVINGS)
