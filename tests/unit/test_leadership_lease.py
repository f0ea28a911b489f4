"""The Lease on virtual time: taken, renewed, lost, followed, released; never two at once."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline_operator.clients.kube import ConflictError, NotFoundError, UnavailableError, _finish
from paceline_operator.leadership import LEASE_NAME, Leadership, Terms
from tests.fakes import FakeKube, Object
from tests.virtual_time import LoopClock, run

TERMS = Terms()
HANG_SECONDS = 1000.0


class LeaseKube(FakeKube):
    """With optimistic locking, and an API server that may be down for some and slow for all."""

    def __init__(self) -> None:
        super().__init__()
        self.down: set[str] = set()
        self.slow = 0.0
        self.hung: set[str] = set()
        """Those whose requests, whatever they ask, take HANG_SECONDS and then succeed."""

    def seen_by(self, name: str) -> LeaseKube:
        """The same server, from where `name` is."""
        view = copy.copy(self)
        view.name = name  # type: ignore[attr-defined]
        return view

    async def _reach(self) -> None:
        # As the real client: who cancels is kept until the request has ended.
        hung = self.name in self.hung  # type: ignore[attr-defined]
        await _finish(asyncio.ensure_future(asyncio.sleep(HANG_SECONDS if hung else self.slow)))
        if self.name in self.down:  # type: ignore[attr-defined]
            raise UnavailableError(0, "NoAnswer", "down")

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        await self._reach()
        return await super().get(kind, namespace, name)

    async def create(self, body: Object) -> Object:
        await self._reach()
        if (body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]) in self.objects:
            raise ConflictError(409, "AlreadyExists", "there")
        return await super().create(body)

    async def replace(self, body: Object) -> Object:
        await self._reach()
        key = (body["kind"], body["metadata"]["namespace"], body["metadata"]["name"])
        if key not in self.objects:
            raise NotFoundError(404, "NotFound", "gone")
        if self.objects[key]["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
            raise ConflictError(409, "Conflict", "changed")
        return self.put(body)


class Stoppable(LoopClock):
    """Of a process that may be stopped, as by SIGSTOP: time goes on, and none of its tasks has run when it wakes."""

    stopped = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.stopped


class Crew:
    """Processes that contend, and who acts since when."""

    def __init__(self) -> None:
        self.kube = LeaseKube()
        self.acting: dict[str, float] = {}
        self.history: list[tuple[str, str, float]] = []
        self.most = 0
        self.anew: list[bool] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.members: dict[str, Leadership] = {}
        self.clocks: dict[str, Stoppable] = {}

    def start(self, name: str) -> None:
        loop = asyncio.get_running_loop()

        async def lead(anew: bool) -> None:
            self.anew.append(anew)
            self.acting[name] = loop.time()
            self.history.append((name, "leads", loop.time()))
            self.most = max(self.most, len(self.acting))

        async def stop() -> None:
            self.acting.pop(name, None)
            self.history.append((name, "stops", loop.time()))

        seen: Any = self.kube.seen_by(name)
        self.clocks[name] = Stoppable(loop)
        member = self.members[name] = Leadership(seen, self.clocks[name], "home", name, lead, stop, TERMS)
        self.tasks[name] = loop.create_task(member.run())

    async def stop(self, name: str) -> None:
        task = self.tasks.pop(name)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    def kill(self, name: str) -> None:
        """Without a word: what it would do on its way out does not reach anybody."""
        self.kube.down.add(name)
        self.tasks.pop(name).cancel()
        self.acting.pop(name, None)

    async def end(self) -> None:
        for name in list(self.tasks):
            await self.stop(name)

    @property
    def lease(self) -> Mapping[str, Any]:
        return dict(self.kube.find("Lease", LEASE_NAME)["spec"])


def scenario(test: Callable[[Crew], Awaitable[None]]) -> None:
    async def main() -> None:
        crew = Crew()
        try:
            await test(crew)
        finally:
            await crew.end()

    run(main())


def test_the_first_takes_it_at_once_renews_it_and_the_second_waits() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(1)
        crew.start("b")
        await asyncio.sleep(300)
        assert crew.history == [("a", "leads", 0.0)]
        assert (crew.lease["holderIdentity"], crew.lease["leaseTransitions"]) == ("a", 0)
        renewals = [write for write in crew.kube.writes if write[0] == "CREATE"]
        assert len(renewals) == 1, "by create once, then by replace"

    scenario(test)


def test_one_that_dies_is_followed_after_the_duration_and_not_before() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        crew.start("b")
        await asyncio.sleep(61)
        dead = next(iter(crew.acting))
        crew.kill(dead)
        await asyncio.sleep(TERMS.duration - TERMS.renew - 1)
        assert not crew.acting
        await asyncio.sleep(TERMS.renew + TERMS.poll)  # the last renewal was a second before its death
        assert list(crew.acting) == [{"a": "b", "b": "a"}[dead]]
        assert crew.lease["leaseTransitions"] == 1

    scenario(test)


def test_one_that_is_stopped_stops_acting_first_and_hands_over_at_once() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(1)
        crew.start("b")
        await asyncio.sleep(29)
        await crew.stop("a")
        assert crew.history[-1] == ("a", "stops", 30.0)
        assert crew.lease["holderIdentity"] == ""
        await asyncio.sleep(TERMS.poll)
        assert list(crew.acting) == ["b"]

    scenario(test)


def test_one_that_was_stopped_knows_that_it_may_not_act_before_its_tasks_do() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(31)
        assert crew.members["a"].holds()
        crew.clocks["a"].stopped = TERMS.deadline
        assert crew.members["a"].leading, "none of its tasks has run yet"
        assert not crew.members["a"].holds()
        crew.start("b")
        await asyncio.sleep(1)
        assert not crew.members["b"].holds()

    scenario(test)


def test_one_that_cannot_renew_steps_down_before_another_may_begin() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(1)
        crew.start("b")
        await asyncio.sleep(30)
        crew.kube.down.add("a")
        await asyncio.sleep(60)
        assert [(name, what) for name, what, _ in crew.history] == [("a", "leads"), ("a", "stops"), ("b", "leads")]
        stopped, led = crew.history[1][2], crew.history[2][2]
        assert led - stopped >= TERMS.duration - TERMS.deadline - TERMS.poll
        crew.kube.down.clear()
        await asyncio.sleep(60)
        assert list(crew.acting) == ["b"], "who comes back waits like any other"

    scenario(test)


def test_one_whose_renewal_hangs_steps_down_while_it_does() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(1)
        crew.start("b")
        await asyncio.sleep(30)
        crew.kube.hung.add("a")
        await asyncio.sleep(60)
        assert [(name, what) for name, what, _ in crew.history] == [("a", "leads"), ("a", "stops"), ("b", "leads")]
        stopped, led = crew.history[1][2], crew.history[2][2]
        assert stopped <= 30 + TERMS.deadline, "counted from the last renewal, not from the request that hangs"
        assert led - stopped >= TERMS.duration - TERMS.deadline - TERMS.poll
        await asyncio.sleep(HANG_SECONDS)
        assert crew.lease["leaseTransitions"] == 1, "what hung so long has no effect when it ends"
        assert list(crew.acting) == ["b"]

    scenario(test)


def test_one_that_is_stopped_while_its_renewal_hangs_stops_acting_at_once() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(29)
        crew.kube.hung.add("a")
        await asyncio.sleep(2)  # its renewal of second 30 hangs
        await crew.stop("a")
        assert crew.history[-1] == ("a", "stops", 31.0)
        assert asyncio.get_running_loop().time() <= 31.0 + 2 * TERMS.poll

    scenario(test)


def test_the_api_server_away_for_all_nobody_acts_until_it_is_back() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(30)
        crew.kube.down |= {"a"}
        await asyncio.sleep(TERMS.duration)
        assert not crew.acting
        crew.kube.down.clear()
        await asyncio.sleep(TERMS.poll)
        assert list(crew.acting) == ["a"]
        assert crew.lease["leaseTransitions"] == 0
        assert crew.anew == [True, False], "nobody else had it: what was known holds"

    scenario(test)


def test_who_had_it_before_another_begins_anew() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(1)
        crew.start("b")
        await asyncio.sleep(30)
        crew.kube.down.add("a")
        await asyncio.sleep(60)
        assert list(crew.acting) == ["b"]
        crew.kube.down.clear()
        await crew.stop("b")
        await asyncio.sleep(TERMS.poll)
        assert list(crew.acting) == ["a"]
        assert crew.anew == [True, True, True]

    scenario(test)


def test_another_process_of_the_same_name_is_another() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(30)
        crew.kube.down.add("a")
        await asyncio.sleep(TERMS.duration)
        spec = crew.kube.find("Lease", LEASE_NAME)["spec"]
        crew.kube.put({**crew.kube.find("Lease", LEASE_NAME), "spec": {**spec, "acquireTime": "by its namesake"}})
        crew.kube.down.clear()
        await asyncio.sleep(TERMS.poll)
        assert (crew.anew, crew.lease["leaseTransitions"]) == ([True, True], 1)

    scenario(test)


@pytest.mark.parametrize("seconds", [3.0, 4.5])
def test_a_slow_api_server_costs_nobody_the_lease(seconds: float) -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(10)
        crew.kube.slow = seconds
        await asyncio.sleep(300)
        crew.kube.slow = 0.0
        assert crew.history == [("a", "leads", 0.0)]

    scenario(test)


def test_a_renewal_that_came_through_unseen_is_no_loss() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(30)
        crew.kube.put(crew.kube.find("Lease", LEASE_NAME))  # another version, the same words
        await asyncio.sleep(30)
        assert crew.history == [("a", "leads", 0.0)]
        assert crew.lease["leaseTransitions"] == 0

    scenario(test)


def test_a_lease_of_others_is_judged_by_when_it_changed_not_by_what_clock_it_says() -> None:
    async def test(crew: Crew) -> None:
        ahead = {"holderIdentity": "x", "leaseDurationSeconds": 15, "renewTime": "2099-01-01T00:00:00.000000Z"}
        meta = {"name": LEASE_NAME, "namespace": "home"}
        crew.kube.put({"kind": "Lease", "metadata": meta, "spec": ahead})
        crew.start("a")
        await asyncio.sleep(TERMS.duration - 1)
        assert not crew.acting
        await asyncio.sleep(1 + TERMS.poll)
        assert list(crew.acting) == ["a"]

    scenario(test)


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"leaseDurationSeconds": None},
        {"holderIdentity": None, "leaseTransitions": None},
        {"leaseTransitions": 2**31 - 1},
    ],
)
def test_a_lease_that_says_nothing_is_free(spec: Object) -> None:
    async def test(crew: Crew) -> None:
        crew.kube.put({"kind": "Lease", "metadata": {"name": LEASE_NAME, "namespace": "home"}, "spec": spec})
        crew.start("a")
        await asyncio.sleep(1)
        assert list(crew.acting) == ["a"]
        assert crew.lease["leaseTransitions"] < 2**31, "or the API server refuses it"

    scenario(test)


def test_a_deleted_lease_is_made_again_with_the_next_renewal() -> None:
    async def test(crew: Crew) -> None:
        crew.start("a")
        await asyncio.sleep(1)
        del crew.kube.objects["Lease", "home", LEASE_NAME]
        await asyncio.sleep(TERMS.renew)
        assert crew.lease["holderIdentity"] == "a"
        assert crew.history == [("a", "leads", 0.0)]

    scenario(test)


WHAT = ["cut", "hang", "heal", "stop", "start", "kill", "slow", "wait"]
STEPS = st.lists(st.tuples(st.sampled_from(WHAT), st.sampled_from("abc")), max_size=25)


@settings(max_examples=60)
@given(STEPS, st.lists(st.sampled_from([0.1, 1.0, 3.0, 7.0, 16.0, 40.0]), min_size=25, max_size=25))
def test_never_two_act_at_once(steps: list[tuple[str, str]], pauses: list[float]) -> None:
    async def test(crew: Crew) -> None:
        for (step, name), pause in zip(steps, pauses, strict=False):
            alive = name in crew.tasks
            if step == "cut":
                crew.kube.down.add(name)
            elif step == "hang":
                crew.kube.hung.add(name)
            elif step == "heal":
                crew.kube.down.discard(name)
                crew.kube.hung.discard(name)
            elif step == "slow":
                crew.kube.slow = pause / 40
            elif step == "start" and not alive:
                crew.kube.down.discard(name)
                crew.start(name)
            elif step == "stop" and alive:
                await crew.stop(name)
            elif step == "kill" and alive:
                crew.kill(name)
            await asyncio.sleep(pause)
            assert len(crew.acting) <= 1
        assert crew.most <= 1
        crew.kube.down.clear()
        crew.kube.hung.clear()
        if crew.tasks:
            await asyncio.sleep(TERMS.duration + TERMS.deadline + 2 * TERMS.poll)
            assert len(crew.acting) == 1, "somebody does"

    scenario(test)
