"""Objects that come have their passes before the others are tuned, and these wait for them by a bounded time."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator import fleet
from paceline_operator.fleet import PATIENCE_SECONDS, Fleet, Outcome, Trigger
from tests.unit.fleets import Log, make
from tests.virtual_time import LoopClock, run

INTERVAL = 10.0
LOOKS = 3


@dataclass
class Run:
    """What servings of a simulated operator went through: by name, seconds on virtual time."""

    tabled: dict[str, float] = field(default_factory=dict)
    """When each had its table."""
    read: dict[str, list[float]] = field(default_factory=dict)
    """When each was tuned."""

    def lags(self, since: float = 0.0) -> list[float]:
        """By how much each reading came later than the interval."""
        pairs = (pair for times in self.read.values() for pair in pairwise(times))
        return [late - early - INTERVAL for early, late in pairs if late >= since]


async def simulated(
    times: list[float], seconds: float, *, look: float = 0.04, tune: float = 0.03, call: float = 0.08
) -> Run:
    """Servings that are created at `times`, in a run of `seconds`. Each has its table with the third of its looks, and
    is tuned from then on. A look takes `look` seconds of the operator's CPU and a pass of the tuner `tune`, by turns of
    a quarter of that; a look besides four calls, which take the API server `call` seconds of CPU each. Both share two
    processors, of which the operator has one at a time."""
    loop, found, looks = asyncio.get_running_loop(), Run(), dict[str, int]()
    processors, operator = asyncio.Semaphore(2), asyncio.Lock()

    def prepare(key: str) -> fleet.Pass:
        async def work(trigger: Trigger) -> Outcome:
            began, tuned = loop.time(), trigger is Trigger.PERIOD
            for _ in range(4):
                if not tuned:
                    async with processors:
                        await asyncio.sleep(call)
                async with operator, processors:
                    await asyncio.sleep((tune if tuned else look) / 4)
            if not tuned:
                looks[key] = looks.get(key, 0) + 1
                if looks[key] < LOOKS:
                    loop.call_later(2.0, fleet_.wake, key)  # its pods came
                    return Outcome(comes=True)
            found.tabled.setdefault(key, loop.time())
            found.read.setdefault(key, []).append(loop.time())
            return Outcome(after=max(0.0, INTERVAL - (loop.time() - began)))

        return work

    fleet_ = Fleet(prepare, LoopClock(loop), jitter=lambda: 0.5, resync_seconds=1e6)
    fleet_.start()
    for number, at in enumerate(times):
        loop.call_at(at, fleet_.add, str(number))
    await asyncio.sleep(seconds)
    await fleet_.stop()
    return found


def test_servings_that_come_have_their_tables_sooner_and_fewer_passes_are_made_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seventy that rest, two hundred that come: with patience and without, on the same two processors."""
    times = [0.0] * 70 + [60.0 + 0.05 * number for number in range(200)]

    def until(found: Run) -> tuple[float, int, float]:
        done = max(found.tabled.values())
        assert len(found.tabled) == len(times)
        lags = found.lags(60.0)
        return done, sum(60.0 < at <= done for read in found.read.values() for at in read), max(lags)

    with_patience = until(run(simulated(times, 250.0)))
    monkeypatch.setattr(fleet, "PATIENCE_SECONDS", 0.0)
    without = until(run(simulated(times, 250.0)))
    assert with_patience[0] < without[0] - 5.0
    assert with_patience[1] < 0.6 * without[1]
    assert with_patience[2] <= without[2] + PATIENCE_SECONDS


def test_servings_that_come_all_the_time_keep_the_others_waiting_no_longer_than_patience_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two a second, which is more than two processors take beside sixty that rest: these wait, all alike."""
    times = [0.0] * 60 + [120.0 + 0.5 * number for number in range(1000)]

    def longest() -> list[float]:
        found = run(simulated(times, 500.0, look=0.1, call=0.2))
        assert len(found.tabled) < 600, "they come faster than they can be looked at"
        read = [[at for at in found.read[str(number)] if at > 100.0] for number in range(60)]
        assert min(sum(at > 300.0 for at in each) for each in read) >= 5, "and the others go on being tuned"
        return [max(late - early for early, late in pairwise([*each, 500.0])) for each in read]

    with_patience = longest()
    monkeypatch.setattr(fleet, "PATIENCE_SECONDS", 0.0)
    assert max(with_patience) <= max(longest()) + PATIENCE_SECONDS
    assert max(with_patience) <= 1.2 * min(with_patience)


def test_who_rests_is_tuned_in_time_where_those_that_come_have_turns_to_themselves() -> None:
    async def scenario() -> None:
        async def work(key: str) -> Outcome:
            if key == "tuned":
                return Outcome(after=INTERVAL)
            await asyncio.sleep(100.0)
            return Outcome(comes=True)

        log = Log(does=work)
        fleet_ = make(log, looks=2, tunes=1)
        fleet_.start()
        fleet_.add("tuned")
        await asyncio.sleep(1.0)
        fleet_.add("slow")
        fleet_.add("slower")
        await asyncio.sleep(35.0)
        assert log.times("tuned") == [0.0, 10.0, 20.0, 30.0]
        fleet_.add("slowest")  # it waits for a turn: now, and not before, the others have patience
        await asyncio.sleep(100.0)
        assert log.times("tuned")[4:] == [60.0, 90.0, pytest.approx(101.0), 111.0, 121.0, 131.0]
        await fleet_.stop()

    run(scenario())


def test_who_comes_looks_before_who_rests_as_far_as_that_has_patience() -> None:
    async def scenario() -> None:
        async def work(key: str) -> Outcome:
            await asyncio.sleep(0.0 if asyncio.get_running_loop().time() < 5.0 else 7.0)
            return Outcome(comes=key != "rests")

        log = Log(does=work)
        fleet_ = make(log, looks=1)
        names = [f"comes-{number}" for number in range(6)]
        for key in ("rests", *names):
            fleet_.add(key)
        fleet_.start()
        await asyncio.sleep(10.0)
        for key in ("rests", *names):  # the one that rests is woken first, by a second
            fleet_.wake(key)
            await asyncio.sleep(1.0 if key == "rests" else 0.0)
        fleet_.wake("rests")
        await asyncio.sleep(60.0)
        order = [key for key, at, _ in log.starts if at >= 10.0]
        assert order[0] == "rests", "nobody else waited"
        assert order[1:] == [*names, "rests"]
        await fleet_.stop()

    run(scenario())


@given(
    tuned=st.lists(st.floats(0.05, 2.0), min_size=4, max_size=20),
    come=st.lists(st.tuples(st.floats(0.0, 200.0), st.floats(0.1, 8.0), st.booleans()), max_size=60),
    looks=st.integers(1, 3),
    tunes=st.integers(1, 3),
)
@settings(max_examples=40, deadline=None)
def test_whoever_comes_makes_nobody_later_than_by_patience(
    tuned: list[float], come: list[tuple[float, float, bool]], looks: int, tunes: int
) -> None:
    """Whether it ever has its table or not. Turns of the tuner are its own, so that those that rest are as late as they
    would be alone, and by patience."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()

        async def work(key: str) -> Outcome:
            kind, number = key.split("-")
            if kind == "rests":
                await asyncio.sleep(tuned[int(number)])
                return Outcome(after=INTERVAL)
            _, seconds, ever = come[int(number)]
            await asyncio.sleep(seconds)
            if not ever:
                loop.call_later(1.0, fleet_.wake, key)
            return Outcome(after=INTERVAL, comes=not ever)

        log = Log(does=work)
        fleet_ = make(log, looks=looks, tunes=tunes, resync_seconds=1e6)
        fleet_.start()
        for number in range(len(tuned)):
            fleet_.add(f"rests-{number}")
        for number, (at, _, _) in enumerate(come):
            loop.call_at(sum(tuned) + at, fleet_.add, f"come-{number}")
        await asyncio.sleep(sum(tuned) + 400.0)
        await fleet_.stop()
        # One turn of all whose passes are of the tuner, those that came among them.
        turn = (sum(tuned) + sum(seconds for _, seconds, _ in come)) / tunes + max([*tuned, *(s for _, s, _ in come)])
        for number in range(len(tuned)):
            gaps = [late - early for early, late in pairwise([*log.times(f"rests-{number}"), loop.time()])]
            assert max(gaps) <= INTERVAL + PATIENCE_SECONDS + 2 * turn

    run(scenario())
