"""An event loop whose clock jumps to the next timer instead of waiting for it: hours of schedule in milliseconds."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

T = TypeVar("T")
ORIGIN = datetime(2026, 1, 1, tzinfo=UTC)


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait for files: it says for how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("the loop would wait for ever: nothing is scheduled")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """For code that waits for timers and events alone: real I/O would find no time passing."""

    def __init__(self) -> None:
        self._virtual = _JumpingSelector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


class LoopClock:
    """paceline_operator.clock.Clock on a loop's time."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def now(self) -> datetime:
        return ORIGIN + timedelta(seconds=self._loop.time())

    def monotonic(self) -> float:
        return self._loop.time()


def run(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end on a virtual loop that starts at second 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coroutine)
