"""What a run leaves: phases with their tallies, decisions, engines. Filled while it runs, read by view and report."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline_engine.protocol import State
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.local.tally import Tally
from paceline_operator.tuning.model import Decision, Interval, Step


@dataclass
class PhaseRecord:
    """One stretch of the run with the same load."""

    concurrency: int | None
    """None: there is no load of ours."""
    text: str | None
    tally: Tally = field(default_factory=Tally)
    drain: Tally = field(default_factory=Tally)
    """Of the passes in which requests of the phase before were still answered: theirs is another load or text."""
    left_over: int = 0
    """Requests of the phase before that were out when the pass before ended."""
    table: tuple[int, ...] = ()
    """Dense table in force at its end."""


@dataclass
class DecisionRecord:
    """A decision and when it was made, seconds since the first reading."""

    at_seconds: float
    decision: Decision


@dataclass
class EngineRecord:
    """One engine process slot."""

    name: str
    pids: list[int]
    restarts: int = 0
    state: State | None = None
    """As read last."""


@dataclass
class Record:
    """Everything a report is made of."""

    serving: SpeculativeServing
    started_at: str
    phases: list[PhaseRecord] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)
    engines: list[EngineRecord] = field(default_factory=list)
    completed_requests: int = 0
    failed_requests: int = 0
    last_failure: str = ""
    seconds: float = 0.0
    """Since the first reading."""
    step: Step | None = None
    status: ServingStatus = field(default_factory=ServingStatus)
    ended_by: str = ""
    prior: str = ""
    """What became of the profile that it started from; empty where there is none."""

    @property
    def phase(self) -> PhaseRecord | None:
        """The present phase."""
        return self.phases[-1] if self.phases else None

    @property
    def restarts(self) -> int:
        """Of all engines."""
        return sum(engine.restarts for engine in self.engines)

    def total(self) -> Tally:
        """Sums over all phases."""
        total = Tally()
        for phase in self.phases:
            total.merge(phase.tally)
            total.merge(phase.drain)
        return total

    def ratio_to_k0(self) -> Interval | None:
        """Over the whole run. What k=0 costs at a load does not depend on the text, so all phases share its bursts."""
        return self.total().ratio_to_k0()
