"""Steps that go the short way through the hooks are chosen for and counted as if they went the long way."""

from __future__ import annotations

import threading
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st

from paceline_engine.policy import LivePolicy
from paceline_engine.protocol import Policy, Probe, Verification
from paceline_engine.steps import StepHooks
from tests.unit.engine_parts import BOOT, MAX_K, MAX_NUM_SEQS
from tests.unit.engine_scheduler import Engine

CONTEXT_EDGE = 8190


class LongWay(StepHooks):
    """Goes the long way with every step."""

    __slots__ = ()

    def scheduled(self, scheduler: Any, output: Any) -> None:
        if output.num_scheduled_tokens:
            self._scheduled(scheduler, output)
            composed, ((*facts, _), *rest) = self.in_flight.pop()
            self.in_flight.append((composed, ((*facts, None), *rest)))  # type: ignore[arg-type] # looked at in the end


class Course:
    """One engine and what happens to it; twice the same happens to two that are alike."""

    def __init__(self, *, stats: bool, lag: int, long: bool) -> None:
        self.engine = Engine(stats=stats, lag=lag)
        self.policy = self.engine.parts.policy
        if long:
            self.engine.hooks.__class__ = LongWay
        self.told: list[Any] = []
        """Whatever must be the same."""
        self.ahead: list[Any] = []
        self.serial = 0
        self.long_steps = 0
        inner = self.engine.hooks._census.count

        def count(*step: Any) -> tuple[int, int, int]:
            self.long_steps += 1
            return inner(*step)

        self.engine.hooks._census.count = count  # type: ignore[method-assign]

    def act(self, what: str, size: int, k: int) -> None:
        """One event."""
        engine = self.engine
        names = list(engine.requests)
        if what == "admit" and len(names) < MAX_NUM_SEQS:
            self.serial += 1
            engine.admit(f"r{self.serial}", prompt=CONTEXT_EDGE if size == 1 else size)
        elif what == "abort" and names:
            engine.finish(names[size % len(names)])
        elif what == "policy":
            probe = Probe(ks=tuple({k, 0}), settle_steps=2, interval_steps=12 + 8 * size) if size % 2 else None
            table = (k, *(k if at % 2 or size % 3 else max(k - 1, 0) for at in range(MAX_NUM_SEQS)))
            self.policy.swap(
                Policy(generation=self.policy.plan.generation + 1, table=table, dwell_steps=size, probe=probe)
            )
        elif what == "restore":
            self.policy.restore()
        elif what == "verify":
            self.policy.verification = Verification.ADAPTIVE if size % 2 else Verification.ALL
        elif what == "digest":
            engine.parts.digest.run()
        elif what == "steps":
            for at in range(4 * size):
                self.step(k, seconds=0.01 if at % 7 else 0.011)
        elif what == "stall":
            self.step(k, seconds=1.0)
        elif what == "stop" and names:
            self.step(k, stop=names[size % len(names)])
        elif what == "resume" and names:
            self.schedule(resumed=(names[size % len(names)],))
        elif what == "overlap":
            self.schedule()
        elif what == "lose" and self.ahead:
            self.ahead.pop(0)
        elif what == "skip":
            self.schedule(skip=True)
        self.told.append((self.policy.steps_by_k, list(self.policy.probe_steps_by_k), self.policy.k_in_force))

    def schedule(self, *, resumed: tuple[str, ...] = (), skip: bool = False) -> None:
        """One step, of the next three tokens of every prompt too, or of all of a long one."""
        chunks = {}
        for request in self.engine.running:
            left = request.num_tokens - request.num_computed_tokens
            if left > 1 or not request.num_computed_tokens:
                chunks[request.request_id] = left if left > 9 else min(left, 3)
        compose = self.engine.compose

        def composed(*how: Any) -> Any:
            output = compose(*how)
            output.skip_drafts = skip
            return output

        self.engine.compose = composed  # type: ignore[method-assign]
        output = self.engine.schedule(chunks, resumed=resumed)
        self.engine.compose = compose  # type: ignore[method-assign]
        self.told.append(output.num_spec_tokens_to_schedule)
        self.ahead.append(output)

    def step(self, k: int, *, seconds: float = 0.01, stop: str = "") -> None:
        """Schedule one and complete the oldest."""
        self.schedule()
        self.engine.now += seconds
        output = self.ahead.pop(0)
        accepted = {name: min(k, len(draft)) for name, draft in output.scheduled_spec_decode_tokens.items()}
        self.engine.cut = {stop: 1} if stop in output.num_scheduled_tokens else {}
        self.engine.complete(output, accepted=accepted, finished=stop)

    def end(self) -> Any:
        """Everything that was counted."""
        digest = self.engine.parts.digest
        return self.told, self.engine.samples(), digest.missed_steps, list(self.engine.failures)


RARE = ["abort", "policy", "restore", "verify", "digest", "stall", "stop", "resume", "overlap", "lose", "skip"]
EVENTS = st.tuples(
    st.sampled_from([*["steps"] * 6, *["admit"] * 3, *RARE]), st.integers(1, 9), st.integers(0, MAX_K)
)  # fmt: skip


@given(st.lists(EVENTS, max_size=40), st.booleans(), st.integers(1, 2))
def test_a_step_counts_the_same_whichever_way_it_goes(
    happened: list[tuple[str, int, int]], stats: bool, lag: int
) -> None:
    short, long = (Course(stats=stats, lag=lag, long=long) for long in (False, True))
    for course in (short, long):
        for what in (("admit", 3, 0), *happened, ("steps", 2, 1)):
            course.act(*what)
    assert short.end() == long.end()
    event("some went the short way" if short.long_steps < long.long_steps else "all went the long way")


def test_a_quiet_engine_goes_the_short_way() -> None:
    course = Course(stats=True, lag=1, long=False)
    course.act("admit", 3, 0)
    course.act("steps", 9, 2)
    course.act("steps", 9, 2)
    assert course.long_steps == 2, "the prompt, and the step after it, which looks at contexts"
    assert course.policy.steps_by_k[BOOT[1]] == 72


def test_whoever_reads_the_steps_while_they_are_counted_never_sees_them_fall() -> None:
    policy = LivePolicy(BOOT, MAX_K)
    seen: list[int] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(sum(policy.steps_by_k))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(3000):
        policy.choose(2, 2)
        policy.arm(3)
        for _ in range(3):
            policy.left -= 1
        policy.settle()
    done.set()
    reader.join()
    assert seen == sorted(seen)
    assert sum(policy.steps_by_k) == 4 * 3000
