"""How the plugin boots, or does not: with the worker in a process of its own, and with code that is broken."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import httpx
import pytest

from paceline_operator import told
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.engine import EngineClient
from paceline_operator.effective.declared import of_arguments
from paceline_operator.sightings import look
from paceline_operator.tuning.model import Engine
from tests.engine.engines import TOKEN, RealEngine

pytestmark = pytest.mark.engine

COPY = "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,"
"""Every draft is right and has k tokens."""
LOST_SECONDS = 60
"""For vLLM to notice that its engine core is gone, and to end."""


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
    state = engine.state()
    assert state.k_in_force == 1
    found = state.capabilities
    assert (found.attention_backend, found.graph_requests, found.api_servers) == ("CPU_ATTN", {}, 1)
    assert "V1 model runner" in found.adaptive_verification.reason
    assert state.adaptive_verification is None


def test_an_engine_whose_plugin_cannot_be_imported_serves_the_seed_table(engines: dict[str, RealEngine]) -> None:
    engine = engines["broken"].wait_ready()
    serves_the_seed_table(engine)
    with pytest.raises(httpx.ConnectError):
        engine.control.get("/state")
    assert "Failed to load plugin paceline" in engine.log()


async def test_without_the_plugin_speculation_is_effective_by_the_engines_own_counters(
    engines: dict[str, RealEngine],
) -> None:
    engine = engines["broken"].wait_ready()
    urls = [str(url).rstrip("/") for url in (engine.control.base_url, engine.http.base_url)]
    declared = of_arguments([str(argument) for argument in engine.daemon.command])
    async with EngineClient() as client:
        before = await client.observe_engine("pod", *urls, TOKEN, None)
        engine.complete([COPY] * 8, tokens=128)
        after = await client.observe_engine("pod", *urls, TOKEN, None)
    assert before.failure is Reason.PLUGIN_ABSENT
    known, _ = told.effective({}, [before], {"pod": declared}, {})
    _, verdict = told.effective(known, [after], {"pod": declared}, {})
    assert (verdict.status, verdict.reason) == (True, Reason.EFFECTIVE)


async def test_of_a_killed_engine_core_the_operator_still_tells_the_last_answer(engines: dict[str, RealEngine]) -> None:
    """Last of all: it ends the engine."""
    engine = engines["workers apart"].wait_ready()
    generation = engine.push_k(3)
    engine.complete([COPY], tokens=16)
    at = engine.control.base_url, engine.http.base_url
    async with EngineClient() as client:

        async def ask() -> Engine:
            return await client.observe_engine("pod", *(str(url).rstrip("/") for url in at), TOKEN, None)

        times = await client.first_token_times(str(engine.http.base_url).rstrip("/"))
        assert times is not None
        assert times.counts[float("inf")] > 0
        _, seen, _ = look({}, [await ask()], {}, "2026-01-01T00:00:00Z")
        os.kill(engine.core_pid, signal.SIGKILL)
        lost = await ask()
        for _ in range(int(10 * LOST_SECONDS)):
            if lost.failure is Reason.POD_NOT_ANSWERING:
                break
            await asyncio.sleep(0.1)
            lost = await ask()
    (told,), _, (event,) = look(seen, [lost], {}, "2026-01-01T00:00:10Z")
    assert (event.reason, lost.failure) == (Reason.ENGINE_LOST, Reason.POD_NOT_ANSWERING)
    for message in (event.message, told.failure_message):
        assert f"last answer at 2026-01-01T00:00:00Z: generation {generation}, k 3," in message
