"""Engines without vLLM: the plugin's own control server at a loopback address, and pods that are said to run there."""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline_engine.control import ControlServer
from paceline_engine.protocol import CONTROL_PORT, Gauges
from paceline_operator import naming
from tests.cluster.operators import Place
from tests.unit.engine_parts import MAX_K, MAX_NUM_SEQS, Parts

SPEC: dict[str, Any] = {
    "engine": {"maxNumSeqs": MAX_NUM_SEQS},
    "speculation": {"method": "ngram", "maxTokens": MAX_K},
    "tuning": {"ladder": [5, 3, 1, 0], "intervalSeconds": 1, "probing": {"mode": "Disabled"}},
}
"""Of a serving whose engines the stand-ins are."""
VLLM_TEXT = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 0\n"
OTHER_TEXT = "# TYPE python_info gauge\npython_info 1\n"


class AtRest(Parts):
    """An engine that nobody asks anything."""

    def gauges(self) -> Gauges:
        return super().gauges().model_copy(update={"running": 0})


def token(place: Place, secret: str) -> bytes:
    """What the Secret's mount would show the engine."""
    return base64.b64decode(place.child("Secret", secret)["data"]["current"])


@contextmanager
def control(address: str, parts: Parts, tokens: tuple[bytes, ...]) -> Iterator[ControlServer]:
    """The plugin's control port on `address`."""
    server = ControlServer(parts.backend, lambda: tokens, address, CONTROL_PORT)
    server.start()
    try:
        yield server
    finally:
        server.close()


@contextmanager
def metrics(address: str, text: str | Callable[[], str]) -> Iterator[None]:
    """The engine's serving port, of which /metrics alone is there."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write((text if isinstance(text, str) else text()).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer((address, naming.SERVING_PORT), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def run_pod(place: Place, name: str, address: str, *, ready: bool = True) -> None:
    """Say, as a kubelet would, that the pod runs at `address`."""
    status = "True" if ready else "False"
    condition = {"type": "Ready", "status": status, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    body = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": [condition]}
    place.patch("Pod", name, {"status": body}, "status")


def pod_of(place: Place, serving: str) -> str:
    """Name of the serving's one pod, waited for."""

    def pod() -> str | None:
        mine = [p for p in place.list("Pod") if p["metadata"]["labels"].get(naming.LABEL_SERVING) == serving]
        return str(mine[0]["metadata"]["name"]) if mine else None

    return str(place.wait(f"a pod of {serving}", pod))
