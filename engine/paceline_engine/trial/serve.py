"""`vllm bench serve`, one run at a time, with a limit; the program stays imported between runs (repeat.py)."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from paceline_engine.trial import making, repeat, waves
from paceline_engine.trial.making import Making

LOG = "bench.log"
RESULT = "result.json"


class BenchError(Exception):
    """It gave no result. What it printed is not told: it may quote a prompt."""


class Bench:
    """Files of its runs are in `folder`."""

    def __init__(
        self,
        folder: Path,
        arguments: Sequence[str],
        program: str | None = None,
        made: Making | None = None,
        content: bytes = b"",
    ) -> None:
        """`arguments`: those that all runs share. `made`: how each run's prompts are, of `content`."""
        self._made, self._content = made, content
        self._folder = folder
        self._arguments = list(arguments)
        self._program = program or shutil.which("vllm") or "vllm"
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, load: int, requests: int, seed: int, seconds: float) -> bytes:
        """Its result. Raises BenchError, also where it takes longer than `seconds`, and ResultError of prompts."""
        deadline = time.monotonic() + seconds
        result = self._folder / RESULT
        result.unlink(missing_ok=True)
        varying = waves.arguments(load, requests, seed, str(self._folder), RESULT)
        prompts = making.written(self._made, self._content, self._folder / making.FILE, requests, load, seed)
        asked = {"arguments": [*self._arguments, *prompts, *varying], "log": str(self._folder / LOG)}
        process = self._process or self._start(deadline)
        assert process.stdin is not None
        with suppress(ConnectionError):
            process.stdin.write(json.dumps(asked).encode() + b"\n")
        status = self._line(process, deadline)
        if status != "0":
            raise BenchError(f"vllm bench serve ended with status {status or 'unknown'}")
        try:
            return result.read_bytes()
        except OSError:
            raise BenchError("vllm bench serve wrote no result") from None

    def close(self) -> None:
        """End it, and the run that is under way."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def _start(self, deadline: float) -> subprocess.Popen[bytes]:
        with (self._folder / LOG).open("ab") as log:
            self._process = process = subprocess.Popen(
                [sys.executable, repeat.__file__, self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, **making.HASH_SEED},
                bufsize=0,
                start_new_session=True,
            )
        if self._line(process, deadline) != "ready":
            self.close()
            raise BenchError("vllm bench serve could not be loaded")
        return process

    def _line(self, process: subprocess.Popen[bytes], deadline: float) -> str:
        assert process.stdout is not None
        found = b""
        while not found.endswith(b"\n"):
            there, _, _ = select.select([process.stdout], [], [], max(0.0, deadline - time.monotonic()))
            if not there:
                self.close()
                raise BenchError("vllm bench serve had no end in time: the engine hangs")
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                self.close()
                break
            found += part
        return found.decode("ascii", "replace").strip()
