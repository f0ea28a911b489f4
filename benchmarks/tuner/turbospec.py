"""TurboSpec (formerly SmartSpec, https://arxiv.org/abs/2406.14066): the k of the best predicted goodput.

Goodput = (1 - a**(k + 1)) / (1 - a) tokens a request over the step time, where a is one acceptance rate for all
positions (a moving average) and the step time is linear (fixed, batched tokens, requests, drafting), fitted by least
squares to a profile made before serving. Constants of the authors' AutoTuner for vLLM: a decision every 200 steps, the
last of which drafts the most; the mean of the last 10,000 steps; 0.8 before the first. There the search stops at the
first k that is no better than the one before; the paper takes the best of all, as here.

What it is given and the tuner is not: the profile, noisy but free, of every (load, k) that will be. Context length does
not vary in the simulated engine, so the term of KV tokens is part of the fixed one. The one step in 200 that drafts the
most is a burst of nine steps in 1,800. Without acceptance there is no a, and the start stays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from benchmarks.tuner.rival import Rival
from paceline_engine.protocol import Policy, Probe, Samples, State
from paceline_operator.replay.contest import Setup

UPDATE_STEPS, WINDOW_STEPS, START_ACCEPTANCE = 200, 10_000, 0.8
Array = npt.NDArray[np.float64]


def features(load: int, k: int) -> list[float]:
    """Of the linear step time."""
    return [1.0, float(load), float(load * (k + 1)), float(k), float(k > 0)]


@dataclass
class TurboSpec(Rival):
    """The fitted line and the moving average."""

    seconds: Array = field(default_factory=lambda: np.ones((1, 1)))
    """Predicted step time by requests (rows) and ladder k."""
    steps: float = 0.0
    accepted: float = 0.0
    """Sum over the window of each step's chance that a draft is accepted where those before it were: what the formula
    means by a. (The share of all drafts, which engines report, is smaller and predicts fewer tokens than there are.)"""
    since: float = 0.0

    @classmethod
    def of(cls, setup: Setup, profile: Mapping[tuple[int, int], float]) -> TurboSpec:
        """`profile`: (load, k) -> measured step seconds."""
        weights = np.linalg.lstsq(
            np.asarray([features(load, k) for load, k in profile]), np.asarray(list(profile.values())), rcond=None
        )[0]
        grid = np.asarray([[features(load, k) for k in setup.ladder] for load in range(setup.max_num_seqs + 1)])
        rival = cls(setup, (), seconds=np.maximum(grid @ weights, 1e-6))
        rival.boot = rival.dense()
        return rival

    def dense(self) -> tuple[int, ...]:
        """The best predicted k at every number of requests."""
        rate = min(self.accepted / self.steps if self.steps else START_ACCEPTANCE, 0.999)
        ks = np.asarray(self.setup.ladder)
        tokens = (1 - rate ** (ks + 1.0)) / (1 - rate)
        return tuple(ks[np.argmax(tokens / self.seconds, axis=1)].tolist())

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        """Move the average; decide again where 200 steps are over."""
        for cell in samples.acceptance:
            steps = cell.request_steps / max(1, cell.load)
            self.since += steps
            if cell.drafts and cell.k:
                judged = cell.drafts + sum(cell.accepted[:-1])
                share = sum(cell.accepted) / judged
                keep = max(0.0, 1.0 - steps / WINDOW_STEPS) if self.steps + steps > WINDOW_STEPS else 1.0
                self.accepted, self.steps = self.accepted * keep + share * steps, self.steps * keep + steps
        if self.since < UPDATE_STEPS or not self.steps:
            return None
        self.since = 0.0
        most = Probe(ks=(self.setup.ladder[0],), settle_steps=1, burst_steps=8, interval_steps=9 * UPDATE_STEPS)
        return self.push(self.dense(), most if self.setup.ladder[0] > 0 else None)
