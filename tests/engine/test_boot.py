"""How the plugin boots, or does not: with the worker in a process of its own, and with code that is broken."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from tests.engine.engines import RealEngine

pytestmark = pytest.mark.engine

COPY = "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,"
"""Every draft is right and has k tokens."""


def serves_the_seed_table(engine: RealEngine) -> None:
    """k 5 for one request and 0 from nine on, by the engine's own counters."""
    engine.complete([COPY], tokens=32)
    alone = engine.counters()
    assert alone["spec_decode_num_draft_tokens"] == 5 * alone["spec_decode_num_drafts"] > 0
    engine.complete([COPY] * 12, tokens=32)
    crowded = engine.counters()
    drafts = crowded["spec_decode_num_drafts"] - alone["spec_decode_num_drafts"]
    assert drafts < (crowded["generation_tokens"] - alone["generation_tokens"]) / 4


@pytest.fixture(scope="module")
def engines(start_engine: Callable[..., RealEngine]) -> dict[str, RealEngine]:
    """Both at once: a boot does not keep two cores busy."""
    return {
        "workers apart": start_engine(multiprocessing=True),
        "broken": start_engine(broken_plugin=True),
    }


def test_live_k_with_the_worker_in_a_process_of_its_own(engines: dict[str, RealEngine]) -> None:
    engine = engines["workers apart"].wait_ready()
    serves_the_seed_table(engine)
    engine.push_k(1)
    before = engine.counters()
    engine.complete([COPY], tokens=32)
    after = engine.counters()
    drafts = after["spec_decode_num_drafts"] - before["spec_decode_num_drafts"]
    assert after["spec_decode_num_draft_tokens"] - before["spec_decode_num_draft_tokens"] == drafts > 0
    assert engine.state().k_in_force == 1


def test_an_engine_whose_plugin_cannot_be_imported_serves_the_seed_table(engines: dict[str, RealEngine]) -> None:
    engine = engines["broken"].wait_ready()
    serves_the_seed_table(engine)
    with pytest.raises(httpx.ConnectError):
        engine.control.get("/state")
    assert "Failed to load plugin paceline" in engine.log()
