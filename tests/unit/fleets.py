"""A fleet on virtual time, and a log of its passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from paceline_operator import fleet
from paceline_operator.fleet import Fleet, Outcome, Trigger
from tests.virtual_time import LoopClock


@dataclass
class Log:
    """Passes as (key, start, trigger), and what the next ones do."""

    starts: list[tuple[str, float, Trigger]] = field(default_factory=list)
    does: Callable[[str], Awaitable[Outcome]] | None = None

    def prepare(self, key: str) -> fleet.Pass:
        async def work(trigger: Trigger) -> Outcome:
            self.starts.append((key, asyncio.get_running_loop().time(), trigger))
            return await self.does(key) if self.does else Outcome()

        return work

    def times(self, key: str = "a") -> list[float]:
        return [start for name, start, _ in self.starts if name == key]


def make(log: Log, *, jitter: float = 0.5, **options: float) -> Fleet[str]:
    clock = LoopClock(asyncio.get_running_loop())
    return Fleet(log.prepare, clock, jitter=lambda: jitter, **options)  # type: ignore[arg-type]


def outcomes(*results: Outcome | BaseException) -> Callable[[str], Awaitable[Outcome]]:
    """One after the other, then the last for ever."""
    queue = list(results)

    async def work(_: str) -> Outcome:
        result = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(result, BaseException):
            raise result
        return result

    return work
