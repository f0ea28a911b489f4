"""The closed loop: so many in flight as asked, failures counted, nothing cut off is a failure."""

import asyncio
import json
import random
from collections.abc import Callable

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.local import load
from paceline_operator.local.document import Text
from paceline_operator.local.load import ClosedLoop
from paceline_operator.local.texts import PASSAGES, prompt

OK = {"usage": {"completion_tokens": 3}}


class Server(httpx.AsyncBaseTransport):
    """Holds every request until the test lets it go, and remembers what was asked."""

    def __init__(self, answer: Callable[[], httpx.Response] = lambda: httpx.Response(200, json=OK)) -> None:
        self.waiting: list[asyncio.Event] = []
        self.asked: list[dict] = []
        self.hosts: list[str] = []
        self.most = 0
        self._answer = answer

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(json.loads(request.content))
        self.hosts.append(request.url.host)
        gate = asyncio.Event()
        self.waiting.append(gate)
        self.most = max(self.most, len(self.waiting))
        try:
            await gate.wait()
        finally:
            self.waiting.remove(gate)
        return self._answer()

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def release(self, count: int = 1) -> None:
        for gate in self.waiting[:count]:
            gate.set()
        await self.settle()


def loop(server: Server, urls: tuple[str, ...] = ("http://one.test",)) -> ClosedLoop:
    return ClosedLoop(urls, "m", 16, transport=server)


async def test_a_finished_request_is_followed_by_the_next() -> None:
    server = Server()
    driver = loop(server)
    driver.change(3, Text.COPY)
    await server.settle()
    assert len(server.waiting) == 3
    await server.release(2)
    assert (len(server.waiting), driver.completed, driver.in_flight) == (3, 2, 3)
    await driver.stop()
    assert (server.most, driver.failed) == (3, 0)


async def test_concurrency_rises_at_once_and_falls_as_requests_finish() -> None:
    server = Server()
    driver = loop(server)
    driver.change(4, Text.COPY)
    await server.settle()
    driver.change(1, Text.NUMBERS)
    await server.settle()
    assert len(server.waiting) == 4
    await server.release(4)
    assert (len(server.waiting), driver.completed) == (1, 4)
    assert "Each number" in server.asked[-1]["prompt"]
    driver.change(2, Text.NUMBERS)
    await server.settle()
    assert len(server.waiting) == 2
    await driver.stop()


async def test_requests_of_before_are_left_over_until_they_are_answered() -> None:
    server = Server()
    driver = loop(server)
    driver.change(4, Text.COPY)
    await server.settle()
    assert driver.left_over == 0
    driver.change(6, Text.COPY)
    assert driver.left_over == 0, "they are of this phase too"
    await server.settle()
    driver.change(2, Text.COPY)
    assert driver.left_over == 4
    driver.change(2, Text.NUMBERS)
    assert driver.left_over == 6
    for left in (5, 4, 3, 2, 1, 0, 0):
        await server.release()
        assert driver.left_over == left
    await driver.stop()


@given(st.lists(st.one_of(st.just(None), st.tuples(st.integers(0, 4), st.sampled_from(Text))), max_size=12))
async def test_what_is_left_over_is_what_is_answered_before_all_is_as_wanted(
    steps: list[tuple[int, Text] | None],
) -> None:
    """A step is a change, or an answer to the oldest request. Then all of that time are answered, and none is sent."""
    server = Server()
    driver = loop(server)
    wanted = (0, Text.COPY)
    for step in steps:
        if step:
            driver.change(*step)
            wanted = step
            await server.settle()
        else:
            await server.release()
        assert driver.left_over >= len(server.waiting) - wanted[0]
    await server.release(len(server.waiting))
    assert (driver.left_over, len(server.waiting)) == (0, wanted[0])
    await driver.stop()


async def test_requests_are_greedy_bounded_and_spread_over_engines() -> None:
    server = Server()
    driver = loop(server, ("http://one.test", "http://two.test"))
    driver.change(4, Text.COPY)
    await server.settle()
    await driver.stop()
    assert sorted(server.hosts) == ["one.test", "one.test", "two.test", "two.test"]
    for asked in server.asked:
        assert (asked["model"], asked["max_tokens"], asked["temperature"]) == ("m", 16, 0)
        assert not {"seed", "ignore_eos"} & set(asked)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: httpx.Response(500, text="dead"), "HTTP 500: dead"),
        (lambda: httpx.Response(200, text="no json"), "without usage"),
        (lambda: httpx.Response(200, json=[1]), "without usage"),
        (lambda: httpx.Response(200, json={"usage": 1}), "without usage"),
    ],
)
async def test_what_is_no_answer_is_a_failure_and_told(
    answer: Callable[[], httpx.Response], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load, "PAUSE_AFTER_FAILURE_SECONDS", 0)
    server = Server(answer)
    driver = loop(server)
    driver.change(1, Text.COPY)
    await server.settle()
    await server.release()
    assert (driver.completed, driver.failed) == (0, 1)
    assert said in driver.last_failure
    await server.settle()
    assert len(server.waiting) == 1
    await driver.stop()


async def test_a_broken_connection_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "PAUSE_AFTER_FAILURE_SECONDS", 0)

    def broken() -> httpx.Response:
        raise httpx.ReadError("reset")

    server = Server(broken)
    driver = loop(server)
    driver.change(1, Text.COPY)
    await server.settle()
    await server.release()
    assert driver.failed == 1
    assert "reset" in driver.last_failure
    await driver.stop()


async def test_a_stop_cuts_off_without_a_failure() -> None:
    server = Server()
    driver = loop(server)
    driver.change(5, Text.COPY)
    await server.settle()
    await driver.stop()
    assert (driver.failed, driver.in_flight, server.waiting) == (0, 0, [])


@given(st.sampled_from(Text), st.integers())
def test_prompts_repeat_with_the_seed_and_differ_without(kind: Text, seed: int) -> None:
    chance = random.Random(seed)
    several = [prompt(kind, chance) for _ in range(20)]
    again = random.Random(seed)
    assert several == [prompt(kind, again) for _ in range(20)]
    assert len({one.text for one in several}) > 5


@given(st.integers())
def test_a_copy_goes_on_in_the_prompt(seed: int) -> None:
    text = prompt(Text.COPY, random.Random(seed)).text
    begun = text.rpartition("\n\n")[2]
    passage = next(passage for passage in PASSAGES if passage in text)
    rest = passage.partition(begun)[2]
    assert len(rest) > 300
