"""Requests to the API server: credentials, TLS and proxy of the kubernetes library, connections of aiohttp.

The library's own connections block: each call took a thread, and with it more than twice the CPU.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from kubernetes import client, config
from kubernetes.client.rest import should_bypass_proxies
from yarl import URL

CREDENTIALS_SECONDS = 30.0
"""For which a token is used before the library is asked again: it reads a pod's token anew each minute."""
KEPT_SECONDS = 30.0
"""For which a connection waits for the next call."""
WHOLE_SECONDS = 60.0
"""For a whole answer, however steadily it drips."""
ACCEPT = "application/json"
BROKEN = (TimeoutError, aiohttp.ClientError, client.ApiException, config.ConfigException, OSError, ValueError)
"""What is raised where no answer, or not all of it, comes."""


@dataclass(frozen=True)
class Answer:
    """`status` 0: none came, and `body` says why."""

    status: int
    body: bytes
    retry_after: str | None = None


class Session:
    """Opened by the first request, in whose event loop it lives from then on."""

    def __init__(self, api: client.ApiClient, connections: int, connect_seconds: float, read_seconds: float) -> None:
        self._api, self._connections = api, connections
        self._timeout = aiohttp.ClientTimeout(
            total=WHOLE_SECONDS, sock_connect=connect_seconds, sock_read=read_seconds, ceil_threshold=60
        )
        self._opened: aiohttp.ClientSession | None = None
        self._opening = asyncio.Lock()
        self._token: str | None = None
        self._token_until = 0.0

    async def request(self, method: str, path: str, body: bytes | None, content: str, accept: str = ACCEPT) -> Answer:
        """`path` with its query, quoted already. Never raises for what the other side does."""
        try:
            async with self._answer(method, path, body, content, accept, self._timeout) as answer:
                return Answer(answer.status, await answer.read(), answer.headers.get("Retry-After"))
        except TimeoutError as error:
            return Answer(0, f"timed out: {error}".encode())
        except BROKEN as error:
            return Answer(0, (str(error) or type(error).__name__).encode())

    @asynccontextmanager
    async def stream(self, path: str, accept: str, silent_seconds: float) -> AsyncIterator[aiohttp.ClientResponse]:
        """An answer that goes on until one side ends it, or until nothing came for so long. Raises one of BROKEN."""
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=self._timeout.sock_connect, sock_read=silent_seconds, ceil_threshold=60
        )
        async with self._answer("GET", path, None, "", accept, limits) as answer:
            yield answer

    @asynccontextmanager
    async def _answer(
        self, method: str, path: str, body: bytes | None, content: str, accept: str, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        session, configuration = await self._session(), self._api.configuration
        headers = {"Accept": accept} | ({"Content-Type": content} if body is not None else {})
        if token := await self._authorization():
            headers["Authorization"] = token
        async with session.request(
            method,
            URL(configuration.host + path, encoded=True),
            data=body,
            headers=headers,
            allow_redirects=False,
            proxy=_proxy(configuration),
            server_hostname=configuration.tls_server_name,
            timeout=limits,
        ) as answer:
            if answer.status == 401:
                self._token_until = 0.0
            yield answer

    async def close(self) -> None:
        """Close all connections."""
        if self._opened is not None:
            await self._opened.close()

    async def _session(self) -> aiohttp.ClientSession:
        async with self._opening:
            if self._opened is None:
                context = await asyncio.to_thread(_tls, self._api.configuration)
                self._opened = aiohttp.ClientSession(
                    connector=aiohttp.TCPConnector(
                        limit=self._connections, ssl=context, keepalive_timeout=KEPT_SECONDS
                    ),
                    timeout=self._timeout,
                    headers={
                        **self._api.default_headers,
                        "Accept-Encoding": "identity",  # compression costs both sides more than it saves
                    },
                    cookie_jar=aiohttp.DummyCookieJar(),
                )
            return self._opened

    async def _authorization(self) -> str | None:
        """In a thread where the library may read a file, or run the program that KUBECONFIG names."""
        now = asyncio.get_running_loop().time()
        if now >= self._token_until:
            self._token_until = now + CREDENTIALS_SECONDS  # whoever comes meanwhile uses the one before
            if self._api.configuration.refresh_api_key_hook is None or self._token is None:
                self._token = self._header()
            else:
                self._token = await asyncio.to_thread(self._header)
        return self._token

    def _header(self) -> str | None:
        setting = self._api.configuration.auth_settings().get("BearerToken")
        return str(setting["value"]).strip() if setting else None


def _tls(configuration: client.Configuration) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert, cadata=configuration.ca_cert_data)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, configuration.key_file)
    if configuration.assert_hostname is False or not configuration.verify_ssl:
        context.check_hostname = False
    if not configuration.verify_ssl:
        context.verify_mode = ssl.CERT_NONE
    return context


def _proxy(configuration: client.Configuration) -> str | None:
    proxy: str | None = configuration.proxy
    if proxy and should_bypass_proxies(configuration.host, configuration.no_proxy or ""):
        return None
    return proxy
