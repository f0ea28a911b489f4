"""The operator's client for engines against peers that mean harm, over real connections."""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from collections import Counter
from contextlib import ExitStack

import pytest

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients import engine
from paceline_operator.clients.engine import EngineClient
from paceline_operator.observe import ENGINES_AT_ONCE
from tests.harness.processes import wait_until
from tests.security import hostile

BAD, WELL, METADATA = "127.62.4.1", "127.62.4.2", "127.62.4.254"
PEAK_MIB = 64.0
"""Of one answer: 8 MiB are read at most, and what is made of them."""
BAD_SERVINGS = 8
EXPECTED = {
    "huge": Reason.MALFORMED_ANSWER,
    "headers": Reason.MALFORMED_ANSWER,
    "bomb": Reason.MALFORMED_ANSWER,
    "garbage": Reason.MALFORMED_ANSWER,
    "lies": Reason.MALFORMED_ANSWER,
    "deep": Reason.MALFORMED_ANSWER,
    "silent": Reason.POD_NOT_ANSWERING,
    "drip": Reason.POD_NOT_ANSWERING,
    "interim": Reason.POD_NOT_ANSWERING,
}


def urls(address: str) -> tuple[str, str]:
    return f"http://{address}:{CONTROL_PORT}", f"http://{address}:{naming.SERVING_PORT}"


@pytest.mark.parametrize("kind", list(hostile.KINDS))
async def test_each_has_its_reason_in_time_and_in_bounds(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if EXPECTED[kind] is Reason.POD_NOT_ANSWERING:  # the whole deadline is waited for
        monkeypatch.setattr(engine, "DEADLINE_SECONDS", 0.5)
    answer, met = hostile.KINDS[kind], Counter[str]()
    with hostile.engine(BAD, answer, answer, met):
        tracemalloc.start()
        begun = time.monotonic()
        async with EngineClient() as client:
            found = await client.observe_engine("pod", *urls(BAD), "token-of-the-test", None)
            times = await client.first_token_times(urls(BAD)[1])
            page = await client.requests_page(urls(BAD)[1])
            tokens = await client.tokens(urls(BAD)[1])
        seconds, (_, peak) = time.monotonic() - begun, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.failure is EXPECTED[kind], found.failure_message
    assert "token-of-the-test" not in found.failure_message
    assert len(found.failure_message) < 1000
    assert (times is None or not times.counts, page is None or not page.first_token, tokens) == (True, True, None)
    assert seconds < 4 * engine.DEADLINE_SECONDS + 4.0
    assert peak / 2**20 < PEAK_MIB
    assert met[BAD]


async def test_interim_answers_are_not_read_until_the_deadline() -> None:
    with hostile.engine(BAD, hostile.interim, hostile.interim, Counter()):
        async with EngineClient() as client:
            for _ in range(3):
                found = await client.observe_engine("pod", *urls(BAD), "token", None)
                assert "interim answers (status 1xx) were not asked for" in found.failure_message


async def test_a_million_series_are_not_kept() -> None:
    met: Counter[str] = Counter()
    with hostile.engine(BAD, None, hostile.million, met):
        tracemalloc.start()
        async with EngineClient() as client:
            found = await client.observe_engine("pod", *urls(BAD), "token", None)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert found.failure is Reason.MALFORMED_ANSWER, found.failure_message
    assert peak / 2**20 < PEAK_MIB


async def test_a_redirect_is_not_followed_anywhere() -> None:
    met, elsewhere = Counter[str](), Counter[str]()
    away = hostile.redirect(f"http://{METADATA}:{naming.SERVING_PORT}/latest/meta-data/iam/")
    with ExitStack() as stack:
        stack.enter_context(hostile.listening(METADATA, naming.SERVING_PORT, hostile.garbage, elsewhere))
        stack.enter_context(hostile.engine(BAD, away, away, met))
        async with EngineClient() as client:
            found = await client.observe_engine("pod", *urls(BAD), "token", None)
            assert await client.first_token_times(urls(BAD)[1]) is None
            assert await client.complete(urls(BAD)[1], {"prompt": "x"}) is None
    assert found.failure is Reason.MALFORMED_ANSWER
    assert met[BAD] >= 3
    assert not elsewhere


async def test_pods_that_drip_take_no_connection_of_others() -> None:
    """As many at once as the passes over so many servings ask."""
    met: Counter[str] = Counter()

    def refuses(send: hostile.Send, number: int) -> None:
        send(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with ExitStack() as stack:
        stack.enter_context(hostile.engine(BAD, hostile.drip, hostile.drip, met))
        stack.enter_context(hostile.engine(WELL, refuses, refuses, met))
        async with EngineClient() as client:
            number = BAD_SERVINGS * ENGINES_AT_ONCE
            bad = [asyncio.create_task(client.observe_engine(f"bad-{i}", *urls(BAD), "t", None)) for i in range(number)]
            await asyncio.to_thread(wait_until, lambda: met[BAD] >= number / 2, "connections", timeout_seconds=8)
            begun = time.monotonic()
            found = await client.observe_engine("well", *urls(WELL), "t", None)
            seconds = time.monotonic() - begun
            for task in bad:
                task.cancel()
            await asyncio.gather(*bad, return_exceptions=True)
    assert found.failure is Reason.TOKEN_REFUSED
    assert seconds < 2.0
