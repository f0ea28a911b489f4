"""Who sets the pace: the tuner and its rivals behind one interface, so that all run in the same world."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.speculation import DRAFT_METHODS, Method
from paceline_operator.tuning.decide import settings_of, step
from paceline_operator.tuning.model import Decision, Engine, Memory, Settings
from paceline_operator.tuning.prior import boot_table

ENGINE = "engine"


@dataclass(frozen=True)
class Setup:
    """What a pacer is told before the start."""

    ladder: tuple[int, ...]
    """Candidate ks, descending. Without 0 where k=0 was not measured."""
    max_num_seqs: int
    method: Method = Method.EAGLE
    interval_seconds: float = 10.0
    """Between two passes."""
    min_gain: float = 0.01
    """Smallest expected gain that is worth a move, as a fraction."""

    @property
    def boot_table(self) -> tuple[int, ...]:
        """The seed schedule that the operator boots an engine with."""
        return boot_table(self.ladder, self.max_num_seqs)


class Pacer(Protocol):
    """Sets the pace of one engine. Called once every interval with what the plugin of that engine answers."""

    boot: tuple[int, ...]
    """Dense table (max_num_seqs + 1 entries) that the engine boots with: in force until the first policy."""

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        """The policy to push now; None = nothing to push. `samples`: everything since the last pass."""


PacerFactory = Callable[[Setup], Pacer]
"""A new pacer that knows nothing yet."""


@dataclass
class Tuner:
    """paceline's tuner, as the operator runs it, with one engine."""

    settings: Settings
    boot: tuple[int, ...]
    memory: Memory = field(default_factory=Memory)
    generation: int = 0
    decisions: list[tuple[float, Decision]] = field(default_factory=list)
    """With the time of each."""

    @classmethod
    def of(cls, setup: Setup) -> Tuner:
        """A tuner with the API's defaults but for what `setup` says."""
        draft = {"draft": {"source": "hf://a/draft"}} if setup.method in DRAFT_METHODS else {}
        spec = {"model": {"source": "hf://a/b"}, "speculation": {"method": setup.method, **draft}}
        defaults = settings_of(ServingSpec.model_validate(spec))
        settings = replace(
            defaults,
            ladder=setup.ladder,
            max_num_seqs=setup.max_num_seqs,
            boot_table=setup.boot_table,
            interval_seconds=setup.interval_seconds,
            min_gain=setup.min_gain,
            probing=len(setup.ladder) > 1,
        )
        return cls(settings, setup.boot_table)

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        """One pass of the tuner."""
        engines = (Engine(name=ENGINE, state=state, samples=samples),)
        found = step(self.settings, self.memory, engines, known_generation=self.generation, now=now)
        self.memory, self.generation = found.memory, max(self.generation, found.generation)
        self.decisions += [(now, decision) for decision in found.decisions]
        return found.policy if found.push_to else None


@dataclass
class Constant:
    """One k at every load: what most people run."""

    boot: tuple[int, ...]

    @classmethod
    def of(cls, setup: Setup, k: int) -> Constant:
        """`k` for ever."""
        return cls((k,) * (setup.max_num_seqs + 1))

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        """Nothing to push."""
        return None
