"""Engines as supervised processes: started, watched, restarted with a growing pause, ended with all they started."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx

from paceline_operator.clock import Clock
from paceline_operator.local import guard
from paceline_operator.local.container import Command
from paceline_operator.local.guard import descendants
from paceline_operator.local.ports import listens

GUARD = str(guard.__file__)
"""By its path, so that it runs wherever this package was found, whatever the engine's environment is."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""That end a run in order."""
GRACE_SECONDS = 15.0
"""From SIGTERM to SIGKILL: the engine has nothing left to serve by then."""
FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS = 1.0, 30.0
HEALTHY_SECONDS = 60.0
"""After this long the pause begins anew."""
POLL_SECONDS = 0.5
TAIL_BYTES = 8192
LAST_LINES = 15
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class EngineFailedError(Exception):
    """An engine never became ready."""


class Supervisor:
    """One engine. `run` keeps it running until `stop`; `wait_ready` waits for its first readiness."""

    def __init__(self, command: Command, private: Path, log: Path, clock: Clock, *, again: bool = True) -> None:
        """`again`: an engine that ends after it was ready is started again."""
        self.command = command
        self.log = log
        self.pids: list[int] = []
        """Process ids of the engine, the present one last."""
        self.restarts = 0
        self._private = private
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None
        self._ready = False
        self._stopping = False
        self._again = again
        self.ended: int | None = None
        """Exit status of an engine that ended by itself and is not started again."""

    async def run(self) -> None:
        """Start the engine, and again whenever it ends, unless it ended before it was ever ready or is not to be."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.log.write_bytes(b"")
        pause = FIRST_PAUSE_SECONDS
        while not self._stopping:
            started = self._clock.monotonic()
            status = await self._once()
            if self._stopping:
                return
            if not self._ready or not self._again:
                self.ended = status
                return
            self.restarts += 1
            healthy = self._clock.monotonic() - started >= HEALTHY_SECONDS
            pause = FIRST_PAUSE_SECONDS if healthy else min(2 * pause, LONGEST_PAUSE_SECONDS)
            await asyncio.sleep(pause)

    async def _once(self) -> int:
        with self.log.open("ab") as log:
            # -P: nothing of the folder that the user happens to stand in is imported.
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-I", GUARD, str(os.getpid()), str(GRACE_SECONDS), str(self._private)),
                *self.command.argv,
                env=dict(self.command.environment),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if self._stopping:
            process.terminate()
        assert process.stdout is not None
        told = (await process.stdout.readline()).strip()
        if told.isdigit():
            self.pids.append(int(told))
        return await process.wait()

    async def wait_ready(self, seconds: float, show: Callable[[str], None]) -> None:
        """Until /health answers 200; `show` is given the engine's last line meanwhile.

        Raises EngineFailedError with the end of the log where the engine ends or `seconds` pass first, and where it is
        another program that answers.
        """
        deadline = self._clock.monotonic() + seconds
        async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
            while True:
                if self.ended is not None:
                    raise EngineFailedError(self._failure(f"ended with status {self.ended} before it was ready"))
                with suppress(httpx.HTTPError):
                    answer = await client.get(f"{self.command.serving_url}/health")
                    if answer.status_code == httpx.codes.OK:
                        self._check_ours()
                        self._ready = True
                        return
                if self._clock.monotonic() > deadline:
                    raise EngineFailedError(self._failure(f"was not ready after {seconds:.0f} s"))
                show(last_line(self.log))
                await asyncio.sleep(POLL_SECONDS)

    def _check_ours(self) -> None:
        root = self._process.pid if self._process else 0
        if not listens(self.command.serving_port, descendants(root)):
            what = f"is not what answers at {self.command.serving_url}: another program took the port. Stop that one, "
            raise EngineFailedError(self._failure(what + "or give another --port"))

    def _failure(self, what: str) -> str:
        end = "\n".join(tail(self.log)[-LAST_LINES:])
        return f"engine {self.command.name} {what}. The end of its log ({self.log}):\n{end}"

    async def stop(self) -> None:
        """End the engine and everything it started; returns when it is gone."""
        self._stopping = True
        if self._process is not None and self._process.returncode is None:
            self.hurry()
            await self._process.wait()

    def hurry(self) -> None:
        """Ask the guard to end the engine; once more, and it does so without grace."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                self._process.terminate()


def tail(log: Path) -> list[str]:
    """The last lines of a log, without colours and progress bars' returns."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    lines = (_CONTROL_SEQUENCE.sub("", line).rsplit("\r")[-1].strip() for line in text.split("\n"))
    return [line for line in lines if line]


def last_line(log: Path) -> str:
    """The last line of a log; empty where there is none."""
    return (tail(log) or [""])[-1]
