"""Series of engines on the operator's /metrics: which engines, under which labels, how many, and for how long."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline_engine.exporter import SERIES, families
from paceline_engine.protocol import Feature, State
from paceline_operator import sightings
from paceline_operator.api.conditions import Reason
from paceline_operator.exported import ENGINES, UNEXPORTED, EngineSeries
from paceline_operator.sightings import Sighting
from tests.fakes import FakeEngines
from tests.world import SPEC, World

MANUAL = {**SPEC, "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]}}


async def sighting(shown_by_engine: bool = False, answering: bool = True, **changes: object) -> Sighting:
    engine = await FakeEngines().observe_engine("a", "", "", "", None)
    assert engine.state is not None
    assert engine.samples is not None
    capabilities = engine.state.capabilities.model_copy(update={"metrics": Feature(supported=shown_by_engine)})
    state = engine.state.model_copy(update={"capabilities": capabilities, **changes})
    seen = sightings.sighting(State.model_validate(state.model_dump()), engine.samples.gauges, "now")
    return replace(seen, answering=answering)


def scraped(series: EngineSeries) -> dict[tuple[str, ...], float]:
    """(name, label values in the order of their names) -> value, through Prometheus' own parser."""
    registry = CollectorRegistry()
    registry.register(series)
    return {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


async def test_the_series_are_the_plugins_own_with_the_pod_as_label() -> None:
    series = EngineSeries()
    seen = await sighting(generation=7, k_in_force=3, steps_by_k={3: 100, 0: 5}, probe_steps_by_k={1: 9})
    series.put(("team", "demo"), {"demo-a": seen})
    found = scraped(series)
    assert found["paceline_up", "team", "demo-a", "demo"] == 1
    assert found["paceline_k_in_force", "team", "demo-a", "demo"] == 3
    assert found["paceline_table_generation", "team", "demo-a", "demo"] == 7
    steps = {key[1:3]: value for key, value in found.items() if key[0] == "paceline_steps_total"}
    assert steps == {("3", "table"): 100, ("0", "table"): 5, ("1", "probe"): 9}
    assert seen.state is not None
    theirs = {sample.name for family in families(seen.state) for sample in family.samples}
    assert {key[0] for key in found} == theirs | {UNEXPORTED}
    assert theirs <= {f"paceline_{name}" for name, _, _ in SERIES}


async def test_an_engine_that_shows_its_own_is_left_out_and_one_that_is_silent_is_down() -> None:
    series = EngineSeries()
    series.put(("team", "demo"), {"a": await sighting(True), "b": await sighting(answering=False)})
    assert scraped(series) == {("paceline_up", "team", "b", "demo"): 0, (UNEXPORTED,): 0}


async def test_what_is_gone_has_no_series() -> None:
    series = EngineSeries()
    seen = await sighting()
    series.put(("team", "demo"), {"a": seen, "b": seen})
    series.put(("team", "other"), {"c": seen})
    series.put(("team", "demo"), {"b": seen})
    assert {key[2] for key in scraped(series) if key[0] == "paceline_up"} == {"b", "c"}
    series.put(("team", "demo"), {})
    assert {key[2] for key in scraped(series) if key[0] == "paceline_up"} == {"c"}
    series.clear()
    assert set(scraped(series)) == {(UNEXPORTED,)}


async def test_their_number_is_bounded_by_pods_and_by_ks() -> None:
    series = EngineSeries(limit=3)
    wild = await sighting(steps_by_k=dict.fromkeys(range(-500, 500), 1))
    series.put(("team", "demo"), {f"pod-{number}": wild for number in range(10)})
    found = scraped(series)
    assert found[(UNEXPORTED,)] == 7
    assert len({key[2] for key in found if key[0] == "paceline_up"}) == 3
    assert len([key for key in found if key[0] == "paceline_steps_total"]) == 3 * 65


async def test_passes_keep_it_true(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.apply(MANUAL)
    world.pod("demo-a")
    for _ in range(2):
        world.clock.advance(10)
        await world.serving.run(full=False)
    assert scraped(ENGINES)["paceline_table_generation", "team", "demo-a", "demo"] == 1
    world.engines.failures["demo-a"] = Reason.POD_NOT_ANSWERING
    world.clock.advance(10)
    await world.serving.run(full=False)
    assert scraped(ENGINES)["paceline_up", "team", "demo-a", "demo"] == 0
    world.kube.drop("SpeculativeServing", "demo")
    await world.serving.run(full=True)
    assert ("paceline_up", "team", "demo-a", "demo") not in scraped(ENGINES)


async def test_a_suspended_serving_has_no_series(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.apply(MANUAL)
    world.pod("demo-a")
    await world.serving.run(full=True)
    assert ("paceline_up", "team", "demo-a", "demo") in scraped(ENGINES)
    world.apply({**MANUAL, "suspend": True})
    await world.serving.run(full=True)
    assert ("paceline_up", "team", "demo-a", "demo") not in scraped(ENGINES)
    world.kube.drop("SpeculativeServing", "demo")
    await world.serving.run(full=True)


@pytest.fixture(autouse=True)
def _nothing_left() -> None:
    ENGINES.clear()
