"""Simulated engines for the tuner's tests: step costs and acceptance from tables, noise from a seed, no time spent."""

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
    Gauges,
    Policy,
    Samples,
    State,
    Verification,
    VerificationFeature,
    VerificationState,
    load_bucket,
)
from paceline_operator.api.serving import ServingSpec
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
    """One engine under a closed loop of `requests`: runs a policy for a window and answers as the plugin would."""

    cost: StepSeconds
    survival: Survival
    boot: tuple[int, ...]
    ladder: tuple[int, ...]
    rng: np.random.Generator
    noise: float = 0.05
    step_noise: float = 0.05
    requests: int = 1
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
    policy: Policy | None = None
    uptime: float = 0.0
    window: int = 0
    turn: int = 0
    phase: int = 0
    """Steps into the present period of table steps and one burst."""
    carried: float = 0.0
    tokens: float = 0.0
    """True tokens that came out, noise left out."""
    windows: list[Samples] = field(default_factory=list)
    steps_by_k: dict[int, int] = field(default_factory=dict)
    probe_steps: int = 0
    total_steps: int = 0

    @property
    def table(self) -> tuple[int, ...]:
        return self.policy.table if self.policy else self.boot

    @property
    def mode(self) -> Verification:
        if self.adaptive is None:
            return Verification.ALL
        told = self.policy.adaptive_verification if self.policy else None
        return told.mode if told else Verification.ADAPTIVE

    def truth(self, k: int) -> tuple[float, float]:
        """Step seconds and acceptance length at `k` now."""
        if self.adaptive is not None and self.mode is not Verification.ALL and k:
            seconds, length = self.adaptive(self.requests, k)
            told = self.policy.adaptive_verification if self.policy else None
            return seconds * self.slow * (self.priced if told and told.verify_costs else 1.0), length
        return self.cost(self.requests, k) * self.slow, 1 + self.fires * sum(self.survival(k)[:k])

    def restart(self, boot_id: str) -> None:
        self.boot_id, self.policy, self.uptime, self.window = boot_id, None, 0.0, 0
        self.steps_by_k, self.windows = {}, []

    def push(self, policy: Policy) -> bool:
        if policy.generation < self.generation:
            return False
        if self.policy is None or policy.probe != self.policy.probe:
            self.phase = 0
        self.policy = policy
        return True

    @property
    def generation(self) -> int:
        return self.policy.generation if self.policy else 0

    def run(self, seconds: float, stalls: int = 0) -> Samples:
        """`seconds` of decoding; the samples of it. `stalls`: steps of the table's k that took 3 s longer."""
        cells, acceptance, counted = [], [], {}
        start, self.uptime, self.window = self.uptime, self.uptime + seconds, self.window + 1
        if self.requests:
            counted = self._steps(seconds)
        for (k, probe), (steps, settle) in counted.items():
            step, length = self.truth(k)
            self.tokens += (steps + settle) * self.requests * length
            self.steps_by_k[k] = self.steps_by_k.get(k, 0) + steps + settle
            if steps:
                bursts = max(1, round(steps / 8)) if probe else 1
                mean = step * float(np.mean(np.exp(self.rng.normal(0, self.noise, bursts))))
                cells.append(self._cell(k, probe, steps, mean, 0 if probe else stalls))
            acceptance.append(self._accepted(k, steps + settle))
        samples = Samples(
            boot_id=self.boot_id,
            cursor=f"{self.boot_id}:{self.window}",
            reset=self.window == 1,
            lost_windows=0,
            from_seconds=start,
            to_seconds=self.uptime,
            cells=tuple(cells),
            acceptance=tuple(acceptance),
            excluded_steps={"settling": 0},
            steps_by_k=self.steps_by_k,
            probe_steps_by_k={},
            gauges=Gauges(
                running=self.requests,
                waiting=0,
                kv_cache_usage=0.1,
                prompt_tokens=0,
                generation_tokens=int(self.tokens),
            ),
        )
        self.windows.append(samples)
        return samples

    def _steps(self, seconds: float) -> dict[tuple[int, bool], tuple[int, int]]:
        """Steps by (k, probe): counted, and settling before them. The burst is the end of every period."""
        k = self.table[self.requests]
        probe = self.policy.probe if self.policy else None
        counts: dict[tuple[int, bool], list[int]] = {}
        left = seconds + self.carried
        while True:
            ahead, drafted, settling = 1_000_000, k, False
            if probe:
                burst = probe.settle_steps + probe.burst_steps
                self.phase %= probe.interval_steps
                before = probe.interval_steps - burst - self.phase
                if before <= 0:
                    drafted = probe.ks[self.turn % len(probe.ks)]
                    settling = before + probe.settle_steps > 0
                    ahead = before + probe.settle_steps if settling else before + burst
                else:
                    ahead = before
            step, _ = self.truth(drafted)
            steps = min(ahead, int(left / step))
            entry = counts.setdefault((drafted, drafted != k), [0, 0])
            entry[1 if settling else 0] += steps
            left -= steps * step
            self.phase += steps
            self.total_steps += steps
            self.probe_steps += steps if drafted != k else 0
            if steps < ahead:
                self.carried = left
                return {key: (counted, settled) for key, (counted, settled) in counts.items() if counted + settled}
            if probe and self.phase >= probe.interval_steps:
                self.turn += 1

    def _cell(self, k: int, probe: bool, steps: int, mean: float, stalls: int) -> CostCell:
        times = mean * np.exp(self.rng.normal(0, self.step_noise, steps))
        times[:stalls] += 3.0
        histogram: dict[int, int] = {}
        for position in np.floor(np.log(times * 1e6) / math.log(HISTOGRAM_BASE)).astype(int):
            histogram[int(position)] = histogram.get(int(position), 0) + 1
        return CostCell(
            load=load_bucket(self.requests),
            context=0,
            k_drafted=k,
            k_verified=k,
            probe=probe,
            verification=self.mode,
            steps=steps,
            request_steps=steps * self.requests,
            emitted=round(steps * self.requests * self.truth(k)[1]),
            seconds=float(times.sum()),
            seconds_squared=float((times**2).sum()),
            histogram=histogram,
        )

    def _accepted(self, k: int, steps: int) -> AcceptanceCell:
        total = steps * self.requests
        fired = int(self.rng.binomial(total, self.fires)) if k else 0
        accepted, alive, before = [], fired, 1.0
        for share in self.survival(k)[:k]:
            alive = int(self.rng.binomial(alive, min(1.0, share / before))) if before > 0 else 0
            accepted.append(alive)
            before = share
        return AcceptanceCell(
            k=k,
            load=load_bucket(self.requests),
            verification=self.mode,
            request_steps=total,
            drafts=fired,
            drafted=(fired,) * k,
            accepted=tuple(accepted),
        )

    def state(self) -> State:
        return State(
            plugin_version="0",
            engine_version="0",
            boot_id=self.boot_id,
            uptime_seconds=self.uptime,
            capabilities=Capabilities(
                live_k=Feature(supported=self.live, reason="" if self.live else "suffix needs a constant k"),
                adaptive_verification=VerificationFeature(supported=False, reason="V1")
                if self.adaptive is None
                else VerificationFeature(
                    supported=self.switchable,
                    present=True,
                    modes=(Verification.ADAPTIVE, Verification.ALL, Verification.CAPPED),
                    repriceable=self.repriceable,
                ),
                max_k=self.ladder[0] if self.max_k is None else self.max_k,
                ladder=self.ladder,
                max_num_seqs=len(self.boot) - 1,
                method="eagle",
                runner="V2",
            ),
            generation=self.generation,
            table=self.table,
            k_in_force=None,
            steps_by_k=self.steps_by_k,
            probe_steps_by_k={},
            policy_errors=0,
            probe=self.policy.probe if self.policy else None,
            adaptive_verification=VerificationState(mode=self.mode, generation=self.generation)
            if self.adaptive is not None
            else None,
        )

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


Cell = TypeVar("Cell", CostCell, AcceptanceCell)


def _added(one: Cell, other: Cell) -> Cell:
    """Two cells of the same place: their counts and sums added, by name; the names of the place kept."""
    place = {"load", "context", "k_drafted", "k_verified", "probe", "k", "verification"}
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
