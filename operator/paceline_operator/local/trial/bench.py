"""`vllm bench serve` of the engine's environment, one run at a time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paceline_engine.trial import repeat
from paceline_operator.local.runner import last_line

LONGEST_INTERPRETER = 4096


class BenchError(Exception):
    """It gave no result."""


class Bench:
    """Runs the program `vllm`. Python programs stay imported between runs (repeat.py); others start anew each time."""

    def __init__(self, program: str, environment: Mapping[str, str], log: Path) -> None:
        self.log = log
        self._program = program
        self._environment = dict(environment)
        self._python = interpreter(program)
        self._process: asyncio.subprocess.Process | None = None

    async def run(self, arguments: Sequence[str], seconds: float) -> None:
        """Raises BenchError where it fails or takes longer."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            status = await asyncio.wait_for(self._run(arguments), seconds)
        except TimeoutError:
            await self.close()
            raise BenchError(f"vllm bench serve had no end after {seconds:.0f} s: the engine hangs") from None
        except asyncio.CancelledError:
            await self.close()
            raise
        if status != 0:
            raise BenchError(f"vllm bench serve ended with status {status}: {last_line(self.log)[:300]}")

    async def _run(self, arguments: Sequence[str]) -> int:
        if self._python is None:
            return await self._once(arguments)
        process = self._process or await self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(ConnectionError):
            process.stdin.write(json.dumps({"arguments": list(arguments), "log": str(self.log)}).encode() + b"\n")
            await process.stdin.drain()
            answer = (await process.stdout.readline()).strip()
            if answer.removeprefix(b"-").isdigit():
                return int(answer)
        await self.close()
        raise BenchError(f"vllm bench serve ended by itself: {last_line(self.log)[:300]}")

    async def _start(self) -> asyncio.subprocess.Process:
        assert self._python is not None
        with self.log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                *(*self._python, repeat.__file__, self._program),
                env=self._environment,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        assert process.stdout is not None
        if (await process.stdout.readline()).strip() != b"ready":
            await self.close()
            raise BenchError(f"vllm bench serve could not be loaded: {last_line(self.log)[:300]}")
        return process

    async def _once(self, arguments: Sequence[str]) -> int:
        with self.log.open("ab") as log:
            self._process = process = await asyncio.create_subprocess_exec(
                self._program,
                *arguments,
                env=self._environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        status = await process.wait()
        self._process = None
        return status

    async def close(self) -> None:
        """End it, and the run that is under way."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def interpreter(program: str) -> tuple[str, ...] | None:
    """The Python of a script, with its arguments, by its first line; None of any other program."""
    try:
        with Path(program).open("rb") as file:
            first = file.read(LONGEST_INTERPRETER).split(b"\n", 1)[0].decode("utf-8", "replace")
    except OSError:
        return None
    words = first.removeprefix("#!").split() if first.startswith("#!") else []
    return tuple(words) if any("python" in Path(word).name for word in words[:2]) else None
