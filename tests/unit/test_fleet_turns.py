"""Whose turn it is where more is due than can be done at once, and what liveness says of it."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator import fleet
from paceline_operator.fleet import Fleet, Outcome, Trigger
from tests.unit.fleets import Log, make
from tests.virtual_time import LoopClock, run


def test_a_stop_before_the_first_step_of_passes_gives_their_turns_back() -> None:
    async def scenario() -> None:
        log = Log()
        fleet_ = make(log, looks=2, tunes=2)
        for key in "abcd":
            fleet_.add(key)
        for _ in range(3):
            fleet_.start()
            await fleet_.stop()
        assert not log.starts
        fleet_.start()
        await asyncio.sleep(1)
        assert [key for key, _, _ in log.starts] == list("abcd")
        await fleet_.stop()

    run(scenario())


@pytest.mark.parametrize("fault", ["not prepared", "cancels its own task"])
def test_a_pass_that_ends_in_no_way_that_was_thought_of_keeps_nobody_from_a_turn(fault: str) -> None:
    async def scenario() -> None:
        log = Log()

        def prepare(key: str) -> fleet.Pass:
            if key == "good":
                return log.prepare(key)
            if fault == "not prepared":
                raise RuntimeError("as asked for")

            async def work(_: Trigger) -> Outcome:
                task = asyncio.current_task()
                assert task
                task.cancel()
                await asyncio.sleep(1)
                return Outcome()

            return work

        fleet_ = Fleet(prepare, LoopClock(asyncio.get_running_loop()), jitter=lambda: 1.0, looks=1, tunes=1)
        fleet_.add("bad")
        fleet_.add("good")
        fleet_.start()
        await asyncio.sleep(5)
        assert log.times("good")
        await fleet_.stop()

    run(scenario())


@pytest.mark.parametrize("tuned", [5.0, 8.0, 30.0])
def test_who_is_tuned_when_its_turn_to_look_comes_has_the_next_one(tuned: float) -> None:
    """Three others look for ten seconds, all the time."""

    async def scenario() -> None:
        looked: list[float] = []
        loop = asyncio.get_running_loop()

        def prepare(key: str) -> fleet.Pass:
            async def work(trigger: Trigger) -> Outcome:
                if key != "a":
                    await asyncio.sleep(10.0)
                    fleet_.wake(key)
                    return Outcome()
                if trigger is Trigger.PERIOD:
                    await asyncio.sleep(tuned)
                else:
                    looked.append(loop.time())
                return Outcome(after=max(0.6, 10.0 - tuned))

            return work

        fleet_ = Fleet(prepare, LoopClock(loop), jitter=lambda: 0.5, looks=1)
        for key in "abcd":
            fleet_.add(key)
        fleet_.start()
        await asyncio.sleep(7200.0)
        assert max(after - before for before, after in pairwise([*looked, 7200.0])) <= 400.0
        await fleet_.stop()

    run(scenario())


def test_no_more_passes_at_once_than_allowed() -> None:
    async def scenario() -> None:
        running, most = 0, 0

        async def work(_: str) -> Outcome:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(1)
            running -= 1
            return Outcome()

        log = Log(does=work)
        fleet_ = make(log, looks=3)
        for n in range(10):
            fleet_.add(f"object-{n}")
        fleet_.start()
        await asyncio.sleep(3.5)
        assert most == 3
        assert len(log.starts) == 10
        await fleet_.stop()

    run(scenario())


def test_passes_that_look_at_everything_keep_none_of_the_tuner_waiting() -> None:
    async def scenario() -> None:
        async def work(key: str) -> Outcome:
            if key == "tuned":
                return Outcome(after=10.0)
            await asyncio.sleep(100.0 if log.times(key)[1:] else 0.0)
            return Outcome()

        log = Log(does=work)
        fleet_ = make(log, looks=1, tunes=1)
        fleet_.start()
        for key in ("tuned", "slow", "slower", "slowest"):
            fleet_.add(key)
        await asyncio.sleep(1.0)
        for key in ("slow", "slower", "slowest"):
            fleet_.wake(key)
        await asyncio.sleep(50.0)
        assert log.times("tuned") == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
        assert [key for key, at, _ in log.starts if at >= 1.0 and key != "tuned"] == ["slow"]
        await fleet_.stop()

    run(scenario())


def test_who_waits_for_a_turn_to_look_at_everything_is_tuned_meanwhile_and_keeps_the_place() -> None:
    async def scenario() -> None:
        running = 0

        async def work(key: str) -> Outcome:
            nonlocal running
            trigger = log.starts[-1][2]
            if trigger is not Trigger.PERIOD and asyncio.get_running_loop().time() > 10.0:
                running += 1
                assert running == 1, "one look at a time"
                await asyncio.sleep(30.0)
                running -= 1
            return Outcome(after=10.0)

        log = Log(does=work)
        fleet_ = make(log, looks=1, tunes=1, resync_seconds=1e6)
        names = ["a", "b", "c", "d"]
        for key in names:
            fleet_.add(key)
        fleet_.start()
        await asyncio.sleep(15.0)
        for key in names:
            fleet_.wake(key)
            await asyncio.sleep(0.1)
        await asyncio.sleep(200.0)
        for place, key in enumerate(names):
            looks = [start for name, start, trigger in log.starts if (name, trigger) == (key, Trigger.WAKE)]
            assert looks[1:] == [pytest.approx(15.0 + 30.0 * place, abs=1e-3)]
            gaps = [late - early for early, late in pairwise(log.times(key))]
            assert max(gaps) <= 30.0 + 10.0 + 1.0, "no longer than its own look takes"
            assert sum(gap > 10.1 for gap in gaps) == 1
        await fleet_.stop()

    run(scenario())


@given(
    seconds=st.lists(st.floats(0.2, 4.0), min_size=12, max_size=40),
    at_once=st.integers(1, 4),
    woken=st.lists(st.tuples(st.integers(0, 39), st.floats(0.0, 200.0)), max_size=30),
)
@settings(max_examples=40, deadline=None)
def test_where_more_is_due_than_can_be_done_all_are_late_by_the_same(
    seconds: list[float], at_once: int, woken: list[tuple[int, float]]
) -> None:
    """Whatever wakes come in between, of whatever is slow."""

    async def scenario() -> None:
        async def work(key: str) -> Outcome:
            await asyncio.sleep(seconds[int(key)])
            return Outcome(after=1.0)

        log = Log(does=work)
        fleet_ = make(log, looks=at_once, tunes=at_once, resync_seconds=1e6)
        for number in range(len(seconds)):
            fleet_.add(str(number))
        fleet_.start()
        turn = sum(seconds) / at_once
        end = 200.0 + 10 * turn
        for number, at in sorted(woken, key=lambda one: one[1]):
            await asyncio.sleep(max(0.0, at - asyncio.get_running_loop().time()))
            fleet_.wake(str(number % len(seconds)))
        await asyncio.sleep(end - asyncio.get_running_loop().time())
        await fleet_.stop()
        late = []
        for number in range(len(seconds)):
            times = [at for at in log.times(str(number)) if at > 2 * turn] + [end]
            late += [after - before - 1.0 for before, after in pairwise(times)][:-1]
            assert end - times[-2] <= 2 * turn + 3 * max(seconds), "and nobody starves"
        mean = sum(late) / len(late)
        assert max(late) <= 2 * mean + 3 * max(seconds)

    run(scenario())


def test_a_slow_api_server_makes_nobody_wait_for_much_longer_than_the_others() -> None:
    """200 servings, of which half are woken each minute: one processor, which has time for half of the passes that are
    due, and an API server that answers two looks in a second and a half."""

    async def scenario() -> None:
        loop, processor, api = asyncio.get_running_loop(), asyncio.Lock(), asyncio.Semaphore(2)
        read: dict[str, list[float]] = {}

        def prepare(key: str) -> fleet.Pass:
            async def work(trigger: Trigger) -> Outcome:
                began = loop.time()
                if trigger is not Trigger.PERIOD:
                    async with api:
                        await asyncio.sleep(1.5)
                read.setdefault(key, []).append(loop.time())
                async with processor:
                    await asyncio.sleep(0.1)
                return Outcome(after=max(0.0, 10.0 - (loop.time() - began)))

            return work

        fleet_ = Fleet(prepare, LoopClock(loop), jitter=lambda: 0.5)
        for number in range(200):
            fleet_.add(f"{number}")
        fleet_.start()
        await asyncio.sleep(300.0)
        for minute in range(4):
            for number in range(minute % 2, 200, 2):
                fleet_.wake(f"{number}")
            await asyncio.sleep(60.0)
        await fleet_.stop()
        late = [b - a - 10.0 for times in read.values() for a, b in pairwise(times) if b > 250.0]
        assert len(late) > 2000
        assert max(late) <= 2 * sum(late) / len(late) + 2.0

    run(scenario())


def test_overdue_tells_a_pass_that_does_not_end_and_nothing_else() -> None:
    async def scenario() -> None:
        async def work(key: str) -> Outcome:
            await asyncio.sleep(60 if key == "slow" else 0)
            return Outcome(after=10)

        log = Log(does=work)
        fleet_ = make(log)
        fleet_.start()
        fleet_.add("a")
        for _ in range(50):
            await asyncio.sleep(1.1)
            assert fleet_.overdue() == 0.0
        fleet_.add("slow")
        await asyncio.sleep(40)
        assert fleet_.overdue() == pytest.approx(40.0)
        await asyncio.sleep(25)
        assert fleet_.overdue() == 0.0
        await fleet_.stop()

    run(scenario())


def test_who_waits_for_a_turn_is_late_and_not_stuck_and_who_hangs_is() -> None:
    async def scenario() -> None:
        async def work(key: str) -> Outcome:
            await asyncio.sleep(1000 if key == "hangs" else 10)
            return Outcome(gone=True)

        fleet_ = make(Log(does=work), looks=2)
        for number in range(20):
            fleet_.add(f"{number}")
        fleet_.start()
        await asyncio.sleep(85)
        assert fleet_.overdue() == pytest.approx(85.0)
        assert fleet_.stuck() == pytest.approx(5.0), "the others have their turn"
        fleet_.add("hangs")
        await asyncio.sleep(75)
        assert fleet_.stuck() == pytest.approx(60.0), "its pass began when those before it had ended"
        await fleet_.stop()
        assert fleet_.stuck() == 0.0

    run(scenario())


def test_passes_that_are_due_and_never_begin_are_stuck() -> None:
    async def scenario() -> None:
        async def work(_: str) -> Outcome:
            await asyncio.sleep(50)
            return Outcome(gone=True)

        fleet_ = make(Log(does=work), looks=1)
        fleet_.add("a")
        fleet_.add("b")
        fleet_.start()
        await asyncio.sleep(40)
        assert fleet_.stuck() == pytest.approx(40.0)
        await asyncio.sleep(20)
        assert fleet_.stuck() == pytest.approx(10.0)
        await fleet_.stop()

    run(scenario())
