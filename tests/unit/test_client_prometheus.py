"""The client against servers that are not Prometheus: whatever they do, the answer is a reason, in time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from paceline_operator.api.conditions import Reason
from paceline_operator.clients import prometheus as module
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.history import Absence, Load
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
    started.http.shutdown()
    started.http.server_close()


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
    assert (found.reason, found.message) == (Reason.HISTORY_ERROR, "http://127.0.0.1:9 cannot be connected to")


@pytest.mark.parametrize("url", ["http://[::1", "http://a:99999", "http://[x]", "http://a]b", "http:///"])
async def test_an_address_that_is_none(url: str) -> None:
    found = await ask(url)
    assert isinstance(found, Absence)
    assert found.reason is Reason.HISTORY_ERROR


async def test_no_address_at_all() -> None:
    found = await ask("")
    assert isinstance(found, Absence)
    assert found.reason is Reason.HISTORY_ERROR


@pytest.mark.parametrize("drip", [False, True])
async def test_one_that_is_silent_or_drips_is_left_in_time(server: Server, drip: bool) -> None:
    over = threading.Event()

    def behave(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.end_headers()
        while drip and not over.wait(0.05):
            handler.wfile.write(b" ")
        over.wait(10)

    server.behave = behave
    began = time.monotonic()
    found = await ask(server.url, patience=0.3)
    over.set()
    assert isinstance(found, Absence)
    assert found.reason is Reason.HISTORY_TIMEOUT
    assert time.monotonic() - began < 3.0


async def test_threads_that_hang_are_bounded_and_the_loop_goes_on(server: Server) -> None:
    over = threading.Event()
    server.behave = lambda handler: over.wait(10) and None
    client = PrometheusClient()
    hanging = [client.load(asked(server.url, 0.3), NOW) for _ in range(3 * module.THREADS)]
    found = await asyncio.gather(*hanging)
    over.set()
    assert {type(one) for one in found} == {Absence}
    assert {one.reason for one in found if isinstance(one, Absence)} == {Reason.HISTORY_TIMEOUT}
    assert sum(thread.name.startswith("prometheus") for thread in threading.enumerate()) <= 2 * module.THREADS
    client.close()


async def test_too_much_is_not_read(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_ANSWER_BYTES", 1000)
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
