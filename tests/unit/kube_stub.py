"""A server that says what it is told to, and remembers what it was asked, in place of an API server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kubernetes import client

from paceline_operator.clients.kube import (
    Kube,
)


@dataclass
class Stub:
    """Answers in turn, the last one for ever; `requests` are (method, path, query, headers, body)."""

    answers: list[tuple[int, bytes, dict[str, str]]] = field(default_factory=lambda: [(200, b"{}", {})])
    requests: list[tuple[str, str, dict[str, list[str]], dict[str, str], Any]] = field(default_factory=list)
    block: threading.Event | None = None
    at_once: int = 0
    most: int = 0

    def says(self, status: int, body: Any = None, **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
        self.answers = [(status, content, {k.replace("_", "-"): v for k, v in headers.items()})]


def _lower(headers: Any) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@contextmanager
def listening() -> Iterator[Stub]:
    """A stub at its `address`."""
    state, lock = Stub(), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            url = urlsplit(self.path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with lock:
                state.at_once += 1
                state.most = max(state.most, state.at_once)
                sent = json.loads(body) if body else None
                state.requests.append((self.command, url.path, parse_qs(url.query), _lower(self.headers), sent))
                status, content, headers = state.answers.pop(0) if len(state.answers) > 1 else state.answers[0]
            if state.block:
                state.block.wait(5)
            with lock:
                state.at_once -= 1
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_PUT = do_POST = do_PATCH = do_DELETE = answer  # noqa: N815 the names http.server calls

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *_: object) -> None:
            """A client that lost its patience is part of the test."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    state.address = f"http://127.0.0.1:{server.server_address[1]}"  # type: ignore[attr-defined]
    yield state
    server.shutdown()
    server.server_close()
    thread.join()


def connected(stub: Stub, **options: Any) -> Kube:
    configuration = client.Configuration(host=stub.address, api_key={"BearerToken": "Bearer secret"})  # type: ignore[attr-defined]
    return Kube(client.ApiClient(configuration), **options)
