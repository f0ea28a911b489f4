"""When each object has a pass: at a wake, at the resync, and at the period that its last pass asked for.

Knows no kinds and does no I/O: a key is any hashable, a pass any coroutine function. A wake that comes during a pass
leads to another one, passes over one object never overlap, and what a pass raises ends nothing but itself. Where more
is due than can be done, whoever is overdue longest is next: all are late by the same. Who waits for a turn to look at
everything is tuned meanwhile. While objects that come wait for theirs, the others have patience, and no longer than so
many seconds. Idle (not the leader), the fleet only remembers which objects there are.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from paceline_operator import metrics
from paceline_operator.clock import Clock
from paceline_operator.turns import Turns

logger = logging.getLogger(__name__)

RESYNC_SECONDS = 300.0
GAP_SECONDS = 0.5
"""Between two passes over one object: a burst of events is one pass."""
BACKOFF_FIRST_SECONDS = 1.0
BACKOFF_LIMIT_SECONDS = 60.0
PASS_LIMIT_SECONDS = 120.0
"""Every call in a pass has its own, shorter limit: this one is for what nobody thought of."""
TIMER_SECONDS = 1e-6
"""By which a timer may be early."""
PATIENCE_SECONDS = 20.0
"""By which passes are put off at most while objects that come wait for a turn to look at everything: tuned every 30 s
where it would be 10, what has its table leaves them two thirds of the time that it takes."""

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
    comes: bool = False
    """It has not all that it comes for: its passes are before those of others, as far as these have patience."""


Pass = Callable[[Trigger], Awaitable[Outcome]]


@dataclass(eq=False)
class _Member:
    """One object. All times are monotonic."""

    work: Pass | None = None
    task: asyncio.Task[Outcome] | None = None
    """Of the pass that runs."""
    began_at: float = 0.0
    """When that began."""
    woken_at: float | None = None
    """Since when a wake waits for its pass."""
    resync_at: float = 0.0
    tune_at: float | None = None
    """When the pass of trigger PERIOD is due."""
    passed_over: bool = False
    """It had its turn to look at everything while it was tuned: it is not tuned again before it has had another."""
    not_before: float = 0.0
    """Of a pass that was not due yet when the last one began."""
    floor_until: float = 0.0
    """Of any pass."""
    failures: int = 0
    comes: bool = True
    """As its last pass said."""


@dataclass(frozen=True)
class _Failure:
    backoff: float
    """Seconds to the next pass unless something changes before."""
    floor: float
    """Seconds in which no pass may start, whatever changes: the other side asked for them."""


class Fleet(Generic[K]):
    """All objects that this process knows, and, while it is active, their passes.

    `prepare` gives an object its pass once: what that callable remembers lives until the object is gone, or `forget`.
    `tunes`: passes at once of trigger PERIOD; `looks`: of others. More than the API takes calls at once would but
    wait for one another, and their objects with them.
    """

    def __init__(
        self,
        prepare: Callable[[K], Pass],
        clock: Clock,
        *,
        looks: int = 16,
        tunes: int = 32,
        resync_seconds: float = RESYNC_SECONDS,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._prepare = prepare
        self._clock = clock
        # Apart: a thousand objects that all wait for a slow API server must not keep those waiting that ask it nothing.
        self._looks: Turns[K] = Turns(looks)
        self._tunes: Turns[K] = Turns(tunes)
        self._resync = resync_seconds
        self._jitter = jitter
        self._members: dict[K, _Member] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        """While active."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._members) if self._loop else 0

    def __contains__(self, key: K) -> bool:
        return key in self._members

    def add(self, key: K) -> None:
        """An object that is, or may be, there: begin with it, or wake it."""
        if key not in self._members:
            self._members[key] = self._fresh()
        self.wake(key)

    def wake(self, key: K) -> None:
        """Something about a known object changed. Unknown keys are nobody's business."""
        member = self._members.get(key)
        if member and self._loop and member.woken_at is None:
            member.woken_at = self._clock.monotonic()
            self._ask(key, member)
            self._go_on()

    def wake_all(self) -> None:
        """Something changed that may concern every object."""
        for key in self._members:
            self.wake(key)

    def start(self) -> None:
        """Become active: each object has a pass that looks at everything."""
        if self._loop:
            return
        self._loop = asyncio.get_running_loop()
        self._looks.begun_at = self._tunes.begun_at = self._clock.monotonic()
        for key, before in self._members.items():
            self._members[key] = self._fresh(before.work)
        self.wake_all()

    def forget(self) -> None:
        """What passes remember of their objects. Only while idle."""
        for member in self._members.values():
            member.work = None

    async def stop(self) -> None:
        """Become idle. Returns when no pass runs any more; which objects there are is remembered."""
        self._loop = None
        if self._timer:
            self._timer.cancel()
            self._timer = None
        self._looks.clear()
        self._tunes.clear()
        tasks = [member.task for member in self._members.values() if member.task]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def overdue(self) -> float:
        """Seconds by which the most overdue object is late."""
        return self._late(0.0, 0.0)

    def stuck(self) -> float:
        """Seconds for which a pass has been running, or for which one is due and none of its sort has begun: what
        liveness is judged by. Where a thousand objects come at once, the last are late, and a restart would make them
        wait anew.
        """
        return self._late(self._looks.begun_at, self._tunes.begun_at)

    def _late(self, looked: float, tuned: float) -> float:
        """As `overdue`; those that wait for their turn count from these times at the earliest."""
        if not self._loop:
            return 0.0
        now = self._clock.monotonic()
        due = (m.began_at if m.task else max(_look_due(m), looked) for m in self._members.values())
        tune = (max(_tune_due(m), tuned) for m in self._members.values() if not m.task)
        return max(0.0, now - min(itertools.chain(due, tune), default=now))

    def _fresh(self, work: Pass | None = None) -> _Member:
        return _Member(work, resync_at=self._clock.monotonic() + self._resync)

    def _ask(self, key: K, member: _Member) -> None:
        if not member.task:  # else once it has ended
            rank = {"comes": member.comes, "passed_over": member.passed_over}
            self._looks.ask(key, _look_due(member), **rank)
            self._tunes.ask(key, _tune_due(member), **rank)

    def _patience(self, now: float) -> float:
        """Of those that have what they came for: none unless somebody who has not waits for a turn."""
        return PATIENCE_SECONDS if self._looks.first_due(comes=True) <= now else 0.0

    def _go_on(self) -> None:
        """Begin what is due and has its turn, and come back when more is due."""
        if not self._loop:
            return
        soon = self._clock.monotonic() + TIMER_SECONDS
        for turns in (self._looks, self._tunes):
            while turns.next_due(patience := self._patience(soon)) <= soon:
                key = turns.take(patience)
                member = self._members.get(key)
                if member and not member.task:
                    self._begin(key, member, turns)
                elif member:
                    member.passed_over = turns is self._looks
        patience = self._patience(soon)
        due = min(self._looks.next_due(patience), self._tunes.next_due(patience))
        if self._timer:
            self._timer.cancel()
        delay = due - self._clock.monotonic()
        self._timer = self._loop.call_later(max(0.0, delay), self._go_on) if due < math.inf else None

    def _begin(self, key: K, member: _Member, turns: Turns[K]) -> None:
        assert self._loop
        turns.begun_at = member.began_at = self._clock.monotonic()
        trigger = Trigger.PERIOD
        if turns is self._looks:
            trigger = Trigger.RESYNC if member.woken_at is None else Trigger.WAKE
            member.woken_at = None  # before the pass reads anything, so that no wake is lost
            member.passed_over = False
        turns.free -= 1
        member.task = self._loop.create_task(self._pass(key, member, trigger), name=f"fleet {key}")
        # Called also where the task is cancelled before its first step, in which nothing of it runs.
        member.task.add_done_callback(lambda task: self._ended(key, member, turns, trigger, task))

    async def _pass(self, key: K, member: _Member, trigger: Trigger) -> Outcome:
        work = member.work = member.work or self._prepare(key)
        async with asyncio.timeout(PASS_LIMIT_SECONDS):
            return await work(trigger)

    def _ended(self, key: K, member: _Member, turns: Turns[K], trigger: Trigger, task: asyncio.Task[Outcome]) -> None:
        """Give the turn back, and ask for the next one."""
        turns.free += 1
        member.task = None
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if not self._loop or self._members.get(key) is not member:
            self._go_on()
            return
        now = self._clock.monotonic()
        seconds = now - member.began_at
        if error is None:
            result = task.result()
            metrics.RECONCILE_SECONDS.labels(metrics.RESULT_OK).observe(seconds)
            member.failures, member.comes = 0, result.comes
            if result.gone and member.woken_at is None:
                del self._members[key]
                self._go_on()
                return
            member.not_before = now + GAP_SECONDS
            member.tune_at = None if result.after is None else now + result.after
            if trigger is not Trigger.PERIOD:
                # Spread, so that objects which were listed together are not resynced together for ever.
                member.resync_at = now + self._resync * (0.75 + self._jitter() / 2)
        else:
            failure = self._failed(key, member, error, seconds)
            member.not_before = member.floor_until = now + max(GAP_SECONDS, failure.floor)
            member.tune_at = None
            member.resync_at = max(now + failure.backoff, member.not_before)  # what was half done, from the start
        self._ask(key, member)
        self._go_on()

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


def _look_due(member: _Member) -> float:
    """Of a pass that looks at everything. Who was tuned while waiting for it keeps the place."""
    since = member.resync_at if member.woken_at is None else min(member.woken_at, member.resync_at)
    return max(since, member.floor_until if since < member.began_at else member.not_before)


def _tune_due(member: _Member) -> float:
    return math.inf if member.tune_at is None or member.passed_over else max(member.tune_at, member.not_before)
