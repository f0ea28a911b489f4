"""What a simulated engine goes through: numbers of a file as the truth, loads, prompts, noise; and what came of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline_operator.replay.contest import Setup

WINDOW_SECONDS = 5.0


@dataclass(frozen=True)
class Arm:
    """The truth about one k at one load."""

    step_seconds: float
    length: float | None = None
    """Tokens a request gets per step; None = unknown: then step_seconds is the time of one token of each request, and
    the engine reports no acceptance."""
    survival: tuple[float, ...] = ()
    """Share of drafts accepted up to position 1..k; where all requests draft, they sum to length - 1."""
    fired: float = 1.0
    """Share of requests that have a draft at all."""

    def rate(self, load: int) -> float:
        """Tokens per second at `load` requests."""
        return load * (self.length or 1.0) / self.step_seconds

    @cached_property
    def fates(self) -> npt.NDArray[np.float64]:
        """Chance of exactly 0..k accepted drafts."""
        ladder = np.minimum.accumulate(np.clip([1.0, *self.survival, 0.0], 0.0, 1.0))
        return -np.diff(ladder)


@dataclass(frozen=True)
class Prompts:
    """What new requests bring in a closed loop: each begins with a prompt, computed in one step, and ends with its
    reply, whereupon another comes."""

    tokens: int
    """Of a prompt."""
    reply_tokens: float
    """Of a reply, on average."""
    step_seconds: float
    """That a step takes longer for any prompts at all,"""
    token_seconds: float
    """and for each of their tokens."""
    least_seconds: float = 0.0
    """Of a step with any prompts, before these are added: what it takes to launch it without a whole graph, behind
    which the step of a large k hides."""

    def added(self, bare: float, begun: int) -> float:
        """Seconds to a step of `bare` seconds in which `begun` requests begin."""
        return self._once(bare) * (begun > 0) + self.token_seconds * self.tokens * begun

    def seconds(self, bare: float, arrivals: float) -> float:
        """The same on average, where `arrivals` come in a step on average."""
        return self._once(bare) * -math.expm1(-arrivals) + self.token_seconds * self.tokens * arrivals

    def _once(self, bare: float) -> float:
        return self.step_seconds + max(0.0, self.least_seconds - bare)


@dataclass(frozen=True)
class Visit:
    """A stretch of one load with one truth."""

    load: int
    seconds: float
    arms: Mapping[int, Arm]
    """By k; every k of the ladder."""
    workload: str = ""
    prompts: Prompts | None = None
    """None: every step decodes only."""

    def arrivals(self, k: int) -> float:
        """Requests that begin in a step at `k`, on average."""
        return self.load * (self.arms[k].length or 1.0) / self.prompts.reply_tokens if self.prompts else 0.0

    def added(self, k: int) -> float:
        """Seconds that prompts add to a step at `k`, on average."""
        return self.prompts.seconds(self.arms[k].step_seconds, self.arrivals(k)) if self.prompts else 0.0

    @cached_property
    def rates(self) -> Mapping[int, float]:
        """True tokens per second by k."""
        return {k: arm.rate(self.load) / (1 + self.added(k) / arm.step_seconds) for k, arm in self.arms.items()}


@dataclass(frozen=True)
class Scenario:
    """One run: what the engine goes through, and how noisy it is."""

    setup: Setup
    visits: tuple[Visit, ...]
    noise: float
    """Standard deviation of the log of the mean of each window and of each burst."""


@dataclass(frozen=True)
class Window:
    """What happened in one window of the engine."""

    start: float
    visit: int
    table_k: int
    """k of the table; the rest of the time went to bursts."""
    seconds: Mapping[int, float]
    """Time by k, bursts included."""


Run: TypeAlias = tuple[Window, ...]
