"""A proxy between an operator and the API server: it answers in its place, loses what it carries, or is cut.

It speaks plain HTTP to the operator, so that it sees requests and the events of watches.
"""

from __future__ import annotations

import http.client
import json
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import yaml

from tests.harness.controlplane import ControlPlane

HOP = ("connection", "content-length", "transfer-encoding", "host", "accept-encoding")
"""Headers of one connection, which the other does not have."""
Event = dict[str, Any]


@dataclass(frozen=True)
class Request:
    """One request of the operator's."""

    method: str
    target: str
    """Path and query, as text."""

    @property
    def watch(self) -> bool:
        """Whether events are asked for."""
        return "watch=true" in self.target

    @property
    def writes(self) -> bool:
        """Whether it would change something."""
        return self.method != "GET"

    def about(self, name: str) -> bool:
        """Whether a serving of this name is meant, or what belongs to it."""
        path, _, query = self.target.partition("?")
        return any(part == name or part.startswith(f"{name}-") for part in path.split("/")) or (
            f"paceline.dev/serving={name}," in f"{query},".replace("&", ",")
        )


@dataclass(frozen=True)
class Fault:
    """What becomes of a request. `status` 0: the connection ends without an answer."""

    status: int
    reason: str = ""
    forwarded: bool = False
    """The API server gets it all the same."""
    retry_after: int | None = None


Rule = Callable[[Request], Fault | None]
Lines = Callable[[Event], list[tuple[float, Event]]]
"""An event of a watch -> what is passed on instead, each after so many seconds."""
Answer = tuple[int, bytes]
"""HTTP status and body."""
Answers = Callable[[Request, Answer], Answer | None]
"""An answer of the API server's, watches left out -> what is passed on instead; None: the connection ends."""


class Proxy:
    """Start it with the cluster it leads to; `kubeconfig` leads through it."""

    def __init__(self, cluster: ControlPlane) -> None:
        self.url = cluster.url
        """Of the API server that requests go to, from now on."""
        self.rule: Rule = lambda _: None
        self.lines: Lines = lambda event: [(0.0, event)]
        self.answers: Answers = lambda _, answer: answer
        self._moving = threading.Condition()
        self._cut, self._closed, self._epoch, self._streams = False, False, 0, 0
        self._context = ssl.create_default_context(cafile=str(cluster.authority.certificate))
        self._server = _Server(("127.0.0.1", 0), _Handler, self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        with self._moving:
            self._closed = True
            self._moving.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def kubeconfig(self, direct: Path) -> Path:
        """As `direct`, through this proxy."""
        content = yaml.safe_load(direct.read_text())
        content["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self._server.server_port}"}
        path = direct.with_suffix(".proxied")
        path.write_text(yaml.safe_dump(content))
        return path

    def cut(self) -> None:
        """Nothing gets through any more, and connections of before never will."""
        with self._moving:
            self._cut, self._epoch = True, self._epoch + 1

    def mend(self) -> None:
        with self._moving:
            self._cut = False
            self._moving.notify_all()

    def end_streams(self) -> None:
        """Every watch ends as if the server had closed it."""
        with self._moving:
            self._streams += 1

    @property
    def stream(self) -> int:
        """Generation of watches: those of an earlier one are to end."""
        return self._streams

    @property
    def epoch(self) -> int:
        """Generation of connections."""
        return self._epoch

    def wait(self, epoch: int) -> None:
        """Until what belongs to a connection of `epoch` may move. Raises OSError once the proxy is closed."""
        with self._moving:
            self._moving.wait_for(lambda: self._closed or (not self._cut and epoch == self._epoch))
            if self._closed:
                raise OSError("the proxy is closed")

    def upstream(self) -> http.client.HTTPSConnection:
        """A new connection to the API server."""
        parts = urlsplit(self.url)
        return http.client.HTTPSConnection(parts.hostname or "", parts.port, context=self._context, timeout=700)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], proxy: Proxy) -> None:
        super().__init__(address, handler)
        self.proxy = proxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """An operator that is killed, or an API server: its connections end."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        super().setup()
        self._epoch = self.server.proxy.epoch

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (OSError, http.client.HTTPException):
            self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass

    def _any(self) -> None:
        proxy = self.server.proxy
        proxy.wait(self._epoch)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        request = Request(self.command, unquote(self.path))
        fault = proxy.rule(request)
        if fault is None or fault.forwarded:
            upstream = proxy.upstream()
            try:
                self._forward(upstream, request, body, fault)
            finally:
                upstream.close()
        elif fault.status:
            self._answer(fault)
        else:
            self.close_connection = True

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 http.server's names

    def _forward(
        self, upstream: http.client.HTTPSConnection, request: Request, body: bytes, fault: Fault | None
    ) -> None:
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        upstream.request(self.command, self.path, body or None, headers)
        answer = upstream.getresponse()
        if request.watch and answer.status == 200:
            self._stream(answer)
            return
        passed = self.server.proxy.answers(request, (answer.status, answer.read()))
        self.server.proxy.wait(self._epoch)
        if fault is not None or passed is None:
            self.close_connection = True
            return
        status, content = passed
        self.send_response(status)
        for name, value in answer.getheaders():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _stream(self, answer: http.client.HTTPResponse) -> None:
        """Events as they come, until either side ends."""
        proxy, writing = self.server.proxy, threading.Lock()
        mine = proxy.stream
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.close_connection = True

        def send(event: Event) -> None:
            line = json.dumps(event).encode() + b"\n"
            with suppress(OSError, ValueError), writing:
                proxy.wait(self._epoch)
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()

        for line in answer:
            if proxy.stream != mine:
                break
            for delay, event in proxy.lines(json.loads(line)):
                if delay:
                    timer = threading.Timer(delay, send, (event,))
                    timer.daemon = True
                    timer.start()
                else:
                    send(event)
        self.wfile.write(b"0\r\n\r\n")

    def _answer(self, fault: Fault) -> None:
        body = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": fault.reason, "code": fault.status}
        content = json.dumps({**body, "message": f"a test answers {fault.status}"}).encode()
        self.send_response(fault.status)
        if fault.retry_after is not None:
            self.send_header("Retry-After", str(fault.retry_after))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
