"""Adversities in any order and together; and when they are over, the tuner is back within half an hour."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paceline_engine.protocol import MAX_PROBE_SHARE
from paceline_operator.tuning.model import Memory
from tests.replay.adversity import DENSE, GSM8K, SHAREGPT, Trial, nothing
from tests.replay.test_adversarial import tenant
from tests.unit.simulated import POOR, SimulatedEngine, fixed

NAMES = ["pod-0", "pod-1"]
names = st.sampled_from(NAMES)
LOADS = [1, 8, 31, 32, 96, 256]
TRAFFIC = {"gsm8k": GSM8K, "sharegpt": SHAREGPT, "poor": fixed(POOR), "nothing": nothing}
LONGEST_PASSES = 6
"""Of one event. All of a run together are shorter than what is waited for afterwards."""


class Adversity(RuleBasedStateMachine):
    """Two engines."""

    def __init__(self) -> None:
        super().__init__()
        self.trial = Trial.of(count=2)
        self.restarts = 0

    @initialize(seed=st.integers(0, 100), noise=st.sampled_from([0.02, 0.05, 0.2]))
    def begin(self, seed: int, noise: float) -> None:
        self.trial = Trial.of(seed=seed, noise=noise, count=2)
        self.trial.run(LONGEST_PASSES, 16)

    def engine(self, name: str) -> SimulatedEngine:
        return self.trial.loop.engines[name]

    @rule(passes=st.integers(1, LONGEST_PASSES), load=st.sampled_from(LOADS))
    def steady(self, passes: int, load: int) -> None:
        self.trial.run(passes, load)

    @rule(one=st.sampled_from(LOADS), other=st.sampled_from(LOADS))
    def alternating(self, one: int, other: int) -> None:
        self.trial.run(LONGEST_PASSES, lambda number: (one, other)[number % 2])

    @rule(traffic=st.sampled_from(list(TRAFFIC)))
    def other_traffic(self, traffic: str) -> None:
        self.trial.set(survival=TRAFFIC[traffic])

    @rule(tokens=st.sampled_from([16, 64, 512, 10**6]))
    def cliff(self, tokens: int) -> None:
        self.trial.set(cost=tenant(DENSE, tokens))

    @rule(noise=st.sampled_from([0.02, 0.2]))
    def noise(self, noise: float) -> None:
        for engine in self.trial.loop.engines.values():
            engine.noise = noise

    @rule(name=names, slow=st.sampled_from([1.0, 3.0]))
    def slow(self, name: str, slow: float) -> None:
        self.engine(name).slow = slow

    @rule(name=names)
    def counters_reset(self, name: str) -> None:
        self.restarts += 1
        self.engine(name).restart(f"boot-{self.restarts}")

    @rule()
    def operator_restarts(self) -> None:
        self.trial.loop.memory = Memory()

    @rule(seconds=st.sampled_from([-1e7, -600.0, -5.0, 5.0, 600.0, 1e7]))
    def clock_jumps(self, seconds: float) -> None:
        self.trial.loop.now += seconds

    @invariant()
    def every_answer_is_whole(self) -> None:
        steps = self.trial.loop.steps
        if not steps:
            return
        last = steps[-1]
        assert set(last.table) <= set(self.trial.loop.settings.ladder)
        assert len(last.table) == self.trial.loop.settings.max_num_seqs + 1
        assert last.errors == ()
        probe = last.policy.probe if last.policy else None
        if probe is not None:
            assert (probe.settle_steps + probe.burst_steps) / probe.interval_steps <= MAX_PROBE_SHARE
        assert all(a.generation <= b.generation for a, b in pairwise(steps[-LONGEST_PASSES - 1 :]))

    def teardown(self) -> None:
        self.trial.set(cost=DENSE, survival=GSM8K)
        for engine in self.trial.loop.engines.values():
            engine.noise, engine.slow = 0.02, 1.0
        for load in (16, 64):
            last = self.trial.run(90, load)[-12:]
            assert sum(each.ratio for each in last) / len(last) > 0.95, load


Adversity.TestCase.settings = settings(deadline=None, max_examples=5, stateful_step_count=12)
TestAdversity = Adversity.TestCase
