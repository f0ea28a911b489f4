"""Exchanges over real connections: what peers do to them has the error that it would have in httpx."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import httpx
import pytest

from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.exchange import Exchanges
from tests.harness.ports import free_ports
from tests.unit.engine_answers import SAMPLES, STATE, TOKEN


class Peer:
    """Says what it is told for each request and notes what came, by connection."""

    def __init__(self, answer: Callable[[bytes], bytes], *, keeps: bool = False) -> None:
        """`keeps`: it closes a connection only where it is asked to."""
        self._answer, self._keeps = answer, keeps
        self.connections: list[list[bytes]] = []
        self.tasks: list[asyncio.Task[None] | None] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        mine: list[bytes] = []
        self.connections.append(mine)
        self.tasks.append(asyncio.current_task())
        while head := await _head(reader):
            mine.append(head)
            writer.write(self._answer(head))
            if not self._keeps or b"connection: close" in head.lower():
                break
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _head(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return b""


@asynccontextmanager
async def listening(peer: Peer) -> AsyncIterator[str]:
    server = await asyncio.start_server(peer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*(task for task in peer.tasks if task))


async def body_of(url: str) -> bytes:
    exchanges = Exchanges()
    try:
        async with exchanges.stream("GET", url) as response:
            return b"".join([chunk async for chunk in response.aiter_raw()])
    finally:
        await exchanges.aclose()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"", "disconnected"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", ""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhi", ""),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", ""),
    ],
    ids=["hangs up", "no HTTP", "cut short", "a long header"],
)
async def test_a_peer_that_does_not_speak_http_is_an_error_of_httpx(answer: bytes, words: str) -> None:
    async with listening(Peer(lambda _: answer)) as url:
        with pytest.raises(httpx.RemoteProtocolError) as caught:
            await body_of(url)
    assert words in str(caught.value)


async def test_where_nothing_listens_the_connection_is_refused() -> None:
    (port,) = free_ports(1)
    with pytest.raises(httpx.ConnectError):
        await body_of(f"http://127.0.0.1:{port}")


async def test_no_address_is_an_error_of_httpx() -> None:
    with pytest.raises((httpx.InvalidURL, httpx.HTTPError)):
        await body_of("http://[::1:8765/state")


async def test_redirects_are_not_followed_and_cookies_not_kept() -> None:
    peer = Peer(lambda _: b"HTTP/1.1 302 Found\r\nLocation: /secret\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n")
    exchanges = Exchanges()
    async with listening(peer) as url:
        for _ in range(2):
            async with exchanges.stream("GET", url) as response:
                assert response.status_code == 302
        await exchanges.aclose()
    heads = [head for connection in peer.connections for head in connection]
    assert len(heads) == 2
    assert not any(b"/secret" in head or b"cookie" in head.lower() for head in heads)


async def test_a_compressed_body_is_handed_on_as_it_is() -> None:
    peer = Peer(lambda _: b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nhi")
    async with listening(peer) as url:
        assert await body_of(url) == b"hi"


async def test_a_body_that_is_not_read_to_its_end_ends_the_connection() -> None:
    peer = Peer(lambda _: b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nhi", keeps=True)
    async with listening(peer) as url:
        exchanges = Exchanges()
        for _ in range(2):
            async with exchanges.stream("GET", url) as response:
                assert response.status_code == 200
        await exchanges.aclose()
    assert len(peer.connections) == 2


@pytest.mark.parametrize("old", [False, True], ids=["in one answer", "a plugin without it"])
async def test_an_engine_is_read_in_one_exchange_where_its_plugin_can(old: bool) -> None:
    def answer(head: bytes) -> bytes:
        model = SAMPLES if head.startswith(b"GET /samples") else STATE
        told = model.model_dump(mode="json", by_alias=True)
        if not old:
            told["samples"] = SAMPLES.model_dump(mode="json", by_alias=True)
        body = json.dumps(told).encode()
        return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)

    peer = Peer(answer, keeps=True)
    async with listening(peer) as url, EngineClient() as client:
        found = await client.observe_engine("pod-0", url, url, TOKEN, "b1:6")
    assert (found.state, found.samples, found.failure_message) == (STATE, SAMPLES, "")
    asked = [[head.split()[1] for head in connection] for connection in peer.connections]
    assert asked == [[b"/state?samples=b1:6"], *([[b"/samples?cursor=b1:6"]] if old else [])]
