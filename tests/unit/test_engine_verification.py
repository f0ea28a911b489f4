"""The core's half of AV: in front of the next step, on all ranks between the same two steps, and never in the way."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.protocol import Verification, VerificationState
from paceline_engine.verification import REPORT_SECONDS, STARVED_DRAFTS, VerificationControl, inspect, ordered
from tests.unit.engine_workers import Manager, MultiprocExecutor, UniProcExecutor, asked, step, worker

ALL, ADAPTIVE, CAPPED = Verification.ALL, Verification.ADAPTIVE, Verification.CAPPED


class Core:
    """A control with its executor, on a clock of its own."""

    def __init__(self, executor: Any) -> None:
        self.now = 0.0
        self.modes: list[Verification] = []
        self.executor = executor
        self.control = VerificationControl(executor, on_mode=self.modes.append, clock=lambda: self.now)

    def before_step(self) -> None:
        if self.control.due:
            self.control.act()

    def steps(self, requests: int, drafts: int, count: int = 1) -> list[set[int]]:
        """What the ranks verify in each of these steps."""
        said = []
        for _ in range(count):
            self.before_step()
            said.append({step(one, requests, drafts) for one in self.executor.workers})
        return said


def test_a_change_is_sent_with_the_next_step_and_once() -> None:
    core = Core(UniProcExecutor())
    assert (core.control.due, core.control.settled, core.modes) == (False, True, [ADAPTIVE])
    core.control.ask(asked(CAPPED, 4), 7)
    assert (core.control.due, core.control.settled) == (True, False)
    assert core.control.state == VerificationState(mode=ADAPTIVE)
    assert core.steps(8, 3) == [{4}]
    assert core.control.settled
    assert core.control.state == VerificationState(mode=CAPPED, cap=4, generation=7, ranks=1)
    core.steps(8, 3, count=5)
    assert core.executor.calls == ["verify"]
    core.control.ask(None, 8)
    core.before_step()
    assert core.modes == [ADAPTIVE, CAPPED, ADAPTIVE]
    assert core.control.state.generation == 8
    assert core.control.state.cap is None


def test_ranks_behind_a_queue_change_between_the_same_two_steps_and_nobody_waits() -> None:
    core = Core(MultiprocExecutor())
    ran: list[tuple[int, ...]] = []
    for number in range(6):
        if number == 2:
            core.control.ask(asked(ALL), 1)
        core.before_step()
        core.executor.collective_rpc(lambda one: step(one, 8, 3), non_block=True).add_done_callback(
            lambda future: ran.append(tuple(future.result()))
        )
        if number == 2:  # two steps are in flight: nothing has been read yet
            assert (core.modes, core.control.settled) == ([ADAPTIVE], False)
        if number % 2:
            core.executor.run()
    assert all(len(set(ranks)) == 1 for ranks in ran)
    assert [ranks[0] == 24 for ranks in ran] == [False, False, True, True, True, True]
    assert core.control.state.ranks == 2
    assert core.modes == [ADAPTIVE, ALL]


def test_counts_come_every_few_seconds_of_stepping() -> None:
    core = Core(UniProcExecutor())
    core.control.tick()
    assert not core.control.due
    core.control.ask(asked(ALL), 1)
    core.steps(2, 3)
    core.now = REPORT_SECONDS
    core.control.tick()
    core.before_step()
    assert core.executor.calls == ["verify", "report"]
    assert (core.control.state.drafted, core.control.state.verified) == (6, 6)
    core.control.tick()
    assert not core.control.due


def look(core: Core) -> bool:
    core.now += REPORT_SECONDS
    core.control.tick()
    core.before_step()
    return core.control.state.starved


def test_drafts_that_are_paid_for_and_not_verified_are_seen_and_cured_by_verifying_all(
    caplog: pytest.LogCaptureFixture,
) -> None:
    core = Core(UniProcExecutor(worker(Manager(survival=1e-9))))
    look(core)
    core.steps(8, 3, count=STARVED_DRAFTS // 24)
    assert not look(core)  # too few to say
    core.steps(8, 3)
    core.steps(8, 3, count=STARVED_DRAFTS // 24)
    assert look(core)
    core.steps(8, 3, count=STARVED_DRAFTS // 24 + 1)
    assert look(core)
    core.control.ask(asked(ALL), 1)
    core.before_step()
    assert not core.control.state.starved
    core.steps(8, 3, count=STARVED_DRAFTS // 24 + 1)
    assert not look(core)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_a_rank_that_cannot_leaves_the_mode_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    core = Core(UniProcExecutor(worker(None)))
    core.control.ask(asked(ALL), 3)
    core.before_step()
    state = core.control.state
    assert (state.mode, state.generation, state.ranks, core.modes) == (ADAPTIVE, 0, 0, [ADAPTIVE])
    assert "rank 0: ValueError: there is no adaptive verification" in state.error
    assert core.control.settled
    assert not core.control.due
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_ranks_that_differ_are_brought_back_together() -> None:
    class Full(Manager):
        def set_cost_curves(self, draft: Any, verify: Any) -> None:
            raise MemoryError("full")

    core = Core(UniProcExecutor(worker(Manager()), worker(Full())))
    core.control.ask(asked(ALL, cheap=True), 3)
    core.before_step()
    assert core.control.state.error == "rank 1: MemoryError: full"
    assert core.control.due
    assert core.steps(8, 3) == [{step(worker(Manager()), 8, 3)}]
    state = core.control.state
    assert (state.mode, state.generation, state.ranks) == (ADAPTIVE, 0, 2)


@pytest.mark.parametrize("how", ["send", "answer"])
def test_an_executor_that_fails_never_reaches_the_step_loop_and_the_next_push_is_tried(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    core = Core(MultiprocExecutor())
    with monkeypatch.context() as broken:
        if how == "send":
            broken.setattr(MultiprocExecutor, "collective_rpc", lambda *_, **__: 1 / 0)
        else:
            broken.setattr("paceline_engine.worker.verify", lambda *_: 1 / 0)
        core.control.ask(asked(ALL), 1)
        core.before_step()
        core.executor.run()
        assert "division by zero" in core.control.state.error
        assert (core.control.settled, core.control.state.mode, core.modes) == (True, ADAPTIVE, [ADAPTIVE])
        core.now += REPORT_SECONDS
        core.control.tick()
        core.before_step()  # counts that cannot be had are no news
    core.control.ask(asked(ALL), 2)
    core.before_step()
    core.executor.run()
    state = core.control.state
    assert (state.mode, state.generation, state.error) == (ALL, 2, "")


def test_the_probe_lets_one_rank_reply_where_it_can_and_takes_the_first_elsewhere() -> None:
    for executor in (MultiprocExecutor(), UniProcExecutor()):
        assert inspect(executor, (), 8).adaptive
        assert all(hasattr(one.model_runner.adaptive_verification, "_paceline") for one in executor.workers)


def test_executors_that_keep_the_order_are_known_by_what_they_derive_from() -> None:
    class RayExecutorV2(MultiprocExecutor): ...

    assert ordered(RayExecutorV2())
    assert not ordered(object())


@given(
    st.lists(
        st.tuples(
            st.none()
            | st.sampled_from([asked(ALL), asked(ADAPTIVE, cheap=True)])
            | st.builds(lambda cap: asked(CAPPED, cap), st.integers(0, 30)),
            st.integers(1, 8),
            st.integers(1, 3),
            st.booleans(),
        ),
        max_size=20,
    )
)
def test_whenever_changes_come_ranks_agree_in_every_step_and_the_last_one_is_in_force(changes: list[Any]) -> None:
    core = Core(MultiprocExecutor())
    ran: list[list[int]] = []
    for generation, (policy, requests, drafts, read) in enumerate(changes, start=1):
        core.control.ask(policy, generation)
        core.before_step()
        core.executor.collective_rpc(step, args=(requests, drafts), non_block=True).add_done_callback(
            lambda future: ran.append(future.result())
        )
        if read:
            core.executor.run()
    core.executor.run()
    assert all(one == other for one, other in ran)
    state = core.control.state
    if changes:
        last = changes[-1][0]
        assert (state.mode, state.cap) == ((last.mode, last.cap) if last else (ADAPTIVE, None))
        assert (state.generation, state.ranks, state.error) == (len(changes), 2, "")
        assert core.modes[-1] is state.mode
