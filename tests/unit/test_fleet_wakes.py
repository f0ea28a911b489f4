"""Whatever happens in whatever order: no wake is lost, and passes over one object never overlap."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from paceline_operator.fleet import BACKOFF_LIMIT_SECONDS, PASS_LIMIT_SECONDS, Fleet, Outcome, Pass, Trigger
from tests.virtual_time import LoopClock, VirtualLoop

KEYS = st.sampled_from(["a", "b", "c"])
ASKED_SECONDS = 40.0
LONGEST = PASS_LIMIT_SECONDS + ASKED_SECONDS + 5.0
"""From a wake to the start of the pass that answers it: a pass that hangs, and a server that asks to wait."""


class ThrottledError(Exception):
    retry_after = ASKED_SECONDS


async def _ends() -> Outcome:
    return Outcome()


async def _comes_again() -> Outcome:
    return Outcome(after=10)


async def _is_slow() -> Outcome:
    await asyncio.sleep(7)
    return Outcome(after=1)


async def _hangs() -> Outcome:
    await asyncio.sleep(1e9)
    raise AssertionError("the limit did not end it")


async def _is_gone() -> Outcome:
    await asyncio.sleep(1)
    return Outcome(gone=True)


async def _fails() -> Outcome:
    raise ValueError("broken")


async def _is_throttled() -> Outcome:
    raise ThrottledError


async def _cancels_itself() -> Outcome:
    raise asyncio.CancelledError


BEHAVIOURS = [_ends, _comes_again, _is_slow, _hangs, _is_gone, _fails, _is_throttled, _cancels_itself]


class Wakes(RuleBasedStateMachine):
    """`due`: object -> the latest wake that no pass has started after yet."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.behaviour: dict[str, Any] = {}
        self.running: set[str] = set()
        self.overlapped: list[str] = []
        self.ran_while_idle: list[str] = []
        self.due: dict[str, float] = {}
        self.active = False

    @initialize()
    def begin(self) -> None:
        self.fleet: Fleet[str] = Fleet(self.prepare, LoopClock(self.loop), jitter=lambda: 0.5, looks=2, tunes=2)

    def prepare(self, key: str) -> Pass:
        async def work(_: Trigger) -> Outcome:
            if key in self.running:
                self.overlapped.append(key)
            if not self.active:
                self.ran_while_idle.append(key)
            self.running.add(key)
            self.due.pop(key, None)
            try:
                outcome: Outcome = await self.behaviour.get(key, _ends)()
                return outcome
            finally:
                self.running.discard(key)

        return work

    def do(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self.loop.run_until_complete(coroutine)

    async def call(self, method: Any, *arguments: str) -> None:
        method(*arguments)

    @rule(key=KEYS, behaviour=st.sampled_from(BEHAVIOURS))
    def behave(self, key: str, behaviour: Any) -> None:
        self.behaviour[key] = behaviour

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.due[key] = self.loop.time()
        self.do(self.call(self.fleet.add, key))

    @rule(key=KEYS)
    def wake(self, key: str) -> None:
        if key in self.fleet:
            self.due[key] = self.loop.time()
        self.do(self.call(self.fleet.wake, key))

    @rule()
    def start(self) -> None:
        self.active = True
        self.due = dict.fromkeys(self.due, self.loop.time())
        self.do(self.call(self.fleet.start))

    @precondition(lambda self: self.active)
    @rule()
    def stop(self) -> None:
        self.do(self.fleet.stop())
        self.active = False
        assert not self.running

    @precondition(lambda self: self.active)
    @rule()
    def stop_where_passes_begin(self) -> None:
        async def at_once() -> None:
            await self.fleet.stop()
            self.fleet.start()
            await self.fleet.stop()
            self.fleet.start()

        self.do(at_once())
        self.due = dict.fromkeys(self.due, self.loop.time())

    @rule(seconds=st.sampled_from([0.0, 0.2, 0.6, 1.0, 8.0, BACKOFF_LIMIT_SECONDS, LONGEST]))
    def advance(self, seconds: float) -> None:
        self.do(asyncio.sleep(seconds))

    @invariant()
    def never_two_at_once(self) -> None:
        assert not self.overlapped
        assert not self.ran_while_idle

    @invariant()
    def no_wake_is_lost(self) -> None:
        if self.active:
            late = {key: at for key, at in self.due.items() if self.loop.time() - at > LONGEST}
            assert not late

    def teardown(self) -> None:
        if self.active:
            self.do(asyncio.sleep(LONGEST + 1))
            self.no_wake_is_lost()
        self.do(self.fleet.stop())
        self.loop.close()


TestWakes = Wakes.TestCase
TestWakes.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
