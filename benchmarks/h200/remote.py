"""An engine in a process of its own, asked to run functions of these scripts; dead or late, it costs only itself."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from control import Control

from engine import Engine, Options


class Failed(Exception):  # noqa: N818 an outcome of a measurement
    """The engine's process answered with a traceback, or not at all."""


class Remote:
    """Starts to boot at once; `ready` waits for it. At most one call at a time."""

    def __init__(self, options: Options, log: Path) -> None:
        self.options = options
        self.control = Control(options.port, options.token)
        self.facts: dict[str, Any] = {}
        self.failure = ""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, options, log), name=options.name)
        self._process.start()
        theirs.close()

    @property
    def alive(self) -> bool:
        """Whether it can be asked."""
        return not self.failure and bool(self.facts)

    def ready(self, until: float) -> None:
        """Wait for the boot, to `until` on the monotonic clock."""
        self.facts = self._answer(until)

    def do(self, function: Callable[..., Any], until: float, **arguments: Any) -> Any:
        """`function(engine, **arguments)` in its process. Raises Failed; when late the process is ended."""
        if not self.alive:
            raise Failed(f"engine {self.options.name} is not there: {self.failure or 'not booted'}")
        self._pipe.send((function, arguments))
        return self._answer(until)

    def _answer(self, until: float) -> Any:
        try:
            if not self._pipe.poll(max(0.0, until - time.monotonic())):
                self.close("took too long")
                raise Failed(f"engine {self.options.name} took too long and was ended")
            worked, answer = self._pipe.recv()
        except (EOFError, OSError):
            self.close("died, see its log")
            raise Failed(f"engine {self.options.name} died, see its log") from None
        if not worked:
            raise Failed(f"engine {self.options.name}: {answer}")
        return answer

    def close(self, why: str = "closed") -> None:
        """End the process and whatever it started."""
        self.failure = self.failure or why
        if self._process.pid is not None and self._process.is_alive():
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.join(10)


def _serve(pipe: Connection, options: Options, log: Path) -> None:
    os.setsid()  # so that its children end with it
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ["CUDA_VISIBLE_DEVICES"] = options.devices
    try:
        engine = Engine(options)
        pipe.send((True, engine.facts()))
    except BaseException:
        traceback.print_exc()
        pipe.send((False, traceback.format_exc(limit=-4)))
        os.killpg(0, signal.SIGKILL)
    while True:
        function, arguments = pipe.recv()
        try:
            pipe.send((True, function(engine, **arguments)))
        except Exception:
            traceback.print_exc()
            pipe.send((False, traceback.format_exc(limit=-4)))
