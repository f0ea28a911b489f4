"""When passes run: periods, resyncs, wakes, backoff, and what ends a task."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator import fleet
from paceline_operator.fleet import Fleet, Outcome, Trigger
from tests.virtual_time import LoopClock, run


class ThrottledError(Exception):
    def __init__(self, retry_after: float | None) -> None:
        self.retry_after = retry_after


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


def test_the_first_pass_runs_at_once_and_looks_at_everything() -> None:
    async def scenario() -> None:
        log = Log()
        fleet_ = make(log)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert log.starts == [("a", 0.0, Trigger.WAKE)]
        await fleet_.stop()

    run(scenario())


def test_a_period_is_kept_and_a_resync_comes_in_between() -> None:
    async def scenario() -> None:
        log = Log(does=outcomes(Outcome(after=10)))
        fleet_ = make(log, resync_seconds=35)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(60)
        assert log.starts == [
            ("a", 0.0, Trigger.WAKE),
            ("a", 10.0, Trigger.PERIOD),
            ("a", 20.0, Trigger.PERIOD),
            ("a", 30.0, Trigger.PERIOD),
            ("a", 35.0, Trigger.RESYNC),
            ("a", 45.0, Trigger.PERIOD),
            ("a", 55.0, Trigger.PERIOD),
        ]
        await fleet_.stop()

    run(scenario())


def test_without_a_period_only_the_resync_comes() -> None:
    async def scenario() -> None:
        log = Log()
        fleet_ = make(log, resync_seconds=100)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(250)
        assert log.times() == [0.0, 100.0, 200.0]
        await fleet_.stop()

    run(scenario())


def test_a_burst_of_wakes_is_one_pass_and_a_wake_during_a_pass_leads_to_another() -> None:
    async def scenario() -> None:
        async def slow(_: str) -> Outcome:
            await asyncio.sleep(5)
            return Outcome()

        log = Log(does=slow)
        fleet_ = make(log)
        fleet_.start()
        fleet_.add("a")
        for _ in range(20):
            await asyncio.sleep(0.1)
            fleet_.wake("a")  # all while the first pass runs
        await asyncio.sleep(30)
        assert log.times() == [0.0, 5.0 + fleet.GAP_SECONDS]
        await fleet_.stop()

    run(scenario())


@pytest.mark.parametrize("jitter", [0.0, 0.5, 1.0])
def test_failures_back_off_up_to_a_limit_and_start_from_the_beginning(jitter: float) -> None:
    async def scenario() -> None:
        log = Log(does=outcomes(ValueError("broken")))
        fleet_ = make(log, jitter=jitter)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(1000)
        gaps = [b - a for a, b in zip(log.times(), log.times()[1:], strict=False)]
        share = 0.5 + jitter / 2
        expected = [max(min(2.0**n, fleet.BACKOFF_LIMIT_SECONDS) * share, fleet.GAP_SECONDS) for n in range(len(gaps))]
        assert gaps == pytest.approx(expected)
        assert {trigger for _, _, trigger in log.starts[1:]} == {Trigger.RESYNC}
        await fleet_.stop()

    run(scenario())


def test_success_forgets_failures() -> None:
    async def scenario() -> None:
        boom = ValueError("broken")
        log = Log(does=outcomes(boom, boom, boom, Outcome(after=10), boom, Outcome()))
        fleet_ = make(log, jitter=1.0)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(100)
        assert log.times() == [0, 1, 3, 7, 17, 18]
        await fleet_.stop()

    run(scenario())


def test_a_wake_ends_a_backoff_but_not_the_time_the_server_asked_for() -> None:
    async def scenario() -> None:
        log = Log(does=outcomes(ThrottledError(30.0), ThrottledError(None), Outcome()))
        fleet_ = make(log, jitter=1.0)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(1)
        fleet_.wake("a")
        await asyncio.sleep(31)
        assert log.times() == [0.0, 30.0]
        fleet_.wake("a")  # in the backoff of 2 s of the second failure
        await asyncio.sleep(0.1)
        assert log.times() == [0.0, 30.0, 32.0]
        await fleet_.stop()

    run(scenario())


def test_a_failure_ends_the_period_that_was_asked_for_before() -> None:
    async def scenario() -> None:
        log = Log(does=outcomes(Outcome(after=10.0), ThrottledError(30.0), Outcome()))
        fleet_ = make(log, jitter=1.0)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(1)
        fleet_.wake("a")
        await asyncio.sleep(60)
        assert log.times() == [0.0, 1.0, 31.0]
        await fleet_.stop()

    run(scenario())


def test_one_object_that_fails_or_hangs_delays_no_other() -> None:
    async def scenario() -> None:
        async def work(key: str) -> Outcome:
            if key == "hangs":
                await asyncio.sleep(1e9)
            if key == "fails":
                raise RuntimeError("broken")
            if key == "cancels":
                raise asyncio.CancelledError
            return Outcome(after=10)

        log = Log(does=work)
        fleet_ = make(log)
        fleet_.start()
        for key in ("hangs", "fails", "cancels", "good"):
            fleet_.add(key)
        await asyncio.sleep(95)
        assert log.times("good") == [10.0 * n for n in range(10)]
        assert len(log.times("fails")) > 3
        assert len(log.times("cancels")) > 3, "a cancellation inside a pass must not end its task"
        await asyncio.sleep(fleet.PASS_LIMIT_SECONDS)
        assert len(log.times("hangs")) == 2, "the limit ends a pass that hangs"
        await fleet_.stop()

    run(scenario())


def test_gone_ends_the_task_and_a_new_object_of_the_name_starts_anew() -> None:
    async def scenario() -> None:
        log = Log(does=outcomes(Outcome(gone=True), Outcome()))
        fleet_ = make(log)
        fleet_.start()
        fleet_.add("a")
        await asyncio.sleep(10)
        assert (len(fleet_), log.times()) == (0, [0.0])
        fleet_.wake("a")
        await asyncio.sleep(10)
        assert log.times() == [0.0], "a wake of an unknown object is nobody's business"
        fleet_.add("a")
        await asyncio.sleep(10)
        assert (len(fleet_), log.times()) == (1, [0.0, 20.0])
        await fleet_.stop()

    run(scenario())


def test_stop_waits_for_what_cannot_be_called_back_and_start_looks_again() -> None:
    async def scenario() -> None:
        ended: list[float] = []

        async def work(_: str) -> Outcome:
            try:
                await asyncio.sleep(5)
            except asyncio.CancelledError:
                await asyncio.sleep(3)  # a request on its way
                ended.append(asyncio.get_running_loop().time())
                raise
            return Outcome()

        log = Log(does=work)
        fleet_ = make(log)
        fleet_.add("a")
        await asyncio.sleep(10)
        assert log.starts == [], "idle, a fleet only remembers"
        fleet_.start()
        fleet_.start()
        await asyncio.sleep(1)
        await fleet_.stop()
        assert ended == [14.0]
        await asyncio.sleep(100)
        fleet_.add("b")
        assert log.times() == [10.0]
        assert (len(fleet_), fleet_.overdue()) == (0, 0.0)
        fleet_.start()
        await asyncio.sleep(1)
        assert log.starts[1:] == [("a", 114.0, Trigger.WAKE), ("b", 114.0, Trigger.WAKE)]
        await fleet_.stop()

    run(scenario())


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


def test_what_passes_remember_outlives_a_pause_unless_it_is_to_be_forgotten() -> None:
    async def scenario() -> None:
        log = Log()
        prepared: list[str] = []

        def prepare(key: str) -> fleet.Pass:
            prepared.append(key)
            return log.prepare(key)

        fleet_ = Fleet(prepare, LoopClock(asyncio.get_running_loop()))
        fleet_.add("a")
        for expected in (["a"], ["a"], ["a", "a"]):
            fleet_.start()
            await asyncio.sleep(1)
            await fleet_.stop()
            assert prepared == expected
            if len(log.starts) == 2:
                fleet_.forget()

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
            await asyncio.sleep(100.0)
            return Outcome()

        log = Log(does=work)
        fleet_ = make(log, looks=1, tunes=1)
        fleet_.start()
        fleet_.add("tuned")
        await asyncio.sleep(1.0)
        for key in ("slow", "slower", "slowest"):
            fleet_.add(key)
        await asyncio.sleep(50.0)
        assert log.times("tuned") == [0.0, 10.0, 20.0, 30.0, 40.0, 50.0]
        assert {key for key, _, _ in log.starts} == {"tuned", "slow"}
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
