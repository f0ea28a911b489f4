"""All runs of a replay, on as many processors as there are, and their result as JSON."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any
from zlib import crc32

import numpy as np

from paceline_operator.replay.contest import PacerFactory, Tuner
from paceline_operator.replay.courses import Course
from paceline_operator.replay.engine import run
from paceline_operator.replay.notes import Note, folded
from paceline_operator.replay.score import Case, Tally, cases, overall, tallies
from paceline_operator.replay.traces import Retraced, Trace, retrace

SEEDS = tuple(range(10))


@dataclass(frozen=True)
class Told:
    """One decision of one run."""

    table_id: str
    workload: str
    sweep: str
    seed: int
    at_seconds: float
    load: int
    from_k: int
    to_k: int
    reason: str
    message: str


@dataclass(frozen=True)
class Task:
    """One run."""

    course: Course
    sweep: str
    seed: int
    pacer: PacerFactory


@dataclass(frozen=True)
class Outcome:
    """What is left of one run: sums by load, and decisions."""

    tallies: Mapping[int, Tally]
    decisions: tuple[Told, ...]


def play(task: Task) -> Outcome:
    """One run, the same for the same task."""
    course = task.course
    name = f"{course.table_id}/{course.workload}/{course.loads}/{task.sweep}"
    rng = np.random.default_rng((task.seed, crc32(name.encode())))
    scenario = course.scenario(task.sweep, rng)
    pacer = task.pacer(course.setup)
    found = tallies(scenario, run(scenario, pacer, rng))
    decisions = pacer.decisions if isinstance(pacer, Tuner) else []
    return Outcome(
        found,
        tuple(
            Told(
                course.table_id,
                course.workload,
                task.sweep,
                task.seed,
                at,
                one.load,
                one.from_k,
                one.to_k,
                one.reason,
                one.message,
            )
            for at, one in decisions
        ),
    )


@dataclass(frozen=True)
class Report:
    """The result of a replay."""

    cases: tuple[Case, ...]
    decisions: tuple[Told, ...]
    traces: tuple[Retraced, ...] = ()
    skipped: tuple[Note, ...] = ()
    problems: tuple[Note, ...] = ()

    def json(self, *, decisions: bool = False) -> dict[str, Any]:
        """As `--json` writes it."""
        told = {"decisions": [vars(one) for one in self.decisions]} if decisions else {}
        return {
            "cases": [case.json() for case in self.cases],
            "overall": overall(self.cases),
            "traces": [trace.json(decisions=decisions) for trace in self.traces],
            "skipped": [vars(note) for note in self.skipped],
            "problems": [vars(note) for note in self.problems],
            **told,
        }


def _until_told() -> None:
    """A worker leaves Ctrl-C to the process that started it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def replay(
    courses: Sequence[Course],
    *,
    seeds: Sequence[int] = SEEDS,
    pacer: PacerFactory = Tuner.of,
    processes: int = 1,
    traces: Iterable[Trace] = (),
    skipped: Iterable[Note] = (),
    problems: Iterable[Note] = (),
    done: Callable[[int, int, str], None] = lambda _done, _all, _table: None,
) -> Report:
    """All sweeps of all courses with every seed. `done` is told after each run how many are, of how many, and the table
    that ends with it, else an empty text.

    The result does not depend on `processes`.
    """
    tasks = [Task(course, sweep, seed, pacer) for course in courses for sweep in course.sweeps for seed in seeds]
    outcomes: list[Outcome] = []

    def ended(outcome: Outcome) -> None:
        outcomes.append(outcome)
        count, table = len(outcomes), tasks[len(outcomes) - 1].course.table_id
        last = count == len(tasks) or tasks[count].course.table_id != table
        done(count, len(tasks), table if last else "")

    if processes > 1 and len(tasks) > 1:
        with ProcessPoolExecutor(min(processes, len(tasks)), initializer=_until_told) as pool:
            for outcome in pool.map(play, tasks):
                ended(outcome)
    else:
        for task in tasks:
            ended(play(task))
    found: list[Case] = []
    for course in courses:
        found += cases(
            course, [one.tallies for task, one in zip(tasks, outcomes, strict=True) if task.course is course]
        )
    return Report(
        tuple(found),
        tuple(told for outcome in outcomes for told in outcome.decisions),
        tuple(map(retrace, traces)),
        folded(skipped),
        folded(problems),
    )
