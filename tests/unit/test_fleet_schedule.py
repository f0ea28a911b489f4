"""When passes run: periods, resyncs, wakes, backoff, and what ends a task."""

from __future__ import annotations

import asyncio

import pytest

from paceline_operator import fleet
from paceline_operator.fleet import Fleet, Outcome, Trigger
from tests.unit.fleets import Log, make, outcomes
from tests.virtual_time import LoopClock, run


class ThrottledError(Exception):
    def __init__(self, retry_after: float | None) -> None:
        self.retry_after = retry_after


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
