"""One HTTP exchange with a peer that is not trusted: no redirects, no proxies, no cookies, no decompression.

In httpx's words, carried by aiohttp: with a thousand servings hundreds of exchanges a second are made, and one costs a
seventh of what it does in httpx's own connections. None is kept: it would hold a thread of the plugin's server.
"""

from __future__ import annotations

import re
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import lru_cache
from urllib.parse import urlencode

import aiohttp
import httpx

CONNECT_SECONDS = 2.0
CONNECTIONS = 1024
"""More than all passes that run at once ask (fleet: 16 and 32, of 16 engines each): were they fewer, pods of a few
servings that answer a byte a second would hold those that the others wait for.
"""
CHUNK_BYTES = 64 * 1024
MAX_ANSWER_BYTES = 8 * 1024 * 1024
"""A full samples answer (20 loads x 17 ks x 3 contexts, histograms included) is under 3 MB; /metrics is 40 KB."""
MAX_LINE_BYTES = 4096
"""Of /metrics; the longest that vLLM writes has some 1,000 bytes. The parser's time grows with the square of it."""
MAX_KEPT_BYTES = 256 * 1024
"""Of the lines of one /metrics that are parsed: at most half a second, which nothing else can use."""
INTERIM = re.compile(rb"[A-Z]+/[0-9.]+ +1")
"""How an interim answer begins. aiohttp's parser takes RTSP and ICE for HTTP."""
BEGINNING_BYTES = 32
HEADERS = {"accept": "*/*", "accept-encoding": "identity", "connection": "close", "user-agent": "paceline"}
Headers = Mapping[str, str]


class Exchanges:
    """`stream` as httpx.AsyncClient has it, without what a client does beside. Raises httpx's errors."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport or AiohttpTransport()

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: Headers | None = None,
        content: str | None = None,
        params: Mapping[str, str] | None = None,
        json: object = None,
    ) -> AsyncIterator[httpx.Response]:
        """The answer, whose body is not read yet."""
        sent = httpx.Request(
            method,
            httpx.URL(f"{url}?{urlencode(params)}") if params else _parsed(url),
            headers={**HEADERS, **(headers or {})},
            content=content,
            json=json,
        )
        response = await self._transport.handle_async_request(sent)
        try:
            yield response
        finally:
            await response.aclose()

    async def fetch(
        self, method: str, url: str, headers: Headers, content: str | None, params: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        """Status and body, which is bounded. Without httpx in between where that is not asked for: it costs as much."""
        if isinstance(self._transport, AiohttpTransport):
            asked = f"{url}?{urlencode(params, safe=':')}" if params else url
            return await self._transport.fetch(method, asked, {**HEADERS, **headers}, content)
        async with self.stream(method, url, headers=headers, content=content, params=params) as response:
            return response.status_code, b"".join([chunk async for chunk in bounded(response)])

    async def aclose(self) -> None:
        """Close all connections."""
        await self._transport.aclose()


class AiohttpTransport(httpx.AsyncBaseTransport):
    """Connections of aiohttp. Opened at the first request, in whose event loop it lives from then on."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Raises ConnectError, ConnectTimeout, ReadError, RemoteProtocolError or InvalidURL."""
        headers = [(name, value) for name, value in request.headers.items() if name != "host"]
        answer = await self._request(request.method, str(request.url), headers, request.content or None)
        return httpx.Response(answer.status, headers=list(answer.raw_headers), stream=_Body(answer))

    async def fetch(self, method: str, url: str, headers: Headers, content: str | None) -> tuple[int, bytes]:
        """Status and body. Raises what `handle_async_request` and `bounded` do."""
        answer = await self._request(method, url, list(headers.items()), content.encode() if content else None)
        body = _Body(answer)
        try:
            coding = answer.headers.get("content-encoding", "identity")
            return answer.status, b"".join([chunk async for chunk in _bounded(coding, aiter(body))])
        finally:
            await body.aclose()

    async def _request(
        self, method: str, url: str, headers: list[tuple[str, str]], data: bytes | None
    ) -> aiohttp.ClientResponse:
        session = self._session = self._session or _session()
        try:
            return await session.request(method, url, headers=headers, data=data, allow_redirects=False)
        except aiohttp.InvalidURL as error:
            raise httpx.InvalidURL(str(error)) from None
        except aiohttp.ConnectionTimeoutError as error:
            raise httpx.ConnectTimeout(str(error)) from None
        except aiohttp.ClientConnectorError as error:
            raise httpx.ConnectError(str(error)) from None
        except (aiohttp.ClientError, ValueError) as error:
            raise _broken(error) from None

    async def aclose(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()


class _Body(httpx.AsyncByteStream):
    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._answer.content.iter_chunked(CHUNK_BYTES):
                yield chunk
        except (aiohttp.ClientError, ValueError) as error:
            raise _broken(error) from None

    async def aclose(self) -> None:
        self._answer.close() if not self._answer.content.at_eof() else self._answer.release()


@lru_cache(maxsize=8192)
def _parsed(url: str) -> httpx.URL:
    """The same few of each engine are asked for again and again."""
    return httpx.URL(url)


async def bounded(response: httpx.Response) -> AsyncIterator[bytes]:
    """Its body. Raises ValueError where it is compressed, or larger than MAX_ANSWER_BYTES."""
    async for chunk in _bounded(response.headers.get("content-encoding", "identity"), response.aiter_bytes()):
        yield chunk


async def _bounded(coding: str, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    if coding != "identity":
        raise ValueError("the answer is compressed, which was not asked for")
    read = 0
    async for chunk in chunks:
        read += len(chunk)
        if read > MAX_ANSWER_BYTES:
            raise ValueError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes")
        yield chunk


async def kept_lines(response: httpx.Response, is_wanted: Callable[[str], bool]) -> list[str]:
    """Lines that are wanted. Raises ValueError where they are too many: a part of them would be another sum."""
    kept, size = [], 0
    async for line in lines(response):
        if is_wanted(line):
            kept.append(line)
            size += len(line)
            if size > MAX_KEPT_BYTES:
                raise ValueError(f"the series that are read have more than {MAX_KEPT_BYTES} bytes")
    return kept


async def lines(response: httpx.Response) -> AsyncIterator[str]:
    """Without those that are too long to be a series."""
    rest = b""
    async for chunk in bounded(response):
        *whole, rest = (rest + chunk).split(b"\n")
        rest = rest[: MAX_LINE_BYTES + 1]  # enough to know that the line is too long
        for line in whole:
            if len(line) <= MAX_LINE_BYTES:
                yield line.decode("utf-8", "replace")
    if len(rest) <= MAX_LINE_BYTES:
        yield rest.decode("utf-8", "replace")


class _Final(socket.socket):
    """Of a peer that answers once. Nobody here asks for interim answers (1xx), and a pod may send them without end: as
    many as a read brings are parsed before anything else has its turn. So is little taken at once: chunks of a byte
    take as long."""

    _begun = b""

    def recv(self, size: int, flags: int = 0) -> bytes:
        taken = super().recv(min(size, CHUNK_BYTES), flags)
        if len(self._begun) < BEGINNING_BYTES:
            self._begun = (self._begun + taken).lstrip(b"\r\n")[:BEGINNING_BYTES]
            if INTERIM.match(self._begun):
                raise ConnectionAbortedError("interim answers (status 1xx) were not asked for")
        return taken


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(
            limit=CONNECTIONS, force_close=True, socket_factory=lambda address: _Final(*address[:3])
        ),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )


def _broken(error: Exception) -> httpx.TransportError:
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return httpx.RemoteProtocolError(f"disconnected: {error}")
    if isinstance(error, aiohttp.ClientOSError):
        return httpx.ReadError(str(error))
    return httpx.RemoteProtocolError(str(error))
