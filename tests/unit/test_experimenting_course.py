"""What an experiment does next: whatever engines do, each has at most one turn, and it comes to an end that is told."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.experiment import ExperimentSpec
from paceline_operator.api.status_experiment import ENDED, Phase
from paceline_operator.experiment import progress
from paceline_operator.experiment.course import Act, Record, Running, Situation, decide, over, reasons
from paceline_operator.experiment.plan import plan
from paceline_operator.experiment.results import Methods, VariantResult, Window

SPEC = ExperimentSpec.model_validate(
    {
        "servingRef": {"name": "chat"},
        "load": {"concurrency": [1, 4], "prompts": {"random": {}}},
        "duration": {"seconds": 10},
        "variants": [{"name": "k3", "change": {"maxTokens": 3}}],
    }
)
PLAN = plan(SPEC)
START_SECONDS = 100.0
LOOK_SECONDS = 30.0
ENDS = st.lists(
    st.sampled_from(["measured", "crashes", "half", "never", "hangs", "vanishes"]), min_size=30, max_size=30
)


def result(variant: str, windows: Sequence[Window] = ()) -> VariantResult:
    return VariantResult(experiment="x", variant=variant, k=0, methods=Methods(gpu="none"), windows=tuple(windows))


def window(load: int, round_: int) -> Window:
    return Window(load=load, round=round_, seed=0, started_at=0, seconds=10, warmed=True, tokens=100, requests=4)


class World:
    """A cluster that does what a step says; engines end as `ends` says, one after the other."""

    def __init__(self, ends: Sequence[str], budget: float) -> None:
        self.ends, self.budget, self.now = list(ends), budget, 1000.0
        self.records: dict[str, tuple[Record, ...]] = {}
        self.results = {name: result(name) for name in PLAN.variants}
        self.running: Running | None = None
        self.end = ""
        self.started: list[int] = []
        self.cancel = self.suspend = False

    def situation(self) -> Situation:
        return Situation(
            PLAN, self.records, self.results, 1, self.budget, START_SECONDS, self.now, self.suspend, self.cancel,
            self.running,
        )  # fmt: skip

    def step(self) -> Any:
        step = decide(self.situation())
        number = step.visit
        if step.act is Act.START:
            assert self.running is None
            assert number is not None
            assert not over(self.situation(), number)
            self.started.append(number)
            self.end = self.ends.pop(0) if self.ends else "measured"
            self.running = Running(number, self.now, began=None if self.end == "never" else self.now)
        elif step.act in (Act.END, Act.CLEAR):
            assert number is not None
            assert self.running is not None
            if step.act is Act.END:
                visit = PLAN.visits[number]
                began = self.running.began or self.now
                record = Record(round=visit.round, began=began, ended=self.now, reason=step.message)
                self.records[visit.variant] = (*self.records.get(visit.variant, ()), record)
            self.running = None
        elif step.act is Act.WAIT:
            self.goes_on()
        self.now += LOOK_SECONDS
        return step

    def goes_on(self) -> None:
        running = self.running
        assert running is not None
        visit = PLAN.visits[running.visit]
        if self.end in ("measured", "half"):
            taken = visit.measurements[: 1 if self.end == "half" else None]
            there = self.results[visit.variant].windows
            new = [window(one.load, visit.round) for one in taken]
            self.results[visit.variant] = result(visit.variant, [*there, *(one for one in new if one not in there)])
        changes = {
            "measured": {"ready": True, "done": True},
            "half": {"ready": True, "ended": "the engine ended", "load_ended": True},
            "crashes": {"ended": "the engine ended", "ended_at": self.now},
            "hangs": {"ready": True},
        }
        if self.end == "vanishes":
            self.running, self.end = None, ""
        elif self.end in changes:
            fields = {name: getattr(running, name) for name in Running.__dataclass_fields__}
            self.running = Running(**{**fields, **(changes[self.end] if not running.ended else {})})

    def run(self) -> Any:
        for _ in range(40_000):
            step = self.step()
            if step.act is Act.FINISH:
                return step
        raise AssertionError("no end")


@given(ENDS, st.floats(1, 2000))
def test_it_ends_and_what_is_missing_has_a_reason(ends: list[str], budget: float) -> None:
    world = World(ends, budget)
    last = world.run()
    assert last.phase in ENDED
    assert world.running is None
    s = world.situation()
    told = reasons(s, last)
    for visit in progress.rest(PLAN.visits, world.results):
        for one in progress.left(visit, world.results):
            assert told.get((visit.variant, visit.round, one.load)), "nothing is missing without a reason"
    assert decide(s) == last, "the same again"
    if last.phase is Phase.COMPLETED:
        assert {number for number in range(len(PLAN.visits)) if over(s, number)} == set(range(len(PLAN.visits)))


@given(ENDS, st.floats(1, 2000))
def test_no_more_is_spent_than_the_budget(ends: list[str], budget: float) -> None:
    """By no more than the time between two looks."""
    world = World(ends, budget)
    world.run()
    assert world.situation().spent <= budget * 60 + LOOK_SECONDS


@given(ENDS, st.integers(0, 60))
def test_cancelled_at_any_time(ends: list[str], at: int) -> None:
    world = World(ends, 10_000)
    for _ in range(at):
        if world.step().act is Act.FINISH:
            return
    world.cancel = True
    starts = len(world.started)
    for _ in range(3):
        last = world.step()
    assert (last.act, last.phase) == (Act.FINISH, Phase.CANCELLED)
    assert world.running is None
    assert len(world.started) == starts


@given(ENDS, st.integers(0, 60))
def test_suspended_at_any_time_starts_nothing(ends: list[str], at: int) -> None:
    world = World(ends, 10_000)
    for _ in range(at):
        if world.step().act is Act.FINISH:
            return
    world.suspend = True
    starts = len(world.started)
    last = world.run()
    assert last.phase in (Phase.SUSPENDED, Phase.COMPLETED, Phase.FAILED)
    assert len(world.started) == starts


def test_turns_are_those_of_the_plan() -> None:
    world = World([], 10_000)
    assert world.run().phase is Phase.COMPLETED
    assert world.started == list(range(len(PLAN.visits)))


def test_while_something_is_left_nothing_starts() -> None:
    world = World([], 10_000)
    s = world.situation()
    waits = decide(Situation(**{**s.__dict__, "remains": "Pod x"}))
    assert (waits.act, waits.phase) == (Act.WAIT, Phase.RUNNING)
