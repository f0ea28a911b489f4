"""The engine plugin without an engine: what its tests, and those of the operator, put a control port on."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from paceline_engine.backend import Backend
from paceline_engine.control import ControlServer
from paceline_engine.digest import Digest
from paceline_engine.policy import LivePolicy
from paceline_engine.protocol import Capabilities, Feature, Gauges, Verification, VerificationFeature
from paceline_engine.samples import History, Recorder
from paceline_engine.verification import VerificationControl

TOKEN = "0123456789abcdef"
AUTH = f"Authorization: Bearer {TOKEN}\r\n"
MAX_K = 5
MAX_NUM_SEQS = 4
BOOT = (5, 5, 3, 1, 0)


class Parts:
    """A policy, a recorder and the backend that shows them, as one engine process has them."""

    def __init__(
        self,
        *,
        live_k: bool = True,
        adaptive: VerificationFeature | None = None,
        executor: Any = None,
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """`executor`: of an engine that booted with adaptive verification."""
        self.policy = LivePolicy(BOOT, MAX_K)
        self.recorder = Recorder()
        self.digest = Digest(self.recorder, clock=clock, pause=lambda _: None)
        self.history = History(self.recorder, "boot")
        self.verification = VerificationControl(executor, on_mode=lambda _: None) if executor else None
        if executor:
            modes = (Verification.ADAPTIVE, Verification.ALL, Verification.CAPPED)
            adaptive = VerificationFeature(supported=True, present=True, modes=modes, repriceable=True)
        self.backend = Backend(
            capabilities=Capabilities(
                live_k=Feature(supported=live_k, reason="" if live_k else "no schedule"),
                adaptive_verification=adaptive or VerificationFeature(supported=False, reason="V1"),
                max_k=MAX_K,
                ladder=(5, 3, 1, 0),
                max_num_seqs=MAX_NUM_SEQS,
                method="ngram",
                runner="V1",
            ),
            policy=self.policy,
            history=self.history,
            digest=self.digest,
            gauges=self.gauges,
            boot_id="boot",
            engine_version="0.32.0",
            verification=self.verification,
            clock=clock,
        )

    def gauges(self) -> Gauges:
        return Gauges(
            running=1,
            waiting=0,
            kv_cache_usage=0.5,
            prompt_tokens=self.recorder.prompt_tokens,
            generation_tokens=self.recorder.generation_tokens,
        )


@contextmanager
def serving(parts: Parts, tokens: tuple[bytes, ...] = (TOKEN.encode(),), **how: Any) -> Iterator[ControlServer]:
    """A control server on a free port of the loopback interface, closed at the end."""
    server = ControlServer(parts.backend, lambda: tokens, "127.0.0.1", 0, **how)
    server.start()
    try:
        yield server
    finally:
        server.close()


def exchange(port: int, sent: bytes, *, finish: bool = True) -> bytes:
    """Everything the server says to these bytes until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        try:
            connection.sendall(sent)
            if finish:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has answered and closed already
        said = b""
        try:
            while chunk := connection.recv(65536):
                said += chunk
        except ConnectionResetError:
            pass
        return said


def ask(
    port: int, line: str, headers: str = AUTH, body: bytes = b"", *, length: str | None = None
) -> tuple[int, dict[str, Any]]:
    """Status and JSON body of one well-formed exchange."""
    counted = f"Content-Length: {len(body) if length is None else length}\r\n" if body or length is not None else ""
    said = exchange(
        port, f"{line} HTTP/1.1\r\nHost: x\r\n{headers}{counted}\r\n".encode("latin-1") + body, finish=False
    )
    head, _, document = said.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(document)
