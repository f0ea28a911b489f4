"""Engines that mean harm: whatever may stand behind the address of a pod, on its control port and its serving port."""

from __future__ import annotations

import contextlib
import json
import socket
import socketserver
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming

CHUNK = b"x" * 65536
SERIES = 1_000_000
Send = Callable[[bytes], None]
NUMBERS = (-1, 1e308, 2**70, -(2**70), float("nan"), float("inf"), "1", None, [1], {"a": 1}, 1.5, True, "9" * 5000)
"""In place of a number."""


def _answer(body: bytes, more: bytes = b"") -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n%s" % (len(body), more, body)


def _state(numbers: int) -> bytes:
    """A state whose numbers cannot be, each time others."""
    number = NUMBERS[numbers % len(NUMBERS)]
    able = {"liveK": {"supported": True}, "maxK": number, "ladder": [number], "maxNumSeqs": number, "method": "ngram"}
    told = {"protocolVersion": 1, "pluginVersion": "0", "engineVersion": "0", "bootId": "b", "uptimeSeconds": number}
    return json.dumps({**told, "capabilities": able, "generation": number, "table": [number] * 100}).encode()


def huge(send: Send, number: int) -> None:
    """A body without end."""
    send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    while True:
        send(b"10000\r\n" + CHUNK + b"\r\n")


def headers(send: Send, number: int) -> None:
    """Headers without end."""
    send(b"HTTP/1.1 200 OK\r\n")
    while True:
        send(b"X-Header: " + CHUNK + b"\r\n")


def bomb(send: Send, number: int) -> None:
    """Compressed, though it was not asked for."""
    send(_answer(b"\x1f\x8b" + CHUNK, b"Content-Encoding: gzip\r\n"))


def garbage(send: Send, number: int) -> None:
    """No HTTP."""
    send(b"\x16\x03\x01\x00\xa5" + CHUNK)


def lies(send: Send, number: int) -> None:
    """Numbers that cannot be."""
    send(_answer(_state(number)))


def deep(send: Send, number: int) -> None:
    """Nested a hundred thousand levels."""
    send(_answer(b'{"a":' * 100_000 + b"1" + b"}" * 100_000))


def million(send: Send, number: int) -> None:
    """A million series on /metrics."""
    send(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n")
    for start in range(0, SERIES, 1000):
        send(b"".join(b'vllm:generation_tokens_total{i="%d"} -1e400\n' % i for i in range(start, start + 1000)))


def silent(send: Send, number: int) -> None:
    """Nothing: the connection stays open until the other side has enough."""
    threading.Event().wait(30)


def drip(send: Send, number: int) -> None:
    """A byte a second."""
    send(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while True:
        send(b" ")
        threading.Event().wait(1)


def interim(send: Send, number: int) -> None:
    """Interim answers without end, the first one in parts, of each protocol that parsers take for HTTP."""
    name = (b"HTTP", b"RTSP", b"ICE")[number % 3]
    send(b"\r\n" + name)
    while True:
        send((b"/1.1 100 Continue\r\n\r\n" + name) * 10_000)


def redirect(to: str) -> Callable[[Send, int], None]:
    """Elsewhere."""

    def answer(send: Send, number: int) -> None:
        send(f"HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())

    return answer


KINDS: Mapping[str, Callable[[Send, int], None]] = {
    each.__name__: each for each in (huge, headers, bomb, garbage, lies, deep, silent, drip, interim)
}


@contextmanager
def engine(
    address: str, control: Callable[[Send, int], None] | None, serving: Callable[[Send, int], None], met: Counter[str]
) -> Iterator[None]:
    """Both ports at `address`; `control` None: nothing listens there. `met` counts what was asked, by address."""
    with ExitStack() as stack:
        for port, answer in ((CONTROL_PORT, control), (naming.SERVING_PORT, serving)):
            if answer is not None:
                stack.enter_context(listening(address, port, answer, met))
        yield


@contextmanager
def listening(address: str, port: int, answer: Callable[[Send, int], None], met: Counter[str]) -> Iterator[None]:
    """A port that answers every request in this way."""

    class Handler(socketserver.BaseRequestHandler):
        request: socket.socket

        def handle(self) -> None:
            with contextlib.suppress(OSError):
                while self.request.recv(65536):
                    met[address] += 1
                    answer(self.request.sendall, met[address])

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True
        request_queue_size = 64

    with Server((address, port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
