"""What a decode step costs: log seconds by (load bucket, k), one Gaussian belief over all cells.

Step cost is a staircase in tokens with a cliff where graphs end, so no curve is fitted: each measured cell follows its
own samples. Cells nobody measured take their value from neighbours through the prior covariance, and say so by their
variance. What all cells of a window share (a busy machine, a longer context) is noise common to them, and cancels when
two ks of one load are compared. (A Kalman filter on a Gaussian-process prior: Rasmussen and Williams 2006, chapter 2.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline_engine.protocol import CostCell
from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.timing import Timing, timings

Index: TypeAlias = npt.NDArray[np.intp]
Timings: TypeAlias = Mapping[int, Timing]

MIN_STEPS = 14.0
"""Two bursts, but for a step or two that prefill spoilt: below this a cell's cost is not its own. Half of it does where
the same k has it at another load: what that says of this one is in the belief, and one burst tells whether it holds."""
HALF_LIFE_SECONDS = 900.0
"""Of a load bucket's mean number of requests."""
FIRST_GUESS_SECONDS = 0.02
DRAFT_GUESS = 0.05
"""Cost of one more drafted token over that of a step: 0.03 to 0.09 measured on an H200 (dense 32B, 8B) with EAGLE."""
RIDGE_TOKENS = 300.0
"""Tokens in a step that double it: about 300 on an H200. A prior, far off on other machines, soon overruled."""
DRIFT_SHARED = 0.03**2 / 60
DRIFT_OWN = 0.003**2 / 60
"""Variance a second by which all cells together, and one cell alone, wander unseen."""
NOISE_BOUNDS = (0.005**2, 0.4**2)
SURPRISE = 4.0
"""Standard deviations beyond which a cell's window is doubted once, and believed the second time in a row."""
LOOSENED, LOOSENED_SECONDS = 0.1, 60.0
"""Standard deviation that every cell gets for itself, as a share of a common change of cost."""


@dataclass(frozen=True)
class Cost:
    """Belief about log step seconds. A cell's index is load position * len(ladder) + ladder position."""

    loads: tuple[int, ...]
    ladder: tuple[int, ...]
    mean: Array
    covariance: Array
    steps: Array
    """Steps of each cell, ever. How old they are is in the covariance, which grows with time."""
    seen: Array
    """When each cell was measured last, in the caller's seconds; -inf = never."""
    streak: Array
    """Signed count of windows in a row that surprised a cell."""
    requests: Array
    """Per load: (sum of request-steps, sum of steps), forgotten."""
    noise: float = 0.05**2
    """Variance of a window's log mean beyond the scatter of its steps."""
    shared: float = 0.02**2
    """The part of it that the cells of one window have in common."""
    speeds: Mapping[str, float] = field(default_factory=dict)
    """Engine -> log of its step time over the others', where there are several."""
    changed: float = -math.inf
    """When cost changed for good last, in the caller's seconds: what was seen before is to be seen again."""


def empty(loads: tuple[int, ...], ladder: tuple[int, ...]) -> Cost:
    """The prior: a roofline guess of unknown level, and how cells resemble each other."""
    load = np.repeat(np.asarray(loads, float), len(ladder))
    k = np.tile(np.asarray(ladder, float), len(loads))
    doublings = np.log2(load)
    distance = np.abs(doublings[:, None] - doublings[None, :]) / 1.5 + np.abs(k[:, None] - k[None, :]) / 3.0
    covariance = (
        9.0
        + 0.3**2 * np.outer(doublings, doublings)
        + 0.1**2 * np.outer(k, k)
        + 0.03**2 * np.outer(doublings * k, doublings * k)
        + 0.08**2 * np.exp(-distance)
        + 0.03**2 * np.eye(load.size)
    )
    mean = math.log(FIRST_GUESS_SECONDS) + np.log1p(DRAFT_GUESS * k + load * (k + 1) / RIDGE_TOKENS)
    return Cost(
        loads=loads,
        ladder=ladder,
        mean=mean,
        covariance=covariance,
        steps=np.zeros(load.size),
        seen=np.full(load.size, -math.inf),
        streak=np.zeros(load.size),
        requests=np.zeros((len(loads), 2)),
    )


def learn(past: Cost, windows: Mapping[str, Iterable[CostCell]], seconds: float, now: float) -> Cost:
    """`past`, `seconds` older, corrected by what each engine (by name) measured since."""
    keep = 0.5 ** (seconds / HALF_LIFE_SECONDS)
    covariance = past.covariance + DRIFT_SHARED * seconds
    covariance[np.diag_indices_from(covariance)] += DRIFT_OWN * seconds
    aged = replace(past, covariance=covariance, requests=past.requests * keep)
    means = {name: cells for name, window in windows.items() if (cells := timings(window, past.loads, past.ladder))}
    if not means:
        return aged
    speeds = _speeds(aged, means)
    index, values, scatter, steps = _merged(aged, means, speeds)
    requests = aged.requests.copy()
    for cells in means.values():
        for cell, timing in cells.items():
            requests[cell // len(past.ladder)] += (timing.request_steps, timing.steps)
    corrected = _corrected(replace(aged, speeds=speeds, requests=requests), index, values, scatter, now)
    counted, seen = corrected.steps.copy(), corrected.seen.copy()
    counted[index] += steps
    seen[index] = now
    return replace(corrected, steps=counted, seen=seen)


def loosened(cost: Cost, share: float, now: float) -> Cost:
    """Every cell less sure by a standard deviation of `share` of itself, and to be measured again.

    Once a minute at most: a change of traffic may be noticed in several windows, but it is one.
    """
    if now - cost.changed < LOOSENED_SECONDS:
        return cost
    covariance = cost.covariance.copy()
    covariance[np.diag_indices_from(covariance)] += share**2
    return replace(cost, covariance=covariance, changed=now)


def measured(cost: Cost) -> tuple[int, ...]:
    """Load buckets that were seen at any k."""
    return tuple(load for load, steps in zip(cost.loads, cost.requests[:, 1].tolist(), strict=True) if steps > 0)


def is_own(cost: Cost, load: int) -> npt.NDArray[np.bool_]:
    """For each ladder k, whether its cost at `load` rests on enough steps of its own."""
    steps = cost.steps.reshape(len(cost.loads), len(cost.ladder))
    row = cost.loads.index(load)
    known = (steps >= MIN_STEPS).any(axis=0)
    own: npt.NDArray[np.bool_] = steps[row] >= np.where(known, MIN_STEPS / 2, MIN_STEPS)
    return own


def _speeds(cost: Cost, measured: Mapping[str, Timings]) -> dict[str, float]:
    """Each engine's own log speed, so that a slow pod is not taken for the cost of the k it happened to run."""
    if len(measured) < 2 and len(cost.speeds) < 2:
        return {}
    speeds = dict(cost.speeds)
    for name, cells in measured.items():
        gaps = [timing.log_mean - cost.mean[cell] for cell, timing in cells.items()]
        weights = [math.sqrt(timing.steps) for timing in cells.values()]
        gap = float(np.average(gaps, weights=weights))
        speeds[name] = speeds[name] + 0.3 * (gap - speeds[name]) if name in speeds else gap
    middle = float(np.median([speeds[name] for name in measured]))
    return {name: speed - (middle if name in measured else 0.0) for name, speed in speeds.items()}


def _merged(
    cost: Cost, measured: Mapping[str, Timings], speeds: Mapping[str, float]
) -> tuple[Index, Array, Array, Array]:
    gathered: dict[int, list[tuple[float, float, int]]] = {}
    for name, cells in measured.items():
        for cell, timing in cells.items():
            found = (timing.log_mean - speeds.get(name, 0.0), timing.variance, timing.steps)
            gathered.setdefault(cell, []).append(found)
    index = np.fromiter(gathered, dtype=np.intp)
    values, variances, counts = np.empty(index.size), np.empty(index.size), np.empty(index.size)
    for position, parts in enumerate(gathered.values()):
        weights = [1.0 / (cost.noise - cost.shared + scatter) for _, scatter, _ in parts]
        total = sum(weights)
        values[position] = sum(w * log for w, (log, _, _) in zip(weights, parts, strict=True)) / total
        variances[position] = 1.0 / total
        counts[position] = sum(steps for _, _, steps in parts)
    return index, values, variances, counts


def _corrected(cost: Cost, index: Index, values: Array, variances: Array, now: float) -> Cost:
    covariance = cost.covariance
    surprise = values - cost.mean[index]
    own = cost.steps[index] >= MIN_STEPS
    noise = np.diag(variances) + cost.shared
    expected = covariance[index, index] + variances + cost.shared
    strange = surprise**2 > SURPRISE**2 * expected
    streak = cost.streak.copy()
    streak[index] = np.where(strange, np.where(streak[index] * surprise > 0, streak[index], 0) + np.sign(surprise), 0)
    doubted = strange & own & (np.abs(streak[index]) < 2)
    believed = strange & ~doubted
    noise[np.diag_indices_from(noise)] += np.where(doubted, surprise**2 / SURPRISE**2, 0.0)
    changed = cost.changed
    if believed.any():
        together, alone = believed & own, believed
        covariance = covariance.copy()
        if together.sum() * 2 > own.sum() and abs(np.sign(surprise[together]).sum()) == together.sum():
            # Most of what was measured moved alike: the machine did, not these ks. Only bursts can tell them apart.
            level = float(np.median(surprise[together]))
            covariance += level**2
            covariance[np.diag_indices_from(covariance)] += (LOOSENED * level) ** 2
            alone = believed & ~own
        covariance[index[alone], index[alone]] += surprise[alone] ** 2
        if together.any():
            changed = now
        streak[index[believed]] = 0
    columns = covariance[:, index]
    gain = np.linalg.solve(columns[index] + noise, columns.T)
    mean = cost.mean + surprise @ gain
    updated = covariance - columns @ gain
    calm = own & ~strange
    total, shared = cost.noise, cost.shared
    if calm.any():
        excess = surprise[calm] ** 2 - covariance[index[calm], index[calm]] - variances[calm]
        excess += cost.noise - cost.shared
        total += 0.05 * (float(excess.mean()) - total)
        if calm.sum() > 1:
            product = np.outer(surprise[calm], surprise[calm]) - covariance[np.ix_(index[calm], index[calm])]
            count = int(calm.sum())
            common = (float(product.sum()) - float(np.trace(product))) / (count * (count - 1))
            shared += 0.05 * (common - shared)
    noise_now = min(NOISE_BOUNDS[1], max(NOISE_BOUNDS[0], total))
    return replace(
        cost,
        mean=mean,
        covariance=(updated + updated.T) / 2,
        streak=streak,
        noise=noise_now,
        shared=min(0.9 * noise_now, max(0.0, shared)),
        changed=changed,
    )
