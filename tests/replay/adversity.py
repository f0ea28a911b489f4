"""A tuner under adversity: simulated engines whose truth changes under way, and what is asked of it pass by pass."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from paceline_engine.protocol import (
    HISTOGRAM_BASE,
    Samples,
    State,
    Verification,
    VerificationFeature,
    VerificationState,
    load_bucket,
)
from tests.unit.simulated import Loop, SimulatedEngine, StepSeconds, Survival, goodput, grid, workload

DENSE, SMALL = grid("h200_dense32b_eagle.csv"), grid("h200_llama8b_eagle_small.csv")
GSM8K, SHAREGPT = workload("gsm8k"), workload("sharegpt")
PASSES_PER_HOUR = 360
TIE_PCT = 3.0
"""Two ks nearer than this are one choice: published cases are ties below it (19 of 46 within 2 %)."""


def nothing(k: int) -> Sequence[float]:
    """No draft is accepted."""
    return (0.0,) * k


@dataclass(frozen=True)
class Pass:
    """One pass: what the table said, and what that was worth in truth."""

    load: int
    k: int
    ratio: float
    """Goodput of the table's k over that of the best."""
    to_off: float
    """The same over that of k=0."""


@dataclass
class Trial:
    """A loop, and its record."""

    loop: Loop
    passes: list[Pass] = field(default_factory=list)
    tables: list[tuple[int, ...]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        cost: StepSeconds = DENSE,
        survival: Survival = GSM8K,
        *,
        seed: int = 0,
        noise: float = 0.05,
        count: int = 1,
        fields: Mapping[str, Any] | None = None,
    ) -> Trial:
        """`count` engines."""
        return cls(Loop.of(cost, survival, seed=seed, noise=noise, count=count, fields=fields))

    def set(self, *, cost: StepSeconds | None = None, survival: Survival | None = None) -> None:
        """Another truth from now on."""
        for engine in self.loop.engines.values():
            engine.cost, engine.survival = cost or engine.cost, survival or engine.survival

    def run(self, passes: int, load: int | Callable[[int], int]) -> Sequence[Pass]:
        """`passes` passes at `load`, which may depend on the pass; the record of them."""
        start = len(self.passes)
        for number in range(passes):
            at = load(number) if callable(load) else load
            step = self.loop.run(1, at)
            engine = next(iter(self.loop.engines.values()))
            rates = {k: goodput(engine.cost, engine.survival, at, k) for k in self.loop.settings.ladder}
            k = step.table[at]
            self.passes.append(Pass(at, k, rates[k] / max(rates.values()), rates[k] / rates[0]))
            self.tables.append(step.table)
        return self.passes[start:]

    def changes_per_hour(self, load: int, since: int) -> float:
        """Of the table's entry at `load`, from pass `since` on."""
        ks = [table[load] for table in self.tables[since:]]
        return sum(a != b for a, b in pairwise(ks)) * PASSES_PER_HOUR / max(1, len(ks) - 1)

    def decided(self, since: int = 0) -> int:
        """Changes of the k in force, from pass `since` on."""
        return sum(len(step.decisions) for step in self.loop.steps[since:])

    def flapping(self, since: int) -> Mapping[int, float]:
        """Load buckets whose cell changes more than six times an hour, from pass `since` on."""
        loads = {load_bucket(one.load) for one in self.passes[since:]}
        rates = {load: self.changes_per_hour(load, since) for load in loads}
        return {load: rate for load, rate in rates.items() if rate > 6}


def settled_after(passes: Sequence[Pass], band_pct: float = TIE_PCT) -> int:
    """Passes until every k in force is within the band of the best."""
    late = [number for number, one in enumerate(passes) if one.ratio < 1 - band_pct / 100]
    return late[-1] + 1 if late else 0


def below_off(passes: Sequence[Pass], margin_pct: float = 1.0) -> int:
    """Passes with a k that is worse than k=0 by more than the margin."""
    return sum(one.to_off < 1 - margin_pct / 100 for one in passes)


@dataclass
class Silent(SimulatedEngine):
    """An engine that tells of tokens, never of drafts."""

    def run(self, seconds: float, stalls: int = 0) -> Samples:
        """Without acceptance."""
        return super().run(seconds, stalls).model_copy(update={"acceptance": ()})


@dataclass
class Unclean(SimulatedEngine):
    """An engine in which no step of some ks' bursts counts."""

    lost: set[int] = field(default_factory=set)

    def run(self, seconds: float, stalls: int = 0) -> Samples:
        """Without the steps and drafts of these."""
        found = super().run(seconds, stalls)
        cells = tuple(cell for cell in found.cells if not (cell.probe and cell.k_drafted in self.lost))
        return found.model_copy(
            update={"cells": cells, "acceptance": tuple(one for one in found.acceptance if one.k not in self.lost)}
        )


@dataclass
class Verifying(SimulatedEngine):
    """An engine with adaptive verification booted. While it is on, steps take `saved` of their time and give `kept` of
    their drafts; once `starving`, its estimate admits none, and drafts are paid for."""

    saved: float = 0.7
    kept: float = 0.9
    starving: bool = False
    on: int = 0
    """Windows that ran with it on."""

    @property
    def mode(self) -> Verification:
        """As pushed, else as booted: on."""
        asked = self.policy.adaptive_verification if self.policy else None
        return asked.mode if asked else Verification.ADAPTIVE

    @property
    def admits(self) -> float:
        """Share of the drafts' worth that is left."""
        return 1.0 if self.mode is Verification.ALL else 0.0 if self.starving else self.kept

    def run(self, seconds: float, stalls: int = 0) -> Samples:
        """What the mode makes of the window: the same steps, shorter, and fewer drafts verified."""
        mode, admits = self.mode, self.admits
        self.on += mode is not Verification.ALL
        found = super().run(seconds, stalls)
        saved = 1.0 if mode is Verification.ALL else self.saved
        fates = [
            fate.model_copy(
                update={
                    "verification": mode,
                    "drafted": tuple(round(count * admits) for count in fate.drafted),
                    "accepted": tuple(round(count * admits) for count in fate.accepted),
                }
            )
            for fate in found.acceptance
        ]
        cells = [
            cell.model_copy(
                update={
                    "verification": mode,
                    "k_verified": round(cell.k_drafted * admits),
                    "seconds": cell.seconds * saved,
                    "seconds_squared": cell.seconds_squared * saved**2,
                    "histogram": {at + round(math.log(saved, HISTOGRAM_BASE)): n for at, n in cell.histogram.items()},
                    "emitted": round(cell.request_steps + (cell.emitted - cell.request_steps) * admits),
                }
            )
            for cell in found.cells
        ]
        return found.model_copy(update={"cells": tuple(cells), "acceptance": tuple(fates)})

    def state(self) -> State:
        """With what it can do, and whether its estimate starves."""
        plain, mode = super().state(), self.mode
        able = VerificationFeature(supported=True, present=True, modes=tuple(AS_BOOTED))
        told = VerificationState(
            mode=mode, generation=self.generation, ranks=1, starved=self.starving and mode is not Verification.ALL
        )
        capabilities = plain.capabilities.model_copy(update={"adaptive_verification": able})
        return plain.model_copy(update={"capabilities": capabilities, "adaptive_verification": told})


AS_BOOTED = (Verification.ADAPTIVE, Verification.ALL, Verification.CAPPED)


def replaced(trial: Trial, kind: type[SimulatedEngine]) -> Trial:
    """`trial` with its engines of another kind."""
    trial.loop.engines = {
        name: kind(one.cost, one.survival, one.boot, one.ladder, one.rng, one.noise)
        for name, one in trial.loop.engines.items()
    }
    return trial
