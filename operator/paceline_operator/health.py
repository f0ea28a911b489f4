"""The operator's own HTTP port: /healthz fails when reconciling is stuck, /readyz also when the API server is out of
reach (a restart would not help there), /metrics is Prometheus'.

In a thread of its own, so that it answers, with the truth, when the event loop does not run any more.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

Check = Callable[[], str]
"""Empty when all is well, else what is wrong."""


def serve(host: str, port: int, alive: Check, ready: Check) -> ThreadingHTTPServer:
    """Start serving in the background; `shutdown()` and `server_close()` end it. Raises OSError for a port in use."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, generate_latest(), CONTENT_TYPE_LATEST)
            elif check := {"/healthz": alive, "/readyz": ready}.get(self.path):
                wrong = check()
                self._answer(503 if wrong else 200, (wrong or "ok").encode(), "text/plain; charset=utf-8")
            else:
                self._answer(404, b"/healthz, /readyz and /metrics are here", "text/plain; charset=utf-8")

        def _answer(self, status: int, body: bytes, content_type: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the name http.server gives it
            """A line per probe would drown the log."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="health", daemon=True).start()
    return server
