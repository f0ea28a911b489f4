"""Whatever engines do, in whatever order: no exception, a whole table, generations that only grow, a bounded effort."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from paceline_engine.protocol import MAX_PROBE_SHARE, Policy
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status import ServingStatus
from paceline_operator.tuning.decide import settings_of
from paceline_operator.tuning.explain import status_fields
from paceline_operator.tuning.model import Engine, Memory, Step
from tests.unit.simulated import POOR, Loop, SimulatedEngine, fixed, grid, spec, workload

DENSE = grid("h200_dense32b_eagle.csv")
TRAFFIC = {"gsm8k": workload("gsm8k"), "poor": fixed(POOR), "none": fixed((0.0,) * 7)}
MODES = {
    "Auto": {},
    "Observe": {"mode": "Observe", "probing": {"mode": "Enabled"}},
    "Manual": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 2}]},
}
FAILURES = [Reason.POD_NOT_ANSWERING, Reason.PLUGIN_ABSENT, Reason.TOKEN_REFUSED, Reason.MALFORMED_ANSWER]
NAMES = ["pod-0", "pod-1"]
names = st.sampled_from(NAMES)


class Tuner(RuleBasedStateMachine):
    """Two engines that restart, fail, idle, slow down and are pushed to by others; an operator that restarts."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = Loop.of(DENSE, TRAFFIC["gsm8k"], count=2)
        self.failing: dict[str, Reason] = {}
        self.untold: set[str] = set()
        self.ttft: float | None = None
        self.context = 0
        self.status = ServingStatus()
        self.last: Step | None = None
        self.generations = [0]

    @initialize(
        seed=st.integers(0, 1000), noise=st.sampled_from([0.02, 0.2, 1.0]), max_num_seqs=st.sampled_from([8, 64, 256])
    )
    def begin(self, seed: int, noise: float, max_num_seqs: int) -> None:
        self.loop = Loop.of(
            DENSE, TRAFFIC["gsm8k"], seed=seed, noise=noise, count=2, fields={"engine": {"maxNumSeqs": max_num_seqs}}
        )

    @property
    def most(self) -> int:
        return self.loop.settings.max_num_seqs

    def engine(self, name: str) -> SimulatedEngine:
        return self.loop.engines[name]

    def observed(self, name: str) -> Engine:
        if reason := self.failing.get(name):
            return Engine(name, failure=reason, failure_message="as told")
        engine = self.engine(name)
        answer = engine.answer(self.loop.interval, name)
        assert answer.samples
        known = self.loop.memory.cursors.get(name, "")
        if not known.startswith(f"{engine.boot_id}:"):
            samples = engine.since_boot(answer.samples)
        else:
            samples = answer.samples.model_copy(update={"reset": False})
        cells = tuple(cell.model_copy(update={"context": self.context}) for cell in samples.cells)
        told = () if name in self.untold else samples.acceptance
        samples = samples.model_copy(update={"cells": cells, "acceptance": told})
        return Engine(name, answer.state, samples, ttft_p95_seconds=self.ttft)

    @rule(passes=st.integers(1, 4), loads=st.lists(st.integers(0, 256), min_size=2, max_size=2))
    def passes(self, passes: int, loads: list[int]) -> None:
        for _ in range(passes):
            for name, load in zip(NAMES, loads, strict=True):
                self.engine(name).requests = min(load, self.most)
            self.loop.now += self.loop.interval
            before = self.loop.memory
            answers = [self.observed(name) for name in NAMES]
            self.last = self.loop.take(answers)
            self.generations.append(self.last.generation)
            told = status_fields(self.last, self.status, "2026-01-01T00:00:00Z")
            self.status = self.status.model_copy(update={k: v for k, v in told.items() if k != "conditions"})
            ServingStatus.model_validate(self.status.model_dump())
            assert self.loop.memory is not before

    @rule(name=names, reason=st.sampled_from(FAILURES))
    def fail(self, name: str, reason: Reason) -> None:
        self.failing[name] = reason

    @rule(name=names)
    def recover(self, name: str) -> None:
        self.failing.pop(name, None)

    @rule(name=names, number=st.integers(0, 10**6))
    def restart_engine(self, name: str, number: int) -> None:
        self.engine(name).restart(f"boot-{number}")

    @rule()
    def restart_operator(self) -> None:
        self.loop.memory = Memory()

    @rule(name=names, traffic=st.sampled_from(list(TRAFFIC)), slow=st.sampled_from([1.0, 3.0]))
    def change(self, name: str, traffic: str, slow: float) -> None:
        self.engine(name).survival, self.engine(name).slow = TRAFFIC[traffic], slow

    @rule(seconds=st.floats(-1e6, 1e6))
    def jump(self, seconds: float) -> None:
        self.loop.now += seconds

    @rule(name=names, k=st.integers(0, 5), above=st.integers(-3, 3))
    def foreign_push(self, name: str, k: int, above: int) -> None:
        policy = Policy(generation=max(1, self.loop.known + above), table=(k,) * (self.most + 1))
        self.engine(name).policy = policy

    @rule(mode=st.sampled_from(list(MODES)))
    def change_mode(self, mode: str) -> None:
        self.loop.settings = settings_of(spec(tuning=MODES[mode], engine={"maxNumSeqs": self.most}))

    @rule(ladder=st.sampled_from([[5, 3, 2, 1, 0], [5, 1, 0], [4, 2, 0]]))
    def change_ladder(self, ladder: list[int]) -> None:
        self.loop.settings = settings_of(spec(tuning={"ladder": ladder}, engine={"maxNumSeqs": self.most}))

    @rule(name=names, length=st.sampled_from([None, 1.0, 1.005, 2.0]))
    def boot_with_adaptive_verification(self, name: str, length: float | None) -> None:
        """None: without it. A length of 1 starves."""
        self.engine(name).adaptive = None if length is None else lambda n, k: (0.9 * DENSE(n, k), min(length, k + 1))

    @rule(name=names)
    def tell_of_drafts_or_not(self, name: str) -> None:
        self.untold ^= {name}

    @rule(name=names)
    def be_without_a_drafter_or_not(self, name: str) -> None:
        engine = self.engine(name)
        engine.max_k = 0 if engine.max_k is None else None

    @rule(seconds=st.none() | st.floats(0, 100))
    def time_to_first_token(self, seconds: float | None) -> None:
        self.ttft = seconds
        self.loop.settings = replace(self.loop.settings, ttft_limit_seconds=1.0)

    @rule(context=st.sampled_from([0, 8192, 32768]))
    def contexts(self, context: int) -> None:
        self.context = context

    @rule(name=names)
    def counters_reset(self, name: str) -> None:
        """A window that claims to start before the last one ended."""
        self.engine(name).uptime = 0.0

    @rule(name=names)
    def refuse_live_k(self, name: str) -> None:
        self.engine(name).live = not self.engine(name).live

    @invariant()
    def the_answer_holds_together(self) -> None:
        step, chosen = self.last, self.loop.settings
        if step is None:
            return
        assert len(step.table) == self.most + 1
        assert all(0 <= k <= 5 for k in step.table)
        assert (step.policy is None) == (step.push_to == ())
        if step.policy is not None:
            assert step.policy.table == step.table
            assert step.policy.generation == step.generation
            probe = step.policy.probe
            if probe is not None:
                assert set(probe.ks) <= set(range(6))
                assert (probe.settle_steps + probe.burst_steps) / probe.interval_steps <= MAX_PROBE_SHARE
        assert set(step.acknowledged).isdisjoint(step.push_to)
        assert step.holding == (step.metrics_reason is not Reason.METRICS_FOUND)
        if step.holding:
            assert step.policy is None
            assert not step.decisions
        for view in step.buckets:
            for candidate in view.candidates:
                assert 0 < candidate.goodput.low <= candidate.goodput.value <= candidate.goodput.high < np.inf
                assert 1 <= candidate.acceptance_length.value <= candidate.k + 1
        verify = step.policy.adaptive_verification if step.policy else None
        assert verify is None or verify.mode is step.verification
        for decision in step.decisions:
            assert decision.from_k != decision.to_k or decision.reason is Reason.ADAPTIVE_VERIFICATION
        for ratio in (step.ratio_to_k0, step.ratio_to_no_drafter):
            assert ratio is None or 0 <= ratio.low <= ratio.value <= ratio.high
        assert 0 <= step.exploration.step_share <= 1
        assert sum(step.contexts.values()) == pytest.approx(1)
        assert step.errors == ()
        assert chosen.max_num_seqs == self.most

    @invariant()
    def what_is_pushed_only_grows(self) -> None:
        pushed = [step.generation for step in self.loop.steps if step.policy is not None]
        assert all(a <= b for a, b in pairwise(pushed))

    @invariant()
    def a_table_falls_unless_it_was_measured_not_to_or_found(self) -> None:
        step = self.last
        if step is None or step.reason is Reason.MANUAL or self.loop.known:
            return
        assert all(a >= b for a, b in pairwise(step.table[1:]))


Tuner.TestCase.settings = settings(deadline=None, max_examples=15, stateful_step_count=20)
TestTuner = Tuner.TestCase
