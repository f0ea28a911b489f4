"""The engines' `paceline_` series on the operator's own /metrics, where an engine's serving port cannot show them.

The same names and helps (paceline_engine.exporter), with namespace, serving and pod as labels. Gone with the pod, and
of MAX_ENGINES at most, so that a scrape stays bounded.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from paceline_engine.exporter import families
from paceline_engine.protocol import MAX_K
from paceline_operator.sightings import Sighting

MAX_ENGINES = 1000
"""About 50 series each: 50,000 in all, a few MB of text."""
LABELS = ("namespace", "serving", "pod")
UNEXPORTED = "paceline_engines_unexported"
_KS = {str(k) for k in range(MAX_K + 1)}
"""Label values come from engines: what is no k makes no series."""


class EngineSeries(Collector):
    """What prometheus_client asks, from the thread of a scrape, and passes tell."""

    def __init__(self, limit: int = MAX_ENGINES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._servings: dict[tuple[str, str], Mapping[str, Sighting]] = {}

    def put(self, serving: tuple[str, str], sightings: Mapping[str, Sighting]) -> None:
        """All engines of (namespace, name) as this pass saw them: those that are not among them are gone."""
        mine = {pod: seen for pod, seen in sightings.items() if seen.state is not None}
        with self._lock:
            self._servings.pop(serving, None)
            if mine:
                self._servings[serving] = mine

    def clear(self) -> None:
        """This process looks after nothing any more."""
        with self._lock:
            self._servings.clear()

    def describe(self) -> Iterable[Metric]:
        """Names alone."""
        return [*families(None), self._unexported(0)]

    def collect(self) -> Iterable[Metric]:
        """The series now. An engine that does not answer has `paceline_up` 0 and no other."""
        with self._lock:
            servings = sorted(self._servings.items())
        engines = [(*key, pod, seen) for key, pods in servings for pod, seen in sorted(pods.items())]
        merged: dict[str, Metric] = {}
        for namespace, serving, pod, seen in engines[: self._limit]:
            labels = dict(zip(LABELS, (namespace, serving, pod), strict=True))
            for family in families(seen.state if seen.answering else None):
                kept = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
                for sample in family.samples:
                    if sample.labels.get("k", "0") in _KS:
                        kept.add_sample(sample.name, labels | sample.labels, sample.value)
        return [*merged.values(), self._unexported(max(0, len(engines) - self._limit))]

    @staticmethod
    def _unexported(count: int) -> Metric:
        text = f"Engines whose series are left out of this page, which has those of {MAX_ENGINES} at most."
        return GaugeMetricFamily(UNEXPORTED, text, value=count)


ENGINES = EngineSeries()
REGISTRY.register(ENGINES)
