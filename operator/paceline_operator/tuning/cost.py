"""What a decode step costs: log seconds by (load bucket, k), one Gaussian belief over all cells.

Step cost is a staircase in tokens with a cliff where graphs end, so no curve is fitted: each measured cell follows its
own samples. Cells nobody measured take their value from neighbours through the prior covariance, and say so by their
variance. What all cells of a window share (a busy machine) is noise common to them, and cancels when two ks of one load
are compared. Contexts from 8k on add an effect of their own: a level, a slope in the doublings of the load and one in
k, learnt with the cells. (A Kalman filter on a Gaussian-process prior: Rasmussen and Williams 2006, chapter 2.)
Over 300 lines because the prior, the update and what is read from the belief are one piece of algebra.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline_engine.protocol import CostCell
from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.timing import CONTEXTS, Timing, timings
from paceline_operator.tuning.values import amended

Index: TypeAlias = npt.NDArray[np.intp]
Mask: TypeAlias = npt.NDArray[np.bool_]
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
SPEED_GAIN, SPEED_JUMP = 0.3, 0.2
"""Share of a window's surprise by which an engine's own log speed follows it; a larger surprise is followed at once, or
what is left of it would be taken for the cost of whatever k the engine happened to run."""
LOOSENED, LOOSENED_SECONDS = 0.1, 60.0
"""Standard deviation that every cell gets for itself, as a share of a common change of cost."""
EFFECTS = 3
"""Of a context bucket above the first: level, slope in doublings of load, slope in k."""
EFFECT_DEVIATIONS = (0.3, 0.1, 0.03)
"""Prior standard deviations of these: attention at 32k adds up to a third to a step, more so with more requests."""
CONTEXT_HALF_LIFE_SECONDS = 60.0
NEGLIGIBLE_SHARE = 0.01


@dataclass(frozen=True)
class Cost:
    """Belief about log step seconds. A cell's index is load position * len(ladder) + ladder position."""

    loads: tuple[int, ...]
    ladder: tuple[int, ...]
    mean: Array
    """Of every cell at a context below 8k; then the effects of each longer context bucket."""
    covariance: Array
    features: Array
    """Per cell: what the effects of a context are multiplied with."""
    steps: Array
    """Steps of each cell, ever. How old they are is in the covariance, which grows with time."""
    seen: Array
    """When each cell was measured last, in the caller's seconds; -inf = never."""
    streak: Array
    """Signed count of windows in a row that surprised a cell."""
    requests: Array
    """Per load: (sum of request-steps, sum of steps), forgotten."""
    contexts: Array
    """Decode seconds by context bucket, forgotten over a minute."""
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
    extra = (len(CONTEXTS) - 1) * EFFECTS
    covariance = np.zeros((load.size + extra, load.size + extra))
    covariance[: load.size, : load.size] = (
        9.0
        + 0.3**2 * np.outer(doublings, doublings)
        + 0.1**2 * np.outer(k, k)
        + 0.03**2 * np.outer(doublings * k, doublings * k)
        + 0.08**2 * np.exp(-distance)
        + 0.03**2 * np.eye(load.size)
    )
    effects = np.arange(load.size, load.size + extra)
    covariance[effects, effects] = np.tile(np.square(EFFECT_DEVIATIONS), len(CONTEXTS) - 1)
    mean = math.log(FIRST_GUESS_SECONDS) + np.log1p(DRAFT_GUESS * k + load * (k + 1) / RIDGE_TOKENS)
    return Cost(
        loads=loads,
        ladder=ladder,
        mean=np.concatenate([mean, np.zeros(extra)]),
        covariance=covariance,
        features=np.stack([np.ones(load.size), doublings, k], axis=1),
        steps=np.zeros(load.size),
        seen=np.full(load.size, -math.inf),
        streak=np.zeros(load.size),
        requests=np.zeros((len(loads), 2)),
        contexts=np.zeros(len(CONTEXTS)),
    )


def learn(
    past: Cost, windows: Mapping[str, Iterable[CostCell]], seconds: float, now: float, every_mode: bool = False
) -> Cost:
    """`past`, `seconds` older, corrected by what each engine (by name) measured since; `every_mode`: under adaptive
    verification too."""
    size = past.features.shape[0]
    covariance = past.covariance + seconds * _drift(size, past.mean.size)
    requests = past.requests * 0.5 ** (seconds / HALF_LIFE_SECONDS)
    aged = amended(past, covariance=covariance, requests=requests)
    found = {name: timings(window, past.loads, past.ladder, every_mode) for name, window in windows.items()}
    means = {name: cells for name, cells in found.items() if cells}
    if not means:
        return aged
    contexts = past.contexts * 0.5 ** (seconds / CONTEXT_HALF_LIFE_SECONDS)
    for cells in means.values():
        for cell, timing in cells.items():
            context, place = divmod(cell, size)
            requests[place // len(past.ladder)] += (timing.request_steps, timing.steps)
            contexts[context] += timing.steps * math.exp(timing.log_mean)
    speeds = _speeds(aged, means)
    seen = _merged(aged, means, speeds)
    return _corrected(aged, seen, speeds, contexts, now)


def contexts(cost: Cost) -> Array:
    """Share of decode time by context bucket, lately; all in the first where nothing was measured."""
    total = float(cost.contexts.sum())
    shares: Array = cost.contexts / total if total > 0 else np.eye(cost.contexts.size)[0]
    return shares


def effects(cost: Cost) -> Array | None:
    """Per cell, the weights of the context effects at the present mix of contexts; None where all is below 8k."""
    shares = contexts(cost)[1:]
    if shares.sum() < NEGLIGIBLE_SHARE:
        return None
    return np.concatenate([share * cost.features for share in shares], axis=1)


def loosened(cost: Cost, share: float, now: float) -> Cost:
    """Every cell less sure by a standard deviation of `share` of itself, and to be measured again.

    Once a minute at most: a change of traffic may be noticed in several windows, but it is one.
    """
    if now - cost.changed < LOOSENED_SECONDS:
        return cost
    covariance = cost.covariance.copy()
    cells = np.arange(cost.features.shape[0])
    covariance[cells, cells] += share**2
    return amended(cost, covariance=covariance, changed=now)


def measured(cost: Cost) -> tuple[int, ...]:
    """Load buckets that were seen at any k."""
    return tuple(load for load, steps in zip(cost.loads, cost.requests[:, 1].tolist(), strict=True) if steps > 0)


def own(cost: Cost) -> Mask:
    """By load and ladder position, whether a cost rests on enough steps of its own."""
    steps = cost.steps.reshape(len(cost.loads), len(cost.ladder))
    known = (steps >= MIN_STEPS).any(axis=0)
    found: Mask = steps >= np.where(known, MIN_STEPS / 2, MIN_STEPS)
    return found


@lru_cache(maxsize=64)
def _drift(cells: int, size: int) -> Array:
    """Covariance a second by which the belief wanders."""
    found = DRIFT_OWN * np.eye(size)
    found[:cells, :cells] += DRIFT_SHARED
    return found


def _speeds(cost: Cost, measured: Mapping[str, Timings]) -> dict[str, float]:
    """Each engine's own log speed, so that a slow pod is not taken for the cost of the k it happened to run."""
    if len(measured) < 2 and len(cost.speeds) < 2:
        return {}
    speeds = dict(cost.speeds)
    for name, cells in measured.items():
        gaps = [timing.log_mean - _expected(cost, cell) for cell, timing in cells.items()]
        weights = [math.sqrt(timing.steps) for timing in cells.values()]
        gap = float(np.average(gaps, weights=weights))
        off = gap - speeds.get(name, -math.inf)
        speeds[name] = gap if abs(off) > SPEED_JUMP else speeds[name] + SPEED_GAIN * off
    middle = float(np.median([speeds[name] for name in measured]))
    return {name: speed - (middle if name in measured else 0.0) for name, speed in speeds.items()}


def _expected(cost: Cost, cell: int) -> float:
    context, place = divmod(cell, cost.features.shape[0])
    expected = float(cost.mean[place])
    if context:
        start = cost.features.shape[0] + (context - 1) * EFFECTS
        expected += float(cost.features[place] @ cost.mean[start : start + EFFECTS])
    return expected


@dataclass(frozen=True)
class _Window:
    """The measured cells of a window, engines merged. `cell` is the place; `context` the position of its bucket."""

    cell: Index
    context: Index
    log: Array
    variance: Array
    steps: Array


def _merged(cost: Cost, measured: Mapping[str, Timings], speeds: Mapping[str, float]) -> _Window:
    gathered: dict[int, list[tuple[float, float, int]]] = {}
    for name, cells in measured.items():
        for cell, timing in cells.items():
            found = (timing.log_mean - speeds.get(name, 0.0), timing.variance, timing.steps)
            gathered.setdefault(cell, []).append(found)
    alone = cost.noise - cost.shared
    rows = []
    for parts in gathered.values():
        weights = [1.0 / (alone + scatter) for _, scatter, _ in parts]
        total = sum(weights)
        log = sum(w * log for w, (log, _, _) in zip(weights, parts, strict=True)) / total
        rows.append((log, 1.0 / total, sum(steps for _, _, steps in parts)))
    context, place = np.divmod(np.fromiter(gathered, dtype=np.intp), cost.features.shape[0])
    log, variance, steps = np.asarray(rows, float).T
    return _Window(place, context, log, variance, steps)


def _columns(cost: Cost, window: _Window) -> tuple[Array, Array]:
    """Covariance of the whole belief with what the window measured, and what was expected of that."""
    columns: Array = cost.covariance[:, window.cell]
    expected: Array = cost.mean[window.cell]
    for position in np.flatnonzero(window.context):
        start = cost.features.shape[0] + (window.context[position] - 1) * EFFECTS
        features = cost.features[window.cell[position]]
        columns[:, position] += cost.covariance[:, start : start + EFFECTS] @ features
        expected[position] += features @ cost.mean[start : start + EFFECTS]
    return columns, expected


def _observed(cost: Cost, window: _Window, columns: Array) -> Array:
    """Covariance between the measured cells, without noise."""
    found: Array = columns[window.cell]
    for position in np.flatnonzero(window.context):
        start = cost.features.shape[0] + (window.context[position] - 1) * EFFECTS
        found[position] += cost.features[window.cell[position]] @ columns[start : start + EFFECTS]
    return found


def _corrected(cost: Cost, window: _Window, speeds: Mapping[str, float], contexts: Array, now: float) -> Cost:
    """The update. `cost.covariance` is this pass's own copy and is written to."""
    index, covariance = window.cell, cost.covariance
    columns, expected = _columns(cost, window)
    between = _observed(cost, window, columns)
    surprise = window.log - expected
    own = cost.steps[index] >= MIN_STEPS
    noise = np.diag(window.variance) + cost.shared
    believed_variance = between.diagonal().copy()
    strange = surprise**2 > SURPRISE**2 * (believed_variance + window.variance + cost.shared)
    streak, changed = cost.streak, cost.changed
    if strange.any() or streak[index].any():
        streak = streak.copy()
        again = np.where(streak[index] * surprise > 0, streak[index], 0) + np.sign(surprise)
        streak[index] = np.where(strange, again, 0)
        doubted = strange & own & (np.abs(streak[index]) < 2)
        believed = strange & ~doubted
        noise.flat[:: index.size + 1] += np.where(doubted, surprise**2 / SURPRISE**2, 0.0)
        if believed.any():
            _widened(cost, window, surprise, believed, own)
            columns, _ = _columns(cost, window)
            between = _observed(cost, window, columns)
            changed = now if (believed & own).any() else changed
            streak[index[believed]] = 0
    root = np.linalg.inv(np.linalg.cholesky(between + noise))
    half = root @ columns.T
    mean = cost.mean + (root @ surprise) @ half
    covariance -= half.T @ half
    total, shared = _noise(cost, surprise, window.variance, between, own & ~strange)
    counted, seen = cost.steps.copy(), cost.seen.copy()
    if window.context.any():
        np.add.at(counted, index, window.steps)  # a cell may be there once for each context
    else:
        counted[index] += window.steps
    seen[index] = now
    return amended(
        cost,
        mean=mean,
        steps=counted,
        seen=seen,
        streak=streak,
        contexts=contexts,
        noise=total,
        shared=shared,
        speeds=speeds,
        changed=changed,
    )


def _widened(cost: Cost, window: _Window, surprise: Array, believed: Mask, own: Mask) -> None:
    """Make room for a change that is believed: of the machine where all cells moved alike, else of single cells."""
    index, covariance, cells = window.cell, cost.covariance, np.arange(cost.features.shape[0])
    together, alone = believed & own, believed
    if together.sum() * 2 > own.sum() and abs(np.sign(surprise[together]).sum()) == together.sum():
        # Most of what was measured moved alike: the machine did, not these ks. Only bursts can tell them apart.
        level = float(np.median(surprise[together]))
        covariance[: cells.size, : cells.size] += level**2
        covariance[cells, cells] += (LOOSENED * level) ** 2
        alone = believed & ~own
    covariance[index[alone], index[alone]] += surprise[alone] ** 2


def _noise(cost: Cost, surprise: Array, scatter: Array, between: Array, calm: Mask) -> tuple[float, float]:
    """Variance of a window's cells beyond the scatter of steps, and the part they share, one window wiser."""
    total, shared, count = cost.noise, cost.shared, int(calm.sum())
    if count < calm.size:
        surprise, scatter, between = surprise[calm], scatter[calm], between[np.ix_(calm, calm)]
    if count:
        own = float(surprise @ surprise - between.trace())
        total += 0.05 * (own / count - float(scatter.sum()) / count - cost.shared)
        if count > 1:
            common = float(surprise.sum() ** 2 - between.sum()) - own
            shared += 0.05 * (common / (count * (count - 1)) - shared)
    total = min(NOISE_BOUNDS[1], max(NOISE_BOUNDS[0], total))
    return total, min(0.9 * total, max(0.0, shared))
