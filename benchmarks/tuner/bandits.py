"""Two bandits on measured goodput: UCB after BanditSpec, and the epsilon-greedy tuner of ik_llama.cpp.

Both know nothing of cost and acceptance and have no memory of how ks resemble each other; each load bucket is a bandit
of its own (their systems serve one load at a time). The arm is drawn anew every period, in their systems every step.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from benchmarks.tuner.rival import CUSTOMARY_K, Observed, Rival, nearest, observed
from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.replay.contest import Setup
from paceline_operator.tuning.load import buckets_of


@dataclass
class Arm:
    """One k at one load: mean goodput over its pulls; a step is a pull."""

    pulls: int = 0
    mean: float = 0.0

    def add(self, seen: Observed) -> None:
        """`seen.steps` more pulls."""
        self.pulls += seen.steps
        self.mean += (seen.goodput - self.mean) * seen.steps / self.pulls


@dataclass
class Bandit(Rival):
    """Arms by load bucket, and the arm in force at each."""

    rng: np.random.Generator = field(default_factory=np.random.default_rng)
    arms: dict[int, dict[int, Arm]] = field(default_factory=dict)
    chosen: dict[int, int] = field(default_factory=dict)

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        """Learn what the period brought, and draw the next arm of each load that was there."""
        seen = observed(samples)
        for load in sorted({load for load, _ in seen}):
            arms = self.arms.setdefault(load, {k: Arm() for k in self.setup.ladder})
            news = {k: found for (at, k), found in seen.items() if at == load and found.steps}
            for k, found in news.items():
                arms[k].add(found)
            self.chosen[load] = self.choose(load, arms, news)
        table: list[int] = []
        for load, end in pairwise((*buckets_of(self.setup.max_num_seqs), self.setup.max_num_seqs + 1)):
            table += [self.chosen.get(load, self.boot[load])] * (end - load)
        return self.push([table[0], *table])

    @abstractmethod
    def choose(self, load: int, arms: Mapping[int, Arm], news: Mapping[int, Observed]) -> int:
        """The k of the next period at `load`."""


def _start(setup: Setup) -> tuple[int, ...]:
    return (nearest(setup.ladder, CUSTOMARY_K),) * (setup.max_num_seqs + 1)


EXPLORATION = 6.0


@dataclass
class Ucb(Bandit):
    """UCBSpec of BanditSpec (https://arxiv.org/abs/2505.15141): the largest mean + sqrt(6 ln t / n).

    Goodput is scaled by the best arm's so that rewards are of the order of one. The authors' code for throughput
    (github.com/sail-sg/BanditSpec, `ucb_length_spec_generate`) divides by the sum of all pulls, which explores nothing;
    here by the arm's own, as in the paper.
    """

    @classmethod
    def of(cls, setup: Setup, rng: np.random.Generator) -> Ucb:
        """Nothing pulled."""
        return cls(setup, _start(setup), rng=rng)

    def choose(self, load: int, arms: Mapping[int, Arm], news: Mapping[int, Observed]) -> int:
        """An arm not pulled yet, else the largest upper bound."""
        if fresh := [k for k, arm in arms.items() if not arm.pulls]:
            return fresh[0]
        best = max(arm.mean for arm in arms.values())
        total = sum(arm.pulls for arm in arms.values())
        bounds = {k: arm.mean / best + math.sqrt(EXPLORATION * math.log(total) / arm.pulls) for k, arm in arms.items()}
        return max(bounds, key=bounds.__getitem__)


EPSILON, QUARANTINE_RATIO, REPROBE_CALLS = 0.15, 0.90, 128
EMA_ALPHA, LOW_SHARE, LOW_CALLS, COOLDOWN_CALLS = 0.05, 0.30, 30, 50


@dataclass
class Trend:
    """Whether a load has become worse: ik_llama.cpp's detection of another task."""

    ema: float = 0.0
    low: int = 0
    cooldown: int = 0
    calls: int = 0
    turn: int = 0

    def worse(self, goodput: float) -> bool:
        """30 calls in a row at less than 0.7 of the average, whose own alpha is 0.05."""
        calm = self.cooldown > 0 or self.ema <= 0 or goodput >= self.ema * (1 - LOW_SHARE)
        self.low = 0 if calm else self.low + 1
        self.cooldown = max(0, self.cooldown - 1)
        self.ema += (EMA_ALPHA if self.ema > 0 else 1.0) * (goodput - self.ema)
        return self.low >= LOW_CALLS


@dataclass
class EpsilonGreedy(Bandit):
    """ik_llama.cpp's `--spec-autotune` (common/spec-tuner.cpp; pull requests 1595 and 2112).

    The best mean, but with 0.15 any arm. As there for drafters that may be left out: an arm below 0.90 of k=0 is
    quarantined, and one call in 128 tries a quarantined arm. Means never forget; a load that has become worse starts
    anew. A period is a call here.
    """

    trends: dict[int, Trend] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: Setup, rng: np.random.Generator) -> EpsilonGreedy:
        """Nothing pulled."""
        return cls(setup, _start(setup), rng=rng)

    def choose(self, load: int, arms: Mapping[int, Arm], news: Mapping[int, Observed]) -> int:
        """Draw."""
        trend = self.trends.setdefault(load, Trend())
        trend.calls += 1
        if trend.worse(next(iter(news.values())).goodput):
            self.trends[load] = Trend(cooldown=COOLDOWN_CALLS)
            for arm in arms.values():
                arm.pulls, arm.mean = 0, 0.0
        if fresh := [k for k, arm in arms.items() if not arm.pulls]:
            return fresh[0]
        off = arms[0].mean if 0 in arms else 0.0
        barred = [k for k, arm in arms.items() if k > 0 and arm.mean < QUARANTINE_RATIO * off]
        if barred and trend.calls % REPROBE_CALLS == 0:
            trend.turn += 1
            return barred[trend.turn % len(barred)]
        free = [k for k in arms if k not in barred]
        if self.rng.random() < EPSILON:
            return int(self.rng.choice(free))
        return max(free, key=lambda k: arms[k].mean)
