"""How the plugin boots, or does not: with the workers in processes of their own, broken, and without a token."""

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


def is_shut(engine: RealEngine) -> bool:
    try:
        engine.control.get("/state")
    except httpx.ConnectError:
        return True
    return False


@pytest.fixture(scope="module", autouse=True)
def engines(start_engine: Callable[..., RealEngine]) -> dict[str, RealEngine]:
    """All at once: a boot leaves a core idle most of the time."""
    return {
        "workers apart": start_engine(multiprocessing=True),
        "broken": start_engine(broken_plugin=True),
        "no token": start_engine(token=None),
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


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("broken", "Failed to load plugin paceline"),
        ("no token", "Paceline: no token in $PACELINE_TOKEN_DIR"),
    ],
)
def test_without_the_plugin_or_a_token_the_engine_serves_the_seed_table_and_opens_no_port(
    engines: dict[str, RealEngine], name: str, says: str
) -> None:
    engine = engines[name].wait_ready()
    serves_the_seed_table(engine)
    assert is_shut(engine)
    assert engine.log().count(says) >= 1
