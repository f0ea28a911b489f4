"""What an experiment in a cluster does next, and why: one engine at a time, each to a recorded end. Pure.

An engine's turn is a visit of the plan. It is over when it has a record, whatever came of it. All that is decided by is
in the cluster: records and results in ConfigMaps, at most one Job with its pod. So another process carries on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status_experiment import Phase
from paceline_operator.experiment import progress
from paceline_operator.experiment.plan import Plan
from paceline_operator.experiment.results import Amount, Fact, VariantResult

GRACE_SECONDS = 60.0
"""For the load to say what it has measured, once its engine has ended."""
SLOWEST, LOADING_SECONDS = 10.0, 300.0
"""A window takes at most so many times as long as asked for, and so long to begin (paceline_engine.trial)."""


class Record(Fact):
    """One engine's turn: written when it holds its devices, and again when it ends."""

    round: Annotated[int, Field(ge=0, le=10_000)]
    began: Amount
    """Unix seconds: since when it held its devices."""
    ended: Amount | None = None
    """None: it has its turn, or its Job vanished and nothing is known of that yet."""
    reason: str = Field(default="", max_length=1024)
    """Why something of it is missing."""

    @property
    def seconds(self) -> float:
        """Never below 0, whatever the clock of a node said."""
        return max(0.0, self.ended - self.began) if self.ended is not None else 0.0


@dataclass(frozen=True)
class Running:
    """The Job of a visit, and what is seen of its pod."""

    visit: int
    """Number in the plan."""
    created: float
    began: float | None = None
    """Since when its pod holds its devices; None: not yet."""
    engine_began: float | None = None
    """Since when its engine's container runs."""
    ready: bool = False
    """The load has found the engine serving."""
    done: bool = False
    """The load has measured everything."""
    ended: str = ""
    """Why it will measure no more."""
    ended_at: float = 0.0
    load_ended: bool = False
    finished: float | None = None
    """When the last of its containers ended, by the clock that `began` is of; None: one runs."""
    waits_for: str = ""
    """Why it has not begun."""


@dataclass(frozen=True)
class Situation:
    """Everything that counts."""

    plan: Plan
    records: Mapping[str, Sequence[Record]]
    """Variant -> how its engines ended."""
    results: Mapping[str, VariantResult]
    gpus: int
    """Of one engine."""
    budget_gpu_minutes: float
    start_seconds: float
    """From the Job to the engine's start, and from there to its first answer (engine.startupTimeoutSeconds)."""
    now: float
    suspend: bool = False
    cancel: bool = False
    running: Running | None = None
    remains: str = ""
    """What of an earlier visit is not gone yet, and what it held is not back."""
    others: str = ""
    """What has this experiment's label and is not its own: nobody knows what it holds."""

    @property
    def spent(self) -> float:
        """GPU-seconds of engines that ended."""
        return sum(one.seconds for many in self.records.values() for one in many) * self.gpus


class Act(StrEnum):
    """What to do."""

    WAIT = "Wait"
    START = "Start"
    END = "End"
    """Record it, then delete the Job."""
    CLEAR = "Clear"
    """Delete the Job: its record is there."""
    FINISH = "Finish"


@dataclass(frozen=True)
class Step:
    """One step. `visit`: number in the plan."""

    act: Act
    phase: Phase
    reason: Reason
    message: str
    visit: int | None = None


def decide(s: Situation) -> Step:
    """The next step."""
    if s.running is not None:
        return _of_running(s, s.running)
    if s.remains:
        text = f"{s.remains} of an earlier engine is not gone yet: its memory comes back with it"
        return Step(Act.WAIT, Phase.RUNNING, Reason.MEASURING, text)
    if s.cancel:
        return Step(Act.FINISH, Phase.CANCELLED, Reason.CANCELLED, f"spec.cancel is true; {state(s)}")
    rest = [number for number in range(len(s.plan.visits)) if not over(s, number)]
    if not rest:
        return _whole(s)
    if s.suspend:
        return Step(Act.FINISH, Phase.SUSPENDED, Reason.SUSPENDED, f"spec.suspend is true; {state(s)}")
    if why := progress.Budget(s.budget_gpu_minutes, s.spent / 60, s.gpus).refuses(0.0, _next_seconds(s)):
        return Step(Act.FINISH, Phase.OUT_OF_BUDGET, Reason.BUDGET_SPENT, f"{why}; {state(s)}")
    if s.others:
        text = f"{s.others} has the label {naming.LABEL_EXPERIMENT} of this experiment and is not its own: delete it"
        return Step(Act.WAIT, Phase.RUNNING, Reason.CHILD_CONFLICT, text)
    visit = s.plan.visits[rest[0]]
    text = f"{visit.variant}, round {visit.round + 1} of {s.plan.rounds}; {state(s)}"
    return Step(Act.START, Phase.RUNNING, Reason.MEASURING, text, rest[0])


def over(s: Situation, number: int) -> bool:
    """Whether a visit has its record."""
    visit = s.plan.visits[number]
    return any(one.round == visit.round and one.ended is not None for one in s.records.get(visit.variant, ()))


def state(s: Situation) -> str:
    """How far it is."""
    return progress.state(s.plan, s.results)


def _of_running(s: Situation, running: Running) -> Step:
    number = running.visit
    visit = s.plan.visits[number]
    about = (Phase.RUNNING, Reason.MEASURING)
    if over(s, number):
        return Step(Act.CLEAR, *about, "its record is there", number)
    if reason := _why_ended(s, running):
        return Step(Act.END, *about, reason, number)
    if running.done:
        return Step(Act.END, *about, "", number)
    text = f"{visit.variant}, round {visit.round + 1} of {s.plan.rounds}"
    waits = "" if running.ready else f" is starting{': ' if running.waits_for else ''}{running.waits_for}"
    return Step(Act.WAIT, *about, f"{text}{waits}; {state(s)}", number)


def _why_ended(s: Situation, running: Running) -> str:
    """Why the engine that runs has no more time; empty where it has."""
    if s.cancel:
        return "cancelled: spec.cancel is true"
    if running.done:
        return ""
    if running.ended and (running.load_ended or s.now > running.ended_at + GRACE_SECONDS):
        return running.ended
    if not running.ready and s.now > (running.engine_began or running.created) + s.start_seconds:
        what = "serve" if running.engine_began else "start"
        why = f": {running.waits_for}" if running.waits_for else ""
        return f"it did not {what} within {s.start_seconds:.0f} s (engine.startupTimeoutSeconds){why}"
    if running.began is None:
        return ""
    took = max(0.0, s.now - running.began)
    if s.spent + took * s.gpus > s.budget_gpu_minutes * 60:
        return f"spec.budgetGpuMinutes {s.budget_gpu_minutes:g} is spent"
    limit = limit_seconds(s.plan, running.visit, s.start_seconds)
    if took > limit or s.now > running.created + s.start_seconds + limit:  # the second where a node's clock is ahead
        return f"it had no end after {limit:.0f} s"
    return ""


def limit_seconds(plan: Plan, number: int, start_seconds: float) -> float:
    """Which no visit exceeds: the load beside the engine has stricter limits of its own."""
    visit = plan.visits[number]
    runs = len(visit.warm_up) + len(visit.measurements)
    return 2 * start_seconds + runs * (LOADING_SECONDS + SLOWEST * plan.seconds)


def _next_seconds(s: Situation) -> float:
    """Of the next visit: as long as the longest, or as the plan assumes."""
    took = [one.seconds for many in s.records.values() for one in many if one.ended is not None]
    return max(took, default=s.plan.round_gpu_minutes * 60 / len(s.plan.variants) / s.gpus)


def _whole(s: Situation) -> Step:
    if progress.whole(s.plan, s.results) and not s.plan.cut:
        return Step(Act.FINISH, Phase.COMPLETED, Reason.ALL_MEASURED, state(s))
    if any(one.windows for one in s.results.values()):
        return Step(Act.FINISH, Phase.COMPLETED, Reason.PARTLY_MEASURED, f"{state(s)}; status.missing says what is not")
    return Step(Act.FINISH, Phase.FAILED, Reason.NOTHING_MEASURED, "no engine measured anything; see status.missing")


def reasons(s: Situation, last: Step) -> dict[progress.Place, str]:
    """Of everything that is not there: what its engine ended with, or why it had no turn."""
    found: dict[progress.Place, str] = {}
    for number, visit in enumerate(s.plan.visits):
        mine = [one.reason for one in s.records.get(visit.variant, ()) if one.round == visit.round]
        if mine and mine[0]:
            found |= progress.noted([visit], mine[0], s.results)
        elif not over(s, number) and last.phase in (Phase.CANCELLED, Phase.OUT_OF_BUDGET, Phase.SUSPENDED):
            found |= progress.noted([visit], f"not reached: {last.message.partition('; ')[0]}", s.results)
    return found
