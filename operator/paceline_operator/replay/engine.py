"""The simulated engine in a closed loop: counts as the plugin would tell them, no time spent.

Windows are simulated, not steps: counts follow from the time each k gets, so that an hour takes milliseconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

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
    VerificationFeature,
    load_bucket,
    prompt_bucket,
)
from paceline_operator.replay.contest import Pacer
from paceline_operator.replay.world import WINDOW_SECONDS, Run, Scenario, Visit, Window

STEP_SCATTER = 0.05
"""Of single steps around the mean of their window."""
BOOT = "replay"
_LOG_BASE = math.log(HISTOGRAM_BASE)


@dataclass
class Engine:
    """Counters of the engine and of the samples not yet read."""

    rng: np.random.Generator
    table: tuple[int, ...]
    ladder: tuple[int, ...]
    noise: float
    """Of a Scenario."""
    boot_id: str = BOOT
    policy: Policy | None = None
    uptime: float = 0.0
    read: float = 0.0
    passes: int = 0
    phase: int = 0
    """Steps into the present period of table steps and one burst."""
    turn: int = 0
    carried: float = 0.0
    tokens: float = 0.0
    costs: dict[tuple[int, int, bool, int], list[float]] = field(default_factory=dict)
    """(load, k, probe, prompt bucket) -> steps, request-steps, emitted, seconds, squares, prompt tokens, first tokens,
    and log bin counts apart."""
    bins: dict[tuple[int, int, bool, int], dict[int, int]] = field(default_factory=dict)
    fates: dict[tuple[int, int], AcceptanceCell] = field(default_factory=dict)
    settled: int = 0
    by_k: dict[int, int] = field(default_factory=dict)
    probes_by_k: dict[int, int] = field(default_factory=dict)
    steps_since: dict[int, int] = field(default_factory=dict)
    probes_since: dict[int, int] = field(default_factory=dict)
    draws: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        self.draws = self._noise()

    def _noise(self) -> Iterator[float]:
        while True:
            for draw in self.rng.normal(size=256).tolist():
                yield math.exp(self.noise * draw)

    def push(self, policy: Policy) -> None:
        """Put a newer policy in force. Raises ValueError for a k outside the ladder."""
        if unknown := {*policy.table, *(policy.probe.ks if policy.probe else ())} - set(self.ladder):
            raise ValueError(f"the engine has no graphs for k {sorted(unknown)}: its ladder is fixed")
        if policy.generation <= (self.policy.generation if self.policy else 0):
            return
        if policy.probe != (self.policy.probe if self.policy else None):
            self.phase = 0
        self.policy, self.table = policy, policy.table

    def run(self, visit: Visit, index: int, seconds: float) -> Window:
        """One window of `seconds`."""
        k = self.table[visit.load]
        start, self.uptime = self.uptime, self.uptime + seconds
        steps: dict[int, int] = {}
        spent: dict[int, float] = {}
        for drafted, counted, settling, step in self._stretches(visit, k, seconds):
            probe = drafted != k
            if counted:
                self._cost(visit, drafted, probe, counted, step)
            steps[drafted] = steps.get(drafted, 0) + counted + settling
            spent[drafted] = spent.get(drafted, 0.0) + (counted + settling) * (step + visit.added(drafted))
            self.settled += settling
            by_k, since = (self.probes_by_k, self.probes_since) if probe else (self.by_k, self.steps_since)
            by_k[drafted] = by_k.get(drafted, 0) + counted + settling
            since[drafted] = since.get(drafted, 0) + counted + settling
        for drafted, count in steps.items():
            self._accepted(visit, drafted, count)
        total = sum(spent.values())
        shares = {drafted: seconds * time / total for drafted, time in spent.items()} if total else {k: seconds}
        self.tokens += sum(visit.rates[drafted] * time for drafted, time in shares.items())
        return Window(start, index, k, shares)

    def _stretches(self, visit: Visit, k: int, seconds: float) -> Iterator[tuple[int, int, int, float]]:
        """(k drafted, steps counted, steps settling, mean seconds of a step without prompts): the table's steps, and
        each burst."""
        left = seconds + self.carried
        step = visit.arms[k].step_seconds * next(self.draws)
        prompts = visit.added(k)
        probe = self.policy.probe if self.policy else None
        if probe is None:
            count = int(left / (step + prompts))
            self.carried = left - count * (step + prompts)
            if count:
                yield k, count, 0, step
            return
        burst = probe.settle_steps + probe.burst_steps
        before, own = probe.interval_steps - burst, 0
        while True:
            if self.phase < before:
                count = min(before - self.phase, int(left / (step + prompts)))
                own, left, self.phase = own + count, left - count * (step + prompts), self.phase + count
                if self.phase < before:
                    break
            drafted = probe.ks[self.turn % len(probe.ks)]
            mean = visit.arms[drafted].step_seconds * next(self.draws) if drafted != k else step
            into = self.phase - before
            whole = mean + visit.added(drafted)
            count = min(burst - into, int(left / whole))
            settling = min(count, max(0, probe.settle_steps - into)) if drafted != k else 0
            left, self.phase = left - count * whole, self.phase + count
            if count:
                yield drafted, count - settling, settling, mean
            if into + count < burst:
                break
            self.phase, self.turn = 0, self.turn + 1
        self.carried = left
        if own:
            yield k, own, 0, step

    def _cost(self, visit: Visit, k: int, probe: bool, steps: int, mean: float) -> None:
        if visit.prompts is None:
            self._alike(visit, k, probe, steps, mean, 0)
            return
        arrived = np.bincount(np.minimum(self.rng.poisson(visit.arrivals(k), steps), visit.load))
        pace = mean / visit.arms[k].step_seconds
        for begun in np.flatnonzero(arrived).tolist():
            added = pace * visit.prompts.added(visit.arms[k].step_seconds, begun)
            self._alike(visit, k, probe, int(arrived[begun]), mean + added, begun)

    def _alike(self, visit: Visit, k: int, probe: bool, steps: int, mean: float, begun: int) -> None:
        """Steps in each of which `begun` requests began."""
        tokens = begun * visit.prompts.tokens if visit.prompts else 0
        key = (load_bucket(visit.load), k, probe, prompt_bucket(tokens))
        total = self.costs.setdefault(key, [0, 0, 0, 0.0, 0.0, 0, 0])
        requests = steps * visit.load
        total[0] += steps
        total[1] += requests
        total[2] += (requests - steps * begun) * (visit.arms[k].length or 1.0) + steps * begun
        total[3] += steps * mean
        total[4] += steps * mean * mean * (1 + STEP_SCATTER**2)
        total[5] += steps * tokens
        total[6] += steps * begun
        bins = self.bins.setdefault(key, {})
        position = max(0, int(math.log(mean * 1e6) / _LOG_BASE)) if mean > 1e-6 else 0
        bins[position] = bins.get(position, 0) + steps

    def _accepted(self, visit: Visit, k: int, steps: int) -> None:
        arm = visit.arms[k]
        if not steps or (arm.length is None and k > 0):
            return
        total = round(steps * max(0.0, visit.load - visit.arrivals(k)))
        fired = total if arm.fired == 1.0 else int(self.rng.binomial(total, arm.fired))
        drafts = fired if k else 0
        counts: Sequence[int] = ()
        if k:
            reached = np.cumsum(self.rng.multinomial(fired, arm.fates)[::-1])[::-1]
            counts = reached[1:].tolist()
        key = (k, load_bucket(visit.load))
        past = self.fates.get(key)
        if past is not None:
            total, drafts = total + past.request_steps, drafts + past.drafts
            counts = [a + b for a, b in zip(counts, past.accepted, strict=True)]
        self.fates[key] = AcceptanceCell.model_construct(
            k=k,
            load=key[1],
            request_steps=total,
            drafts=drafts,
            drafted=(drafts,) * k,
            accepted=tuple(counts),
        )

    def samples(self, load: int) -> Samples:
        """Everything since the last call."""
        cells = tuple(
            CostCell.model_construct(
                load=at,
                context=0,
                k_drafted=k,
                k_verified=k,
                probe=probe,
                steps=int(steps),
                request_steps=int(requests),
                emitted=round(emitted),
                seconds=seconds,
                seconds_squared=squares,
                histogram=self.bins[at, k, probe, prompt],
                prompt=prompt,
                prompt_tokens=int(tokens),
                first_tokens=int(first),
            )
            for (at, k, probe, prompt), total in self.costs.items()
            for steps, requests, emitted, seconds, squares, tokens, first in (total,)
        )
        self.passes += 1
        found = Samples.model_construct(
            boot_id=self.boot_id,
            cursor=f"{self.boot_id}:{self.passes}",
            reset=False,
            lost_windows=0,
            from_seconds=self.read,
            to_seconds=self.uptime,
            cells=cells,
            acceptance=tuple(self.fates.values()),
            excluded_steps={"settling": self.settled},
            steps_by_k=self.steps_since,
            probe_steps_by_k=self.probes_since,
            gauges=Gauges.model_construct(
                running=load, waiting=0, kv_cache_usage=0.1, prompt_tokens=0, generation_tokens=int(self.tokens)
            ),
        )
        self.read, self.settled = self.uptime, 0
        self.costs, self.bins, self.fates, self.steps_since, self.probes_since = {}, {}, {}, {}, {}
        return found

    def state(self, able: Capabilities) -> State:
        """As the plugin of an engine that can do `able` tells it."""
        return State.model_construct(
            plugin_version="0",
            engine_version="0",
            boot_id=self.boot_id,
            uptime_seconds=self.uptime,
            capabilities=able,
            generation=self.policy.generation if self.policy else 0,
            table=self.table,
            k_in_force=None,
            steps_by_k=dict(self.by_k),
            probe_steps_by_k=dict(self.probes_by_k),
            policy_errors=0,
            probe=self.policy.probe if self.policy else None,
        )


def run(scenario: Scenario, pacer: Pacer, rng: np.random.Generator) -> Run:
    """`pacer` through `scenario`: every window, in order."""
    setup = scenario.setup
    able = Capabilities(
        live_k=Feature(supported=True),
        adaptive_verification=VerificationFeature(supported=False, reason="not simulated"),
        max_k=setup.ladder[0],
        ladder=setup.ladder,
        max_num_seqs=setup.max_num_seqs,
        method=setup.method,
        runner="V2",
    )
    engine = Engine(rng, pacer.boot, setup.ladder, scenario.noise)
    window = min(WINDOW_SECONDS, setup.interval_seconds)
    windows: list[Window] = []
    asked = 0.0
    for index, visit in enumerate(scenario.visits):
        for _ in range(round(visit.seconds / window)):
            windows.append(engine.run(visit, index, window))
            if engine.uptime - asked >= setup.interval_seconds - 1e-6:
                asked = engine.uptime
                policy = pacer.pass_(engine.state(able), engine.samples(visit.load), engine.uptime)
                if policy is not None:
                    engine.push(policy)
    return tuple(windows)
