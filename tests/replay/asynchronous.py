"""An engine that schedules asynchronously, step by step, in a closed loop: what its plugin counts is counted by the
plugin's own policy and recorder.

A turn of its loop launches a step and then waits for the one before. The turn is as long as the longer of the two: what
the host takes to launch, more where prompts are in the step, or what the GPU has still to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from paceline_engine.policy import LivePolicy, Phase
from paceline_engine.protocol import (
    Capabilities,
    Feature,
    Gauges,
    State,
    Verification,
    VerificationFeature,
)
from paceline_engine.samples import IDLE, History, Recorder, Step
from paceline_operator.replay.contest import Setup, Tuner

LADDER = (7, 5, 4, 3, 2, 1, 0)
ACCEPTED = (0.78, 0.60, 0.46, 0.36, 0.28, 0.22, 0.17)
"""Share of drafts accepted up to each position."""
GPU_MS = {
    64: (19.2, 16.8, 14.5, 11.2, 10.5, 8.6, 6.5),
    128: (35.0, 28.4, 25.0, 19.5, 16.8, 12.5, 8.0),
    256: (58.4, 50.0, 41.0, 31.4, 26.4, 17.2, 13.8),
}
"""By load, of a step of each k without prompts (at k=0 it is the host that takes so long): at 256 requests steps of
benchmarks/results/h200/mixed.json that neither have prompts nor come before one that does; below, of sweep.csv."""
LAUNCH_MS = {64: 11.5, 128: 13.5, 256: 23.8}
"""Of the host, for a step with prompts: as in mixed.json; below 256 requests a guess by what fixed ks took there."""
PROMPT_TOKEN_SECONDS = 30e-6
"""Of the GPU: as in mixed.json at k = 2 and 3."""
PROMPT_TOKENS, REPLY_TOKENS, MAX_NUM_SEQS, SCATTER, NOISE_SECONDS = 96, 512, 256, 0.05, 2.0


@dataclass(eq=False)
class Request:
    """One that runs."""

    left: int
    """Tokens of its reply."""


@dataclass
class InFlight:
    """A step that is launched."""

    k: int
    phase: Phase
    drafted: int
    """k of the drafts that it verifies."""
    excluded: str
    decoding: list[Request]
    new: list[Request]


@dataclass
class Engine:
    """`launch_ms`: in place of those above, at 256 requests."""

    rng: np.random.Generator
    launch_ms: float = LAUNCH_MS[MAX_NUM_SEQS]
    noise: float = 0.0
    """Standard deviation of the log of all times together, drawn every two seconds."""
    now: float = 0.0
    load: int = 0
    policy: LivePolicy = field(default_factory=lambda: LivePolicy([0] * (MAX_NUM_SEQS + 1), LADDER[0]))
    recorder: Recorder = field(default_factory=Recorder)
    cursor: str = ""

    def __post_init__(self) -> None:
        self.history = History(self.recorder, "engine")
        self.pace, self.paced = 1.0, -math.inf

    def fill(self, load: int) -> None:
        """`load` requests of all ages, nothing in flight."""
        self.load = load
        self.running = [Request(int(left)) for left in self.rng.integers(REPLY_TOKENS // 8, REPLY_TOKENS, load)]
        self.waiting: list[Request] = []
        self.flying: InFlight | None = None
        self.k: int | None = None
        self.free = self.applied = self.now

    def turn(self) -> tuple[float, int, int]:
        """Seconds of a turn, tokens that came out, requests that came after it."""
        begun, before = self.now, self.flying
        if begun - self.paced >= NOISE_SECONDS:
            self.pace, self.paced = math.exp(self.rng.normal(0, self.noise)), begun
        sure = {*before.decoding, *before.new} if before else set()
        decoding = [one for one in self.running if one.left > 1 or one not in sure]  # known to end: not scheduled again
        new, self.waiting = self.waiting, []
        k, phase = self.policy.choose(len(decoding) + len(new), len(decoding) + len(new))
        drafted, self.k = k if self.k is None else self.k, k
        excluded = IDLE if before is None else "settling" if phase is Phase.SETTLING else ""
        excluded = excluded or ("transition" if k != drafted else "")
        if excluded and phase is Phase.PROBE:
            self.policy.lost()
        self.flying = InFlight(k, phase, drafted, excluded, decoding, new)
        gpu = GPU_MS[self.load]
        launch = self.launch_ms if self.load == MAX_NUM_SEQS else LAUNCH_MS[self.load]
        host = (launch if new else gpu[-1]) / 1000 * self._scattered()
        free, self.now = self.free, max(begun + host, self.free) if before else begun + host
        work = gpu[LADDER.index(drafted)] / 1000 * self._scattered() + PROMPT_TOKEN_SECONDS * PROMPT_TOKENS * len(new)
        self.free = max(free, begun + host / 2) + work
        tokens = self._complete(before) if before else 0
        self.running += new
        return self.now - begun, tokens, len(self.waiting)

    def _scattered(self) -> float:
        return self.pace * math.exp(self.rng.normal(0, SCATTER))

    def _complete(self, step: InFlight) -> int:
        """What `step` gave; the one launched meanwhile is in flight."""
        reached = self.rng.random(len(step.decoding))[:, None] < np.asarray(ACCEPTED[: step.drafted])
        tokens = len(step.new)
        for one, accepted in zip(step.decoding, reached.sum(axis=1).tolist(), strict=True):
            tokens += min(one.left, 1 + accepted)
            one.left -= min(one.left, 1 + accepted)
        for one in step.new:
            one.left -= 1
        there = [one for one in self.running if one.left]
        self.waiting += [Request(REPLY_TOKENS) for _ in range(len(self.running) - len(there))]
        self.running = there
        decoding = len(step.decoding)
        counted = Step(
            sampling=decoding + len(step.new),
            k=step.k,
            phase=step.phase,
            k_before=step.drafted,
            verified=step.drafted,
            context=REPLY_TOKENS / 2,
            verification=Verification.ALL,
            excluded=step.excluded,
            seconds=self.now - self.applied,
            prompt_tokens=PROMPT_TOKENS * len(step.new),
            launched=bool(self.flying and self.flying.new),
            first_tokens=len(step.new),
            request_steps=decoding,
            drafted=[decoding] * step.drafted,
            accepted=reached.sum(axis=0).tolist(),
        )
        self.applied = self.now
        self.recorder.step(counted, tokens)
        self.recorder.tick(self.now, idle=False)
        return tokens

    def visit(self, tuner: Tuner, load: int, seconds: float, interval: float) -> dict[int, float]:
        """`tuner` in charge at `load`; seconds by k in the last half."""
        self.fill(load)
        begun, due, spent = self.now, self.now + interval, dict.fromkeys(LADDER, 0.0)
        while self.now - begun < seconds:
            took, _, _ = self.turn()
            if self.now - begun > seconds / 2:
                spent[self.k or 0] += took
            if self.now >= due:
                due += interval
                gauges = Gauges(running=load, waiting=0, kv_cache_usage=0.1, prompt_tokens=0, generation_tokens=0)
                samples = self.history.since(self.cursor or None, gauges)
                self.cursor = samples.cursor
                if policy := tuner.pass_(self.state(), samples, self.now):
                    self.policy.swap(policy)
        return spent

    def state(self) -> State:
        """As its plugin tells it."""
        able = Capabilities(
            live_k=Feature(supported=True),
            adaptive_verification=VerificationFeature(supported=False, reason="not simulated"),
            max_k=LADDER[0],
            ladder=LADDER,
            max_num_seqs=MAX_NUM_SEQS,
            method="eagle",
            runner="V2",
        )
        return State(
            plugin_version="0",
            engine_version="0",
            boot_id="engine",
            uptime_seconds=self.now,
            capabilities=able,
            generation=self.policy.plan.generation,
            table=self.policy.plan.table,
            k_in_force=self.policy.k_in_force,
            steps_by_k={k: steps for k, steps in enumerate(self.policy.steps_by_k) if steps},
            probe_steps_by_k={k: steps for k, steps in enumerate(self.policy.probe_steps_by_k) if steps},
            policy_errors=0,
            probe=self.policy.plan.probe,
        )


def serving(tuner: Tuner, rng: np.random.Generator, launch_ms: float, noise: float) -> Engine:
    """An engine booted for `tuner`."""
    engine = Engine(rng, launch_ms, noise)
    engine.policy = LivePolicy(tuner.boot, LADDER[0])
    return engine


def setup(interval: float) -> Setup:
    """Of its tuner."""
    return Setup(LADDER, MAX_NUM_SEQS, interval_seconds=interval)


@cache
def fixed(load: int, k: int, launch_ms: float, seconds: float = 30.0) -> tuple[float, list[tuple[float, int, int]]]:
    """Tokens a second with k pinned, and each turn."""
    engine = Engine(np.random.default_rng(k), launch_ms)
    engine.policy = LivePolicy([k] * (MAX_NUM_SEQS + 1), LADDER[0])
    engine.fill(load)
    turns = []
    while engine.now < seconds:
        turns.append(engine.turn())
    return sum(tokens for _, tokens, _ in turns) / engine.now, turns
