"""One task per object: it waits for a wake, the resync or the period the last pass asked for, and runs one pass.

Knows no kinds and does no I/O: a key is any hashable, a pass any coroutine function. A wake that comes during a pass
leads to another one, passes over one object never overlap, and what a pass raises ends neither its task nor another's.
Idle (not the leader), the fleet only remembers which objects there are.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

from paceline_operator import metrics
from paceline_operator.clock import Clock

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 300.0
GAP_SECONDS = 0.5
"""Between two passes over one object: a burst of events is one pass."""
BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_LIMIT_SECONDS = 60.0
PASS_LIMIT_SECONDS = 120.0
"""Every call in a pass has its own, shorter limit: this one is for what nobody thought of."""

K = TypeVar("K")


class Trigger(StrEnum):
    """Why a pass runs. Wake and resync look at everything, period only at what moves by itself."""

    WAKE = "Wake"
    RESYNC = "Resync"
    PERIOD = "Period"


@dataclass(frozen=True)
class Outcome:
    """What a pass says about the next one."""

    after: float | None = None
    """Seconds to the next pass of trigger PERIOD; None: only a wake or the resync."""
    gone: bool = False
    """The object is not there any more: its task ends."""


Pass = Callable[[Trigger], Awaitable[Outcome]]


@dataclass
class _Member:
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    work: Pass | None = None
    task: asyncio.Task[None] | None = None
    due: float | None = None
    """Since when a pass is running, or from when on one should be (monotonic)."""
    running: bool = False
    failures: int = 0


@dataclass(frozen=True)
class _Failure:
    backoff: float
    """Seconds to the next pass unless something changes before."""
    floor: float
    """Seconds in which no pass may start, whatever changes: the other side asked for them."""


class Fleet(Generic[K]):
    """All objects that this process knows, and, while it is active, their tasks.

    `prepare` gives an object its pass once: what that callable remembers lives until the object is gone, or `forget`.
    `concurrency`: passes at once of trigger PERIOD, and as many of others.
    """

    def __init__(
        self,
        prepare: Callable[[K], Pass],
        clock: Clock,
        *,
        concurrency: int = 32,
        resync_seconds: float = RESYNC_SECONDS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._prepare = prepare
        self._clock = clock
        # Apart: a thousand objects that all wait for a slow API server must not keep those waiting that ask it nothing.
        self._slots = {True: asyncio.Semaphore(concurrency), False: asyncio.Semaphore(concurrency)}
        self._resync = resync_seconds
        self._jitter = jitter
        self._members: dict[K, _Member] = {}
        self._active = False
        self._begun_at = 0.0
        """When a pass began last, or the tasks did (monotonic)."""

    def __len__(self) -> int:
        return len(self._members) if self._active else 0

    def __contains__(self, key: K) -> bool:
        return key in self._members

    def add(self, key: K) -> None:
        """An object that is, or may be, there: start its task, or wake it."""
        if key not in self._members:
            self._members[key] = _Member()
            if self._active:
                self._launch(key)
        self.wake(key)

    def wake(self, key: K) -> None:
        """Something about a known object changed. Unknown keys are nobody's business."""
        if member := self._members.get(key):
            member.wake.set()
            if member.due is None or member.due > self._clock.monotonic():
                member.due = self._clock.monotonic()

    def wake_all(self) -> None:
        """Something changed that may concern every object."""
        for key in self._members:
            self.wake(key)

    def start(self) -> None:
        """Become active: one task for each object."""
        if self._active:
            return
        self._active = True
        self._begun_at = self._clock.monotonic()
        for key in self._members:
            self._launch(key)

    def forget(self) -> None:
        """What passes remember of their objects. Only while idle."""
        for member in self._members.values():
            member.work = None

    async def stop(self) -> None:
        """Become idle. Returns when no pass runs any more; which objects there are is remembered."""
        self._active = False
        tasks = [member.task for member in self._members.values() if member.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for member in self._members.values():
            member.task = member.due = None

    def overdue(self) -> float:
        """Seconds by which the most overdue object is late."""
        return self._late(0.0)

    def stuck(self) -> float:
        """Seconds for which a pass has been running, or for which one is due and none has begun: what liveness is
        judged by. Where a thousand objects come at once, the last are late, and a restart would make them wait anew.
        """
        return self._late(self._begun_at)

    def _late(self, since: float) -> float:
        """As `overdue`; those that wait for their turn count from `since` at the earliest."""
        if not self._active:
            return 0.0
        now = self._clock.monotonic()
        due = ((m.due if m.running else max(m.due, since)) for m in self._members.values() if m.due is not None)
        return max(0.0, now - min(due, default=now))

    def _launch(self, key: K) -> None:
        member = self._members[key]
        member.wake.set()  # the first pass looks at everything
        member.due = self._clock.monotonic()
        member.failures = 0
        member.task = asyncio.get_running_loop().create_task(self._run(key, member), name=f"fleet {key}")

    async def _run(self, key: K, member: _Member) -> None:
        work = member.work = member.work or self._prepare(key)
        after: float | None = None
        resync_at = self._clock.monotonic()
        while True:
            trigger = await self._wait(member, after, resync_at)
            async with self._slots[trigger is Trigger.PERIOD]:
                self._begun_at = member.due = self._clock.monotonic()
                member.running = True
                try:
                    result = await self._pass(key, member, work, trigger)
                finally:
                    member.running = False
            now = self._clock.monotonic()
            if isinstance(result, Outcome):
                if result.gone and not member.wake.is_set():
                    del self._members[key]
                    return
                after, floor = result.after, GAP_SECONDS
                if trigger is not Trigger.PERIOD:
                    # Spread, so that objects which were listed together are not resynced together for ever.
                    resync_at = now + self._resync * (0.75 + self._jitter() / 2)
            else:
                after, floor = None, max(GAP_SECONDS, result.floor)
                resync_at = now + max(result.backoff, floor)  # what was half done is done again from the start
            due = resync_at if after is None else min(now + after, resync_at)
            member.due = now + floor if member.wake.is_set() else max(now + floor, due)
            await asyncio.sleep(floor)
            after = None if after is None else max(0.0, after - floor)

    async def _wait(self, member: _Member, after: float | None, resync_at: float) -> Trigger:
        """Until the next pass is due; clears the wake before the pass reads anything, so that none is lost."""
        until_resync = max(0.0, resync_at - self._clock.monotonic())
        seconds = until_resync if after is None else min(after, until_resync)
        try:
            async with asyncio.timeout(seconds):
                await member.wake.wait()
        except TimeoutError:
            return Trigger.RESYNC if seconds == until_resync else Trigger.PERIOD
        member.wake.clear()
        return Trigger.WAKE

    async def _pass(self, key: K, member: _Member, work: Pass, trigger: Trigger) -> Outcome | _Failure:
        started = self._clock.monotonic()
        try:
            async with asyncio.timeout(PASS_LIMIT_SECONDS):
                outcome = await work(trigger)
        except (Exception, asyncio.CancelledError) as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
                raise  # it is this task that is to end; a cancellation that a pass made itself is its failure
            return self._failed(key, member, error, self._clock.monotonic() - started)
        member.failures = 0
        metrics.RECONCILE_SECONDS.labels(metrics.RESULT_OK).observe(self._clock.monotonic() - started)
        return outcome

    def _failed(self, key: K, member: _Member, error: BaseException, seconds: float) -> _Failure:
        metrics.RECONCILE_SECONDS.labels(metrics.RESULT_ERROR).observe(seconds)
        exponent = min(member.failures, 10)
        member.failures += 1
        backoff = min(BACKOFF_LIMIT_SECONDS, BACKOFF_FIRST_SECONDS * 2**exponent) * (0.5 + self._jitter() / 2)
        # An error that carries retry_after is one that a client expects; anything else is a defect and shows its trace.
        expected = hasattr(error, "retry_after")
        floor: float = getattr(error, "retry_after", None) or 0.0
        logger.warning(
            "Pass failed: object=%s failures=%d next_seconds=%.1f error=%s",
            key, member.failures, max(backoff, floor), error if expected else repr(error),
            exc_info=None if expected else error,
        )  # fmt: skip
        return _Failure(backoff, floor)
