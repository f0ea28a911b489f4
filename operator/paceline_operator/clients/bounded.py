"""A session of requests for servers that are not trusted: no redirects, no compression, bounded bodies, and
connections that can be cut. Imported by the first question to a Prometheus, for it imports requests."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any

import requests
from requests.adapters import HTTPAdapter

from paceline_operator.clients.wire import Wire

MAX_ANSWER_BYTES = 2 * 1024 * 1024
"""Two hundred pods, 360 points of 25 bytes each, are 1.8 MB."""
CHUNK_BYTES = 64 * 1024


class Bounded(requests.Session):  # type: ignore[misc]  # the library is untyped
    """`complete` is called when a body has been read, before anybody takes it apart."""

    def __init__(self, wire: Wire, complete: Callable[[], object]) -> None:
        super().__init__()
        self._complete, self._adapter = complete, _Watched(wire)

    def request(self, *arguments: Any, **options: Any) -> Any:
        """Raises ValueError for an answer that is too large, or compressed."""
        options |= {"stream": True, "allow_redirects": False}
        options["headers"] = {**(options.get("headers") or {}), "Accept-Encoding": "identity"}
        with super().request(*arguments, **options) as response:
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise ValueError("the answer is compressed, which was not asked for")
            body = bytearray()
            while piece := response.raw.read1(CHUNK_BYTES, decode_content=False):
                body += piece
                if len(body) > MAX_ANSWER_BYTES:
                    raise ValueError(f"the answer is larger than {MAX_ANSWER_BYTES} bytes: do labels choose too much?")
            response._content = bytes(body)
        self._complete()
        return response

    def get_redirect_target(self, resp: Any) -> None:
        """None: requests reads the whole body of a redirect, though it does not follow."""

    def get_adapter(self, url: str) -> Any:
        """Ours for any URL, in place of the one that prometheus-api-client mounts, which also tries again."""
        return self._adapter


class _Watched(HTTPAdapter):  # type: ignore[misc]  # the library is untyped
    def __init__(self, wire: Wire) -> None:
        super().__init__()
        self._wire = wire

    def get_connection_with_tls_context(self, *arguments: Any, **options: Any) -> Any:
        pool, wire = super().get_connection_with_tls_context(*arguments, **options), self._wire

        class Connection(pool.ConnectionCls):  # type: ignore[misc, name-defined]  # known when it runs
            def _new_conn(self) -> socket.socket:  # before TLS, whose handshake may hang too
                connected: socket.socket = super()._new_conn()
                wire.watch(connected)
                return connected

        pool.ConnectionCls = Connection
        return pool
