"""One HTTP/1.1 exchange over a connection of its own: aiohttp's connection and parser without its session.

A session's requests, addresses, pools and timers were half of what it costs to read an engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import urlsplit

import aiohttp
import httpx
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.streams import StreamReader

INFORMATIONAL = range(100, 200)
BUFFER_BYTES = 256 * 1024
"""That are read ahead of whoever reads: most answers are there whole when they are asked for."""


@dataclass(frozen=True)
class Answer:
    """Its head, and the body that is not read yet."""

    status: int
    headers: Mapping[str, str]
    content: StreamReader


@asynccontextmanager
async def exchange(
    method: str, url: str, headers: Mapping[str, str], body: bytes, connect_seconds: float
) -> AsyncIterator[Answer]:
    """The answer to one request. `url` is quoted already, `http://host:port/path`.

    Raises httpx.InvalidURL, ConnectTimeout and ConnectError; ValueError for a line break where none may be; and
    aiohttp.ClientError where the peer hangs up or does not speak HTTP, while the body is read, too.
    """
    host, port, base = _place(url)
    told = {"host": base, **headers, **({"content-length": str(len(body))} if body else {})}
    head = [f"{method} {url.removeprefix(f'http://{base}') or '/'} HTTP/1.1"]
    head += [f"{name}: {value}" for name, value in told.items()]
    if any("\r" in line or "\n" in line for line in head):
        raise ValueError("a line break in the head of a request")
    handler = await _connected(host, port, connect_seconds)
    try:
        handler.set_response_params(auto_decompress=False, read_until_eof=True, read_bufsize=BUFFER_BYTES)
        if handler.transport is None:
            raise aiohttp.ServerDisconnectedError
        handler.transport.write("\r\n".join([*head, "", ""]).encode("latin-1", "replace") + body)
        message, content = await handler.read()
        while message.code in INFORMATIONAL:
            message, content = await handler.read()
        yield Answer(message.code, message.headers, content)
    except HttpProcessingError as error:
        raise aiohttp.ClientPayloadError(str(error)) from None
    finally:
        handler.close()


async def _connected(host: str, port: int, seconds: float) -> ResponseHandler:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds):
            _, handler = await loop.create_connection(lambda: ResponseHandler(loop), host, port)
    except TimeoutError:
        raise httpx.ConnectTimeout(f"{host}:{port} takes no connection within {seconds:g} s") from None
    except OSError as error:
        raise httpx.ConnectError(str(error)) from None
    return handler


@lru_cache(maxsize=8192)
def _place(url: str) -> tuple[str, int, str]:
    """Host, port and both as they stand in `url`."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or 80
    except ValueError as error:
        raise httpx.InvalidURL(str(error)) from None
    if parts.scheme != "http" or not host or parts.username is not None:
        raise httpx.InvalidURL(f"no address: {url[:200]!r}")
    return host, port, parts.netloc
