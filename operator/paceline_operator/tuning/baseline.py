"""The baselines: goodput in force over that of k=0 in the same engines, and over that of an engine without a drafter.

Two ratios, never mixed: k=0 in a speculative engine still pays for a draft pass. Both are means of paired windows (both
sides measured within one pass, so that what slows the machine cancels), and are looked at after every one of them: so
their intervals are confidence sequences, valid at all times at once. They invert the anytime-valid t-test for a mean of
unknown variance: the Bayes factor with a normal prior on the effect size is a test martingale under every variance
(Lai, "On confidence sequences", Annals of Statistics 1976; Perez-Ortiz, Lardy, de Heide and Gruenwald, "E-statistics,
group invariance and anytime-valid testing", 2022; Wang and Ramdas, "Anytime-valid t-tests and confidence sequences for
Gaussian means with unknown variance", 2023). A sequence starts anew when traffic, cost or the k in force changes: its
mean would be of something that is gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_operator.tuning.model import Interval

ERROR = 0.05
"""Chance that the interval misses the mean at any time."""
EFFECT_VARIANCE = 4.0
"""Of the prior on the effect size (mean over standard deviation): finite from four windows on, and hardly wider than
with less after thirty."""
LEAST_VARIANCE = 1e-6
"""Of a window's log ratio: clocks are no better."""
MIN_WINDOWS = 4
THIN_WINDOWS = 6
"""Below this a load's baseline is thin, and k=0 takes its turn in the bursts."""
LARGEST_LOG = 50.0


@dataclass(frozen=True)
class Running:
    """Paired windows of one load."""

    k: int
    count: int = 0
    total: float = 0.0
    squares: float = 0.0


@dataclass(frozen=True)
class Baseline:
    """Running comparisons by load bucket."""

    to_k0: Mapping[int, Running] = field(default_factory=dict)
    to_no_drafter: Mapping[int, Running] = field(default_factory=dict)


def added(running: Mapping[int, Running], load: int, k: int, log_ratio: float) -> dict[int, Running]:
    """`running` with one more paired window of `load` at `k` in force."""
    past = running.get(load)
    if past is None or past.k != k:
        past = Running(k)
    log_ratio = min(max(log_ratio, -LARGEST_LOG), LARGEST_LOG)
    new = Running(k, past.count + 1, past.total + log_ratio, past.squares + log_ratio * log_ratio)
    return {**running, load: new}


def is_thin(running: Mapping[int, Running], load: int, k: int) -> bool:
    """Whether `load` has few paired windows at `k` in force."""
    found = running.get(load)
    return k > 0 and (found is None or found.k != k or found.count < THIN_WINDOWS)


def bounds(running: Running | None, error: float = ERROR) -> tuple[float, float] | None:
    """Mean log ratio and half-width of its interval, valid at all times with chance 1 - `error`; None = too few."""
    if running is None or running.count < MIN_WINDOWS:
        return None
    count = running.count
    mean = running.total / count
    spread = max(0.0, running.squares - count * mean * mean) + count * LEAST_VARIANCE
    prior = 1 + count * EFFECT_VARIANCE
    limit = (prior / error**2) ** (1 / count)
    if limit >= prior:
        return None
    return mean, math.sqrt(spread / count * (limit - 1) / (1 - limit / prior))


def ratio(
    running: Mapping[int, Running], table: tuple[int, ...], weights: Mapping[int, float], one: bool = False
) -> Interval | None:
    """Mean ratio over the loads seen lately (`weights`: load bucket -> time) of which it is known.

    `table[load]` is the k in force: sequences of another k are left out. `one`: at k=0 in force the ratio is 1.
    """
    there = {load: run for load, run in running.items() if weights.get(load, 0.0) > 0 and table[load] == run.k}
    known = {load: found for load, run in there.items() if (found := bounds(run, ERROR / len(there)))}
    if one:
        known |= {load: (0.0, 0.0) for load, weight in weights.items() if weight > 0 and table[load] == 0}
    total = sum(weights[load] for load in known)
    if total <= 0:
        return None
    mean = sum(weights[load] * found[0] for load, found in known.items()) / total
    half = sum(weights[load] * found[1] for load, found in known.items()) / total
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
