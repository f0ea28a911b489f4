"""Simulated engines for the tuner's tests: the replay's, whose truth may change under way, and a loop of passes."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from paceline_engine.protocol import (
    HISTOGRAM_BASE,
    AcceptanceCell,
    Capabilities,
    CostCell,
    Feature,
    Policy,
    Samples,
    State,
    Verification,
    VerificationFeature,
    VerificationState,
)
from paceline_operator.api.serving import ServingSpec
from paceline_operator.replay.engine import Engine as Replayed
from paceline_operator.replay.world import Arm, Visit
from paceline_operator.tuning.decide import settings_of, step
from paceline_operator.tuning.model import Decision, Engine, Memory, Settings, Step

DATA = Path(__file__).parents[2] / "benchmarks" / "grids"
POOR = (0.437, 0.220, 0.119, 0.068, 0.043, 0.027, 0.016)
GOOD = (0.78, 0.60, 0.46, 0.36, 0.28, 0.22, 0.17)

StepSeconds = Callable[[int, int], float]
Survival = Callable[[int], Sequence[float]]
Adaptive = Callable[[int, int], tuple[float, float]]
"""(requests, k) -> step seconds and acceptance length under adaptive verification."""


def grid(name: str) -> StepSeconds:
    """Step seconds by (requests, k), linear in requests between the measured ones and in k between measured ks."""
    cells: dict[int, dict[int, float]] = {}
    with (DATA / name).open() as file:
        for row in csv.DictReader(file):
            cells.setdefault(int(row["k"]), {})[int(row["concurrency"])] = float(row["step_ms"]) / 1000

    def seconds(requests: int, k: int) -> float:
        if k not in cells:
            below, above = max(one for one in cells if one < k), min(one for one in cells if one > k)
            share = (k - below) / (above - below)
            return seconds(requests, below) * (1 - share) + seconds(requests, above) * share
        loads = sorted(cells[k])
        return float(np.interp(requests, loads, [cells[k][load] for load in loads]))

    return seconds


def fixed(survival: Sequence[float]) -> Survival:
    """The same survival by position under every k."""
    return lambda k: survival[:k]


SURVIVALS: Mapping[str, Survival] = {"good": fixed(GOOD), "poor": fixed(POOR)}


def workload(dataset: str, method: str = "eagle") -> Survival:
    """Measured survival by position under each k."""
    rows: dict[int, tuple[float, ...]] = {}
    with (DATA / "workload_acceptance.csv").open() as file:
        for row in csv.DictReader(file):
            if (row["dataset"], row["method"]) == (dataset, method):
                rows[int(row["k"])] = tuple(float(share) for share in row["survival"].split())
    return lambda k: rows[k] if k else ()


def goodput(cost: StepSeconds, survival: Survival, requests: int, k: int) -> float:
    """True tokens a second."""
    return requests * (1 + sum(survival(k))) / cost(requests, k)


@dataclass
class SimulatedEngine:
    """The replay's engine under a closed loop of `requests` whose truth may change under way."""

    cost: StepSeconds
    survival: Survival
    boot: tuple[int, ...]
    ladder: tuple[int, ...]
    rng: np.random.Generator
    noise: float = 0.05
    requests: int = 1
    beside: int = 0
    """Requests in every second half of a window, at the cost and acceptance of `requests`; 0: the same."""
    fires: float = 1.0
    slow: float = 1.0
    adaptive: Adaptive | None = None
    """Of an engine that booted with adaptive verification, which is then in force until it is told otherwise."""
    switchable: bool = True
    repriceable: bool = False
    priced: float = 1.0
    """Factor on its step time under measured prices."""
    max_k: int | None = None
    """0 in an engine without a drafter."""
    boot_id: str = "boot-1"
    live: bool = True
    windows: list[Samples] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = self._booted()

    def _booted(self) -> Replayed:
        return Replayed(self.rng, self.boot, self.ladder, self.noise, self.boot_id)

    @property
    def policy(self) -> Policy | None:
        return self.engine.policy

    @policy.setter
    def policy(self, policy: Policy | None) -> None:
        self.engine.policy, self.engine.table = policy, policy.table if policy else self.boot

    @property
    def table(self) -> tuple[int, ...]:
        return self.engine.table

    @property
    def uptime(self) -> float:
        return self.engine.uptime

    @uptime.setter
    def uptime(self, seconds: float) -> None:
        self.engine.uptime = self.engine.read = seconds

    @property
    def tokens(self) -> float:
        """True tokens that came out, noise left out."""
        return self.engine.tokens

    @property
    def steps_by_k(self) -> dict[int, int]:
        """Bursts included."""
        table, probes = self.engine.by_k, self.engine.probes_by_k
        return {k: table.get(k, 0) + probes.get(k, 0) for k in {*table, *probes}}

    @property
    def probe_steps(self) -> int:
        return sum(self.engine.probes_by_k.values())

    @property
    def total_steps(self) -> int:
        return sum(self.engine.by_k.values()) + self.probe_steps

    @property
    def generation(self) -> int:
        return self.policy.generation if self.policy else 0

    @property
    def mode(self) -> Verification:
        if self.adaptive is None:
            return Verification.ALL
        told = self.policy.adaptive_verification if self.policy else None
        return told.mode if told else Verification.ADAPTIVE

    def truth(self, k: int) -> Arm:
        """What `k` is worth now."""
        survival = tuple(self.survival(k)[:k])
        if self.adaptive is not None and self.mode is not Verification.ALL and k:
            seconds, length = self.adaptive(self.requests, k)
            told = self.policy.adaptive_verification if self.policy else None
            factor = self.priced if told and told.verify_costs else 1.0
            return Arm(seconds * self.slow * factor, length, survival, self.fires)
        length = 1 + self.fires * sum(survival)
        return Arm(self.cost(self.requests, k) * self.slow, length, survival, self.fires)

    def restart(self, boot_id: str) -> None:
        """Another process: nothing is left of the old one."""
        self.boot_id, self.windows = boot_id, []
        self.engine = self._booted()

    def push(self, policy: Policy) -> bool:
        if policy.generation < self.generation:
            return False
        self.engine.push(policy)
        return True

    def run(self, seconds: float, stalls: int = 0) -> Samples:
        """`seconds` of decoding; the samples of it. `stalls`: steps of the table's k that took 3 s longer."""
        self.engine.noise = self.noise
        if self.requests:
            probed = self.policy.probe.ks if self.policy and self.policy.probe else ()
            ks = {*self.ladder, *self.table, *probed}  # somebody else's policy may name any
            arms = {k: self.truth(k) for k in sorted(ks)}
            loads = (self.requests, self.beside) if self.beside else (self.requests,)
            for load in loads:
                self.engine.run(Visit(load, seconds, arms), 0, seconds / len(loads))
        else:
            self.engine.uptime += seconds
        found = self.engine.samples(self.requests)
        cells = [cell.model_copy(update={"verification": self.mode}) for cell in found.cells]
        cells = [_stalled(cell, stalls) if stalls and not cell.probe else cell for cell in cells]
        fates = [fate.model_copy(update={"verification": self.mode}) for fate in found.acceptance]
        samples = found.model_copy(
            update={"cells": tuple(cells), "acceptance": tuple(fates), "reset": not self.windows}
        )
        self.windows.append(samples)
        return samples

    def state(self) -> State:
        verification = (
            VerificationFeature(supported=False, reason="V1")
            if self.adaptive is None
            else VerificationFeature(
                supported=self.switchable,
                present=True,
                modes=(Verification.ADAPTIVE, Verification.ALL, Verification.CAPPED),
                repriceable=self.repriceable,
            )
        )
        able = Capabilities(
            live_k=Feature(supported=self.live, reason="" if self.live else "suffix needs a constant k"),
            adaptive_verification=verification,
            max_k=self.ladder[0] if self.max_k is None else self.max_k,
            ladder=self.ladder,
            max_num_seqs=len(self.boot) - 1,
            method="eagle",
            runner="V2",
        )
        told = VerificationState(mode=self.mode, generation=self.generation) if self.adaptive is not None else None
        return self.engine.state(able).model_copy(update={"adaptive_verification": told})

    def since_boot(self, samples: Samples) -> Samples:
        """`samples` as a reader without a cursor gets them: all windows of this process added up."""
        cells: dict[tuple[int, int, bool, Verification], CostCell] = {}
        for cell in (cell for window in self.windows for cell in window.cells):
            at = (cell.load, cell.k_drafted, cell.probe, cell.verification)
            cells[at] = _added(cells[at], cell) if at in cells else cell
        fates: dict[tuple[int, int, Verification], AcceptanceCell] = {}
        for fate in (fate for window in self.windows for fate in window.acceptance):
            key = (fate.k, fate.load, fate.verification)
            fates[key] = _added(fates[key], fate) if key in fates else fate
        whole = {"cells": tuple(cells.values()), "acceptance": tuple(fates.values())}
        return samples.model_copy(update={**whole, "reset": True, "from_seconds": 0.0})

    def answer(self, seconds: float, name: str = "pod-0", stalls: int = 0) -> Engine:
        samples = self.run(seconds, stalls)
        return Engine(name=name, state=self.state(), samples=samples)


def _stalled(cell: CostCell, steps: int) -> CostCell:
    """`cell` with so many of its steps 3 s longer."""
    mean, histogram = cell.seconds / cell.steps, dict(cell.histogram)
    for time, count in ((mean, -steps), (mean + 3.0, steps)):
        position = int(math.log(time * 1e6) / math.log(HISTOGRAM_BASE))
        histogram[position] = histogram.get(position, 0) + count
    squared = cell.seconds_squared + steps * ((mean + 3.0) ** 2 - mean**2)
    return cell.model_copy(
        update={"seconds": cell.seconds + 3.0 * steps, "seconds_squared": squared, "histogram": histogram}
    )


Cell = TypeVar("Cell", CostCell, AcceptanceCell)


def _added(one: Cell, other: Cell) -> Cell:
    """Two cells of the same place: their counts and sums added, by name; the names of the place kept."""
    place = {"load", "context", "k_drafted", "k_verified", "probe", "k", "verification", "prompt"}
    total: dict[str, object] = {}
    for name in set(type(one).model_fields) - place:
        a: Any = getattr(one, name)
        b: Any = getattr(other, name)
        if isinstance(a, dict):
            total[name] = {at: a.get(at, 0) + b.get(at, 0) for at in {*a, *b}}
        elif isinstance(a, tuple):
            total[name] = tuple(x + y for x, y in zip(a, b, strict=True))
        else:
            total[name] = a + b
    return one.model_copy(update=total)


def spec(**fields: object) -> ServingSpec:
    """A serving of an EAGLE draft; `fields` replace top-level ones."""
    base: dict[str, object] = {
        "model": {"source": "hf://a/b"},
        "speculation": {"method": "eagle", "draft": {"source": "hf://a/c"}, "maxTokens": 5},
    }
    return ServingSpec.model_validate({**base, **fields})


@dataclass
class Loop:
    """The tuner against simulated engines: pass after pass, pushes delivered."""

    settings: Settings
    engines: Mapping[str, SimulatedEngine]
    interval: float = 10.0
    now: float = 0.0
    known: int = 0
    memory: Memory = field(default_factory=Memory)
    steps: list[Step] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    pushes: int = 0

    @classmethod
    def of(
        cls,
        cost: StepSeconds,
        survival: Survival,
        *,
        seed: int = 0,
        noise: float = 0.05,
        count: int = 1,
        fields: Mapping[str, Any] | None = None,
    ) -> Loop:
        """`count` engines of a serving with the spec `fields`."""
        settings = settings_of(spec(**(fields or {})))
        engines = {
            f"pod-{i}": SimulatedEngine(
                cost, survival, settings.boot_table, settings.ladder, np.random.default_rng((seed, i)), noise
            )
            for i in range(count)
        }
        return cls(settings, engines, settings.interval_seconds)

    def run(self, passes: int, requests: int | None = None, stalls: int = 0) -> Step:
        """`passes` passes at `requests` (None: as before) in every engine; the last answer."""
        for _ in range(passes):
            for engine in self.engines.values():
                engine.requests = engine.requests if requests is None else requests
            self.now += self.interval
            answers = [engine.answer(self.interval, name, stalls) for name, engine in self.engines.items()]
            self.take(answers)
        return self.steps[-1]

    def take(self, answers: Sequence[Engine]) -> Step:
        """One pass over given answers."""
        found = step(self.settings, self.memory, answers, known_generation=self.known, now=self.now)
        assert found.errors == ()
        self.memory, self.known = found.memory, max(self.known, found.generation)
        for name in found.push_to:
            assert found.policy is not None
            assert self.engines[name].push(found.policy)
            self.pushes += 1
        self.steps.append(found)
        self.decisions += found.decisions
        return found
