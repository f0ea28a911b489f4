"""Servings as series: what status knows has its series, what it does not has none, and a scrape stays bounded."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline_operator.api.status import ServingStatus
from paceline_operator.gauges import SERIES, ServingSeries
from tests.unit.test_shown import STATUS

KEY = ("ai", "chat")


def scraped(series: ServingSeries) -> dict[tuple[str, ...], float]:
    """(name, label values by name) -> value, through the text that Prometheus would read."""
    registry = CollectorRegistry()
    registry.register(series)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (
            sample.name.removeprefix("paceline_serving_"),
            *(value for _, value in sorted(sample.labels.items())),
        ): sample.value
        for family in families
        for sample in family.samples
    }


def status(**changes: object) -> ServingStatus:
    return ServingStatus.model_validate({**STATUS, **changes})


def test_what_is_known_has_its_series() -> None:
    series = ServingSeries()
    series.put(KEY, status(table=[{"fromRequests": 1, "k": 5}, {"fromRequests": 16, "k": 3}]), now=1000.0)
    found = scraped(series)
    assert found["condition", "ai", "ReplicasReady", "chat", "Ready"] == 1
    assert found["condition", "ai", "Observing", "chat", "Tuned"] == 0
    assert (found["k", "ai", "chat"], found["load_requests", "ai", "chat"]) == (3, 16)
    assert found["table_k", "1", "ai", "chat"] == 5
    assert found["ratio_to_k0", "ai", "chat"] == pytest.approx(1.58)
    assert found["goodput_tokens_per_second", "3", "ai", "chat"] == pytest.approx(1234.5)
    assert found["tokens_per_position", "3", "ai", "chat"] == pytest.approx(2.71 / 4)
    assert found["pass_timestamp_seconds", "ai", "chat"] == 1000
    assert found["decision_timestamp_seconds", "ai", "Load", "chat"] == 1767225600


def test_what_is_unknown_has_none() -> None:
    series = ServingSeries()
    series.put(KEY, ServingStatus())
    names = {key[0] for key in scraped(series)}
    assert names == {"replicas", "ready_replicas", "policy_generation", "acknowledged_pods", "pass_timestamp_seconds"}
    series.put(KEY, status(loadRequests=None))
    assert "k" not in {key[0] for key in scraped(series)}


def test_a_serving_that_is_gone_leaves_nothing_and_there_is_an_end_to_many() -> None:
    series = ServingSeries(limit=2)
    for name in "abc":
        series.put(("ai", name), ServingStatus())
    assert {key[-1] for key in scraped(series)} == {"a", "b"}
    series.put(("ai", "a"), None)
    assert {key[-1] for key in scraped(series)} == {"b", "c"}
    series.clear()
    assert scraped(series) == {}


def test_every_series_is_named_once() -> None:
    names = [name for name, _, _ in SERIES]
    assert len(set(names)) == len(names)
