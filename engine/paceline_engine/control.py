"""The control port: a small HTTP server in a daemon thread of the engine-core process.

Not trusted with anything: every request needs the token, reads a bounded body in bounded time, and whatever it holds,
the answer is a status and a text. It shares the process with the step loop, so it also holds few threads and little
memory. `GET /state`, `PUT /policy`, `GET /samples?cursor=`, and `GET /state?samples=` for both in one answer; the
meaning is in backend.py.
"""

from __future__ import annotations

import hmac
import logging
import socket
import socketserver
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from paceline_engine.backend import Backend, Refusal
from paceline_engine.limits import Limiter, TooMany
from paceline_engine.protocol import (
    MAX_BODY_BYTES,
    TOKEN_FILE_CURRENT,
    TOKEN_FILE_PREVIOUS,
    ProtocolError,
    Reading,
    Wire,
)

log = logging.getLogger("vllm.paceline")
MAX_CONNECTIONS = 8
"""At once. An operator uses one; the rest is for people with curl."""
IDLE_SECONDS = 5.0
"""A peer that sends nothing for so long is left."""
DEADLINE_SECONDS = 10.0
"""For one connection in all, whatever the peer does: a byte now and then does not hold a thread."""
HOUSEKEEPING_SECONDS = 0.5
LINGER_BYTES = 4 * MAX_BODY_BYTES
"""Read and thrown away after a refusal, so that a peer still sending sees the answer instead of a reset."""
TOKEN_BYTES = 4096
_BUSY_BODY = ProtocolError(reason="NotReady", message=f"{MAX_CONNECTIONS} connections are open already, try again")
_BUSY_JSON = _BUSY_BODY.model_dump_json(by_alias=True)
_BUSY = (
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
    f"Content-Length: {len(_BUSY_JSON)}\r\nConnection: close\r\n\r\n{_BUSY_JSON}"
).encode()


class TokenMissing(Exception):  # noqa: N818 a state of the installation
    """There is no token: a control port without one would be open to everybody."""


class TokenFiles:
    """The tokens of a mounted Secret: `current` and `previous`. Read at every request: a rotation needs no restart."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self) -> tuple[bytes, ...]:
        """Tokens that are accepted now; none where no file can be read. An empty file is no token."""
        tokens = []
        for name in (TOKEN_FILE_CURRENT, TOKEN_FILE_PREVIOUS):
            try:
                with (self._folder / name).open("rb") as file:
                    tokens.append(file.read(TOKEN_BYTES).strip())
            except OSError:
                continue
        return tuple(token for token in tokens if token)


class ControlServer:
    """Serves `backend` to whoever shows one of `tokens()`. Start it, read `port`, close it."""

    def __init__(
        self,
        backend: Backend,
        tokens: Callable[[], tuple[bytes, ...]],
        host: str,
        port: int,
        *,
        idle_seconds: float = IDLE_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
        limiter: Limiter | None = None,
    ) -> None:
        """`port` 0 takes a free one. Nothing is opened yet."""
        self._limiter = limiter or Limiter()
        self._backend = backend
        self._tokens = tokens
        self._address = (host, port)
        self._patience = (idle_seconds, deadline_seconds)
        self._server: _Server | None = None

    @property
    def port(self) -> int:
        """The port listened on; the one asked for before `start`."""
        return int(self._server.server_address[1]) if self._server else self._address[1]

    def start(self) -> None:
        """Listen. Raises OSError where the address cannot be had, TokenMissing where there is no token."""
        if not self._tokens():
            raise TokenMissing
        self._server = _Server(self._address, self._backend, self._tokens, self._limiter, *self._patience)
        threading.Thread(
            target=self._server.serve_forever, args=(HOUSEKEEPING_SECONDS,), name="paceline-control", daemon=True
        ).start()

    def close(self) -> None:
        """Stop listening; requests in progress are told that the engine shuts down."""
        self._backend.close()
        if self._server:
            self._server.shutdown()
            self._server.server_close()


class _Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 16

    def __init__(
        self,
        address: tuple[str, int],
        backend: Backend,
        tokens: Callable[[], tuple[bytes, ...]],
        limiter: Limiter,
        idle_seconds: float,
        deadline_seconds: float,
    ) -> None:
        self.backend = backend
        self.tokens = tokens
        self.limiter = limiter
        self.idle_seconds = idle_seconds
        self._deadline_seconds = deadline_seconds
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._lock = threading.Lock()
        self._open: dict[socket.socket, float] = {}
        """Deadline of every connection."""
        self._collects = True
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        request.settimeout(self.idle_seconds)
        with self._lock:
            full = len(self._open) >= MAX_CONNECTIONS
            if not full:
                self._open[request] = time.monotonic() + self._deadline_seconds
        if not full:
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(_BUSY)
        self.shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Between requests, and at least every HOUSEKEEPING_SECONDS."""
        now = time.monotonic()
        with self._lock:
            late = [request for request, deadline in self._open.items() if now > deadline]
        for request in late:
            with suppress(OSError):  # it went by itself
                request.shutdown(socket.SHUT_RDWR)
        try:
            self.backend.housekeep()
            self._collects = True
        except Exception:
            if self._collects:
                log.exception("Paceline: samples cannot be collected; said once, until they can be again")
            self._collects = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("Paceline: a control connection broke", exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    server_version = "paceline"
    sys_version = ""
    default_request_version = "HTTP/1.1"
    """Taken for lines that are no request: they get a status too, not the bare text of HTTP/0.9."""

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_PUT(self) -> None:
        self._answer(self._put)

    def _get(self, path: str, query: str) -> Wire:
        if path == "/state":
            cursor, state = _asked(query, "samples"), self.server.backend.state()
            if cursor is None:
                return state
            return Reading.model_construct(**dict(state), samples=self.server.backend.samples(cursor or None))
        if path == "/samples":
            return self.server.backend.samples(_asked(query, "cursor"))
        raise _not_found(path)

    def _put(self, path: str, _query: str) -> Wire:
        if path != "/policy":
            raise _not_found(path)
        return self.server.backend.push(self._body())

    def _answer(self, act: Callable[[str, str], Wire]) -> None:
        status, retry_after = HTTPStatus.OK, 0
        try:
            self.server.limiter.check(self.client_address[0])
            self._authorize()
            path, _, query = self.path.partition("?")
            answer = act(path, query)
        except TooMany as refusal:
            status, answer, retry_after = HTTPStatus(refusal.status), refusal.body, refusal.retry_after
        except Refusal as refusal:
            status, answer = HTTPStatus(refusal.status), refusal.body
        except OSError:
            raise  # the peer went
        except Exception as error:
            log.exception("Paceline: a control request failed")
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            answer = ProtocolError(reason="Internal", message=f"{type(error).__name__}, see the engine's log")
        self._send(status, answer, retry_after)

    def _authorize(self) -> None:
        scheme, _, shown = self.headers.get("Authorization", "").partition(" ")
        token = shown.strip().encode("latin-1", "replace")
        # Every token is compared, so that the time taken says nothing about which one was near.
        matches = [hmac.compare_digest(token, known) for known in self.server.tokens()]
        if scheme.lower() != "bearer" or not any(matches):
            raise Refusal(401, "Unauthorized", "the Authorization header must be `Bearer` and this serving's token")

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if length is None or "Transfer-Encoding" in self.headers:
            raise Refusal(411, "LengthRequired", "send the body with a Content-Length")
        if not (length.isascii() and length.isdecimal()):
            raise Refusal(400, "Malformed", f"Content-Length is {length[:40]!r}")
        if len(length) > 15 or int(length) > MAX_BODY_BYTES:
            raise Refusal(413, "TooLarge", f"a policy has at most {MAX_BODY_BYTES} bytes, this one {length[:40]}")
        try:
            body = self.rfile.read(int(length))
        except TimeoutError:
            raise Refusal(408, "TimedOut", f"nothing of the body came for {self.server.idle_seconds:g} s") from None
        if len(body) < int(length):
            raise Refusal(400, "Malformed", f"the body ended after {len(body)} of {length} bytes")
        return body

    def _send(self, status: HTTPStatus, answer: Wire, retry_after: int = 0) -> None:
        body = answer.model_dump_json(by_alias=True).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        if retry_after:
            self.send_header("Retry-After", str(retry_after))
        self.end_headers()
        self.wfile.write(body)
        if status != HTTPStatus.OK:
            self._linger()

    def _linger(self) -> None:
        """Let a peer that still sends finish, within bounds, and close."""
        self.connection.shutdown(socket.SHUT_WR)
        self.connection.settimeout(1.0)
        left = LINGER_BYTES
        while left > 0 and (chunk := self.connection.recv(min(left, 65536))):
            left -= len(chunk)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the base class refuses itself: requests that are not HTTP, and methods without a `do_` here."""
        if code == HTTPStatus.NOT_IMPLEMENTED:
            refusal = _not_found(f"{self.command} {self.path}"[:200])
        else:
            refusal = Refusal(code, "Malformed", message or HTTPStatus(code).phrase)
        self._send(HTTPStatus(refusal.status), refusal.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 the base class's name
        log.debug("Paceline: control port: %s", format % args)


def _asked(query: str, name: str) -> str | None:
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=8).get(name, [None])[0]
    except ValueError as error:
        raise Refusal(400, "Malformed", f"the query cannot be read: {error}"[:200]) from None


def _not_found(what: str) -> Refusal:
    return Refusal(404, "NotFound", f"no {what[:200]} here: GET /state, PUT /policy, GET /samples?cursor=")
