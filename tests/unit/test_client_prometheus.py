"""The client against servers that are not Prometheus: whatever they do, the answer is a reason, in time."""

from __future__ import annotations

import asyncio
import gzip
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline_operator.api.conditions import Reason
from paceline_operator.clients import bounded
from paceline_operator.clients import prometheus as module
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.clients.wire import Wire
from paceline_operator.history import Absence, Load
from paceline_operator.history.answer import seconds
from paceline_operator.history.question import Question

NOW = datetime.fromtimestamp(1_800_000_000, UTC)
POINTS = b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1800000000,"3"]]}]}}'
Behaviour = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """One behaviour for each test; what was asked for is kept."""

    def __init__(self) -> None:
        self.behave: Behaviour = answers(POINTS)
        self.authorized: list[str | None] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.authorized.append(self.headers.get("Authorization"))
                server.behave(self)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()

    def stop(self) -> None:
        self.http.shutdown()
        self.http.server_close()


def answers(body: bytes, code: int = 200, **headers: str) -> Behaviour:
    def behave(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(code)
        for name, value in headers.items():
            handler.send_header(name, value)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    return behave


@pytest.fixture
def server() -> Iterator[Server]:
    started = Server()
    yield started
    started.stop()


def asked(url: str, timeout: float = 5.0) -> Question:
    return Question(url, "running", "demand", 3600, 60, timeout, "{}")


async def ask(url: str, patience: float = 5.0, client: PrometheusClient | None = None) -> Load | Absence:
    made = client or PrometheusClient()
    try:
        return await made.load(asked(url, patience), NOW)
    finally:
        made.close()


async def test_a_matrix_of_points(server: Server) -> None:
    found = await ask(server.url)
    assert isinstance(found, Load)
    assert found.running.p50 == 3


@pytest.mark.parametrize(
    ("behave", "message"),
    [
        (answers(b"secret text", 500), "HTTP Status Code 500"),
        (answers(b"<html>", 200), "Expecting value: line 1 column 1"),
        (answers(b'{"data":{"result":"x"}}'), "the answer is no matrix of numbers: TypeError"),
        (answers(b"[]"), "list indices must be integers or slices, not str"),
        (answers(b"[" * 100_000), "recursion"),
        (answers(b"", 302, Location="http://127.0.0.1:9/"), "HTTP Status Code 302"),
    ],
)
async def test_an_answer_that_is_none(server: Server, behave: Behaviour, message: str) -> None:
    server.behave = behave
    found = await ask(server.url)
    assert isinstance(found, Absence)
    assert (found.reason, message in found.message) == (Reason.HISTORY_ERROR, True), found.message
    assert "secret" not in found.message


async def test_nobody_there() -> None:
    found = await ask("http://user:password@127.0.0.1:9")
    assert isinstance(found, Absence)
    assert (found.reason, found.message) == (Reason.HISTORY_ERROR, "http://127.0.0.1:9: cannot be connected to")


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1",
        "http://a:99999",
        "http://[x]",
        "http://a]b",
        "http:///",
        "http://u:pw@a:99999",
        "http://u:pw@[::1",
    ],
)
async def test_an_address_that_is_none(url: str) -> None:
    found = await ask(url)
    assert isinstance(found, Absence)
    assert (found.reason, "pw" in found.message) == (Reason.HISTORY_ERROR, False), found.message


async def test_no_address_at_all() -> None:
    found = await ask("")
    assert isinstance(found, Absence)
    assert found.reason is Reason.HISTORY_ERROR


def silent(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    handler.send_response(200)
    handler.end_headers()
    over.wait(10)


def says_nothing(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    over.wait(10)


def drips(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    drip(handler, over)


def drips_headers(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nX-Long: ")
    drip(handler, over)


def drips_a_chunk_s_length(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;")
    drip(handler, over)


def drip(handler: BaseHTTPRequestHandler, over: threading.Event) -> None:
    with suppress(OSError):
        while not over.wait(0.05):
            handler.wfile.write(b"x")


async def until(true: Callable[[], bool], seconds: float = 5.0) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        await asyncio.sleep(0.02)


def threads() -> int:
    return sum(thread.name == "prometheus" for thread in threading.enumerate())


@pytest.mark.parametrize("hold", [silent, drips, drips_headers, drips_a_chunk_s_length])
async def test_one_that_is_silent_or_drips_is_left_in_time_and_its_thread_ends(
    server: Server, hold: Callable[[BaseHTTPRequestHandler, threading.Event], None]
) -> None:
    over = threading.Event()
    server.behave = lambda handler: hold(handler, over)
    began = time.monotonic()
    try:
        found = await ask(server.url, patience=0.3)
        assert isinstance(found, Absence)
        assert found.reason is Reason.HISTORY_TIMEOUT
        assert time.monotonic() - began < 3.0
        await until(lambda: threads() == 0)
    finally:
        over.set()


@pytest.mark.parametrize("behave", [silent, says_nothing], ids=["body", "head"])
def test_a_late_part_is_late_also_where_the_socket_tells_before_the_deadline_does(
    server: Server, behave: Callable[[BaseHTTPRequestHandler, threading.Event], None]
) -> None:
    over, wire = threading.Event(), Wire()
    server.behave = lambda handler: behave(handler, over)
    try:
        found = PrometheusClient()._ask(server.url, asked(server.url, 0.2), NOW, wire)
        assert isinstance(found, Absence)
        assert found.reason is Reason.HISTORY_TIMEOUT, found.message
    finally:
        wire.cut()
        over.set()


async def test_a_server_has_one_question_at_a_time_and_holds_up_no_other(server: Server) -> None:
    over, other = threading.Event(), Server()
    server.behave = lambda handler: drips(handler, over)
    client = PrometheusClient()
    dripping = [asyncio.create_task(client.load(asked(server.url, 0.3), NOW)) for _ in range(3)]
    try:
        await until(lambda: threads() == 1)
        assert isinstance(await client.load(asked(other.url), NOW), Load)
        found = await asyncio.gather(*dripping)
        assert [one.reason for one in found if isinstance(one, Absence)] == [Reason.HISTORY_TIMEOUT] * 3
        assert len(server.authorized) == 3
        server.behave = answers(POINTS)
        assert isinstance(await client.load(asked(server.url), NOW), Load)
    finally:
        over.set()
        other.stop()


async def test_threads_are_bounded_over_all_servers_and_a_turn_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "THREADS", 2)
    monkeypatch.setattr(module, "WAIT_SECONDS", 0.2)
    over, servers, client = threading.Event(), [Server() for _ in range(4)], PrometheusClient()
    for one in servers:
        one.behave = lambda handler: silent(handler, over)
    try:
        found = await asyncio.gather(*(client.load(asked(one.url, 0.8), NOW) for one in servers))
        assert {one.reason for one in found if isinstance(one, Absence)} == {Reason.HISTORY_TIMEOUT}
        assert sum("was not asked" in one.message for one in found if isinstance(one, Absence)) == 2
        assert sum(len(one.authorized) for one in servers) == 2
    finally:
        over.set()
        for one in servers:
            one.stop()


async def test_a_question_given_up_gives_its_turn_back(server: Server) -> None:
    over = threading.Event()
    server.behave = lambda handler: drips(handler, over)
    client = PrometheusClient()
    first, second = (asyncio.create_task(client.load(asked(server.url, 9.0), NOW)) for _ in range(2))
    try:
        await until(lambda: len(server.authorized) == 1)
        first.cancel()
        second.cancel()
        await asyncio.gather(first, second, return_exceptions=True)
        server.behave = answers(POINTS)
        assert isinstance(await client.load(asked(server.url), NOW), Load)
    finally:
        over.set()


async def test_the_end_cuts_what_is_on_its_way(server: Server) -> None:
    over = threading.Event()
    server.behave = lambda handler: drips(handler, over)
    client = PrometheusClient()
    asking = asyncio.create_task(client.load(asked(server.url, 9.0), NOW))
    try:
        await until(lambda: len(server.authorized) == 1)
        client.close()
        assert isinstance(await asking, Absence)
        assert threads() == 0 or all(thread.daemon for thread in threading.enumerate() if thread.name == "prometheus")
    finally:
        over.set()


@pytest.mark.parametrize("headers", [{"Content-Encoding": "gzip"}, {"Content-Encoding": "gzip, gzip"}])
async def test_what_is_compressed_is_not_unpacked(server: Server, headers: dict[str, str]) -> None:
    server.behave = answers(gzip.compress(POINTS), **headers)
    found = await ask(server.url)
    assert isinstance(found, Absence)
    assert (found.reason, "compressed" in found.message) == (Reason.HISTORY_ERROR, True)


async def test_the_body_of_a_redirect_is_bounded_too(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_ANSWER_BYTES", 1000)
    server.behave = answers(b" " * 300_000, 302, Location="http://127.0.0.1:9/")
    found = await ask(server.url)
    assert isinstance(found, Absence)
    assert "larger than 1000 bytes" in found.message


async def test_answers_are_taken_apart_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    servers, client, inside, most = [Server() for _ in range(4)], PrometheusClient(), 0, 0

    def watched(of: Question, answer: object, now: float) -> Mapping[int, float] | Absence:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.02)
        inside -= 1
        return seconds(of, answer, now)

    monkeypatch.setattr(module, "seconds", watched)
    found = await asyncio.gather(*(client.load(asked(one.url), NOW) for one in servers))
    for one in servers:
        one.stop()
    assert {type(one) for one in found} == {Load}
    assert most == 1


async def test_too_much_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_ANSWER_BYTES", 1000)
    server.behave = answers(b" " * 300_000)
    found = await ask(server.url)
    assert isinstance(found, Absence)
    assert found.reason is Reason.HISTORY_ERROR


async def test_the_token_goes_to_the_operator_s_own_server_alone(server: Server, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret\n")
    await ask("", client=PrometheusClient(server.url, tmp_path / "token"))
    await ask(f"{server.url}/sub", client=PrometheusClient(server.url, tmp_path / "token"))
    assert set(server.authorized) == {"Bearer secret"}
    server.authorized.clear()
    await ask(server.url, client=PrometheusClient("http://127.0.0.1:9", tmp_path / "token"))
    assert set(server.authorized) == {None}
