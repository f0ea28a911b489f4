"""The belief about step costs, corrected by what engines measured: one step of the filter."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from statistics import median
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from paceline_engine.protocol import CostCell
from paceline_operator.tuning import prompts
from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.cost import EFFECTS, LOOSENED, MIN_STEPS, Cost, whole
from paceline_operator.tuning.timing import CONTEXTS, Timing, timings
from paceline_operator.tuning.values import amended

Index: TypeAlias = npt.NDArray[np.intp]
Mask: TypeAlias = npt.NDArray[np.bool_]
Timings: TypeAlias = Mapping[int, Timing]

HALF_LIFE_SECONDS = 900.0
"""Of a load bucket's mean number of requests."""
DRIFT_SHARED = 0.03**2 / 60
DRIFT_OWN = 0.003**2 / 60
"""Variance a second by which all cells together, and one cell alone, wander unseen."""
NOISE_BOUNDS = (0.005**2, 0.4**2)
SURPRISE = 4.0
"""Standard deviations beyond which a cell's window is doubted once, and believed the second time in a row."""
SPEED_GAIN, SPEED_JUMP = 0.3, 0.2
"""Share of a window's surprise by which an engine's own log speed follows it; a larger surprise is followed at once, or
what is left of it would be taken for the cost of whatever k the engine happened to run."""
CONTEXT_HALF_LIFE_SECONDS = 60.0
ITERATIONS, LINEAR, LARGEST_STEP = 10, 0.003, 2.0
"""Of linearising what prompts add: how often, the error of log step seconds that is small enough, and the furthest
that the log price of a token goes at once."""


def learn(
    past: Cost, windows: Mapping[str, Iterable[CostCell]], seconds: float, now: float, every_mode: bool = False
) -> Cost:
    """`past`, `seconds` older, corrected by what each engine (by name) measured since; `every_mode`: under adaptive
    verification too."""
    size, width = past.features.shape[0], len(past.ladder)
    covariance = whole(past)
    covariance[:size, :size] += seconds * DRIFT_SHARED
    covariance.reshape(-1)[:: past.mean.size + 1] += seconds * DRIFT_OWN
    requests = past.requests * 0.5 ** (seconds / HALF_LIFE_SECONDS)
    mix = prompts.mixed(past, [cell for window in windows.values() for cell in window], seconds)
    found = {name: timings(window, past.loads, past.ladder, every_mode) for name, window in windows.items()}
    means = {name: cells for name, cells in found.items() if cells}
    if not means:
        return amended(past, covariance=covariance, requests=requests, mix=mix)
    spent = (past.contexts * 0.5 ** (seconds / CONTEXT_HALF_LIFE_SECONDS)).tolist()
    for cells in means.values():
        for cell, timing in cells.items():
            kind, place = divmod(cell, size)
            requests[place // width, 0] += timing.request_steps
            requests[place // width, 1] += timing.steps
            spent[kind % len(CONTEXTS)] += timing.steps * math.exp(timing.log_mean)
    aged = amended(past, covariance=covariance, requests=requests, mix=mix, contexts=np.asarray(spent))
    speeds = _speeds(aged, means)
    return _corrected(aged, _merged(aged, means, speeds), speeds, now)


def _speeds(cost: Cost, measured: Mapping[str, Timings]) -> dict[str, float]:
    """Each engine's own log speed, so that a slow pod is not taken for the cost of the k it happened to run."""
    if len(measured) < 2 and len(cost.speeds) < 2:
        return {}
    speeds = dict(cost.speeds)
    for name, cells in measured.items():
        tokens, mixed = np.asarray([(one.prompt_tokens, one.mixed) for one in cells.values()]).T
        expected = prompts.sight(cost, *_places(cost, cells), tokens, mixed).log
        gaps = np.asarray([timing.log_mean for timing in cells.values()]) - expected
        weights = np.asarray([math.sqrt(timing.steps) for timing in cells.values()])
        gap = float(np.add.reduce(gaps * weights) / np.add.reduce(weights))
        off = gap - speeds.get(name, -math.inf)
        speeds[name] = gap if abs(off) > SPEED_JUMP else speeds[name] + SPEED_GAIN * off
    middle = median(speeds[name] for name in measured)
    return {name: speed - (middle if name in measured else 0.0) for name, speed in speeds.items()}


def _places(cost: Cost, cells: Iterable[int]) -> tuple[Index, Index]:
    """Of timings: place in the belief, and position of the context bucket."""
    kind, place = np.divmod(np.fromiter(cells, dtype=np.intp), cost.features.shape[0])
    return place, kind % len(CONTEXTS)


class _Window(NamedTuple):
    """The measured cells of a window, engines merged. `cell` is the place; `context` the position of its bucket."""

    cell: Index
    context: Index
    log: Array
    variance: Array
    steps: Array
    tokens: Array
    """Prompt tokens a step."""
    mixed: Array
    """Share of the steps that have any, or met the launch of some."""
    only: Mask
    """Cells of such steps alone."""
    rough: Mask
    """Of these, those whose steps are in another cell, too."""
    plain: bool
    """Each cell is there once: no prompts, and no contexts from 8k on."""


def _merged(cost: Cost, measured: Mapping[str, Timings], speeds: Mapping[str, float]) -> _Window:
    size, alone = cost.features.shape[0], cost.noise - cost.shared
    if len(measured) == 1:
        ((name, cells),) = measured.items()
        each = cells.values()
        if max(cells) < size and not any(timing.mixed for timing in each):
            speed = speeds.get(name, 0.0)
            none = np.zeros(len(cells))
            return _Window(
                cell=np.asarray(list(cells)),
                context=none.astype(np.intp),
                log=np.asarray([timing.log_mean - speed for timing in each]),
                variance=np.asarray([alone + timing.variance for timing in each]),
                steps=np.asarray([timing.steps for timing in each], float),
                tokens=none,
                mixed=none,
                only=none > 0,
                rough=none > 0,
                plain=True,
            )
    gathered: dict[int, list[Timing]] = {}
    for name, cells in measured.items():
        for cell, timing in cells.items():
            found = timing._replace(log_mean=timing.log_mean - speeds.get(name, 0.0))
            gathered.setdefault(cell, []).append(found)
    if max(gathered) >= size * len(CONTEXTS):
        # Of one cell's rows the last has its say of whether it surprised: the one without prompts.
        gathered = dict(sorted(gathered.items(), reverse=True))
    rows = []
    for at, parts in gathered.items():
        weights = [1.0 / (alone + one.variance) for one in parts]
        total = sum(weights)
        means = [
            sum(w * value for w, value in zip(weights, values, strict=True)) / total
            for values in zip(*((one.log_mean, one.prompt_tokens, one.mixed) for one in parts), strict=True)
        ]
        of_prompts = at >= size * len(CONTEXTS), any(one.rough for one in parts)
        rows.append((means[0], 1.0 / total, sum(one.steps for one in parts), *means[1:], *of_prompts))
    place, context = _places(cost, gathered)
    log, variance, steps, tokens, mixed, only, rough = np.asarray(rows, float).T
    plain = not (context.any() or mixed.any())
    return _Window(place, context, log, variance, steps, tokens, mixed, only > 0, rough > 0, plain)


def _corrected(cost: Cost, window: _Window, speeds: Mapping[str, float], now: float) -> Cost:
    """The update. `cost.covariance` is this pass's own copy and is written to."""
    index, covariance = window.cell, cost.covariance
    if window.plain:
        seen = prompts.Sight(cost.mean[index], None, window.tokens, index)
    else:
        seen = prompts.sight(cost, index, window.context, window.tokens, window.mixed)
    columns, between = seen.columns(covariance)
    surprise = window.log - seen.log
    own = cost.steps[index] >= MIN_STEPS
    variance = window.variance
    if not window.plain:
        variance = variance + np.where(window.rough, prompts.ROUGH, prompts.MISFIT * seen.share) ** 2
    noise = np.zeros((index.size, index.size)) + cost.shared
    noise.reshape(-1)[:: index.size + 1] += variance
    strange = surprise**2 > SURPRISE**2 * (between.diagonal() + variance + cost.shared)
    streak, changed = cost.streak, cost.changed
    if True in strange.tolist() or any(streak[index].tolist()):
        streak = streak.copy()
        again = np.where(streak[index] * surprise > 0, streak[index], 0) + np.sign(surprise)
        streak[index] = np.where(strange, again, 0)
        doubted = strange & own & (np.abs(streak[index]) < 2)
        believed = strange & ~doubted
        noise.reshape(-1)[:: index.size + 1] += np.where(doubted, surprise**2 / SURPRISE**2, 0.0)
        if believed.any():
            _widened(cost, window.only, index, surprise, believed, own)
            columns, between = seen.columns(covariance)
            plain = believed & own & ~window.only
            changed = now if plain.any() else changed
            streak[index[believed]] = 0
    mean, half, near = _solved(cost, window, seen, columns, between, noise)
    covariance -= half.T @ half
    calm = own & ~strange if window.plain else own & ~strange & (near | ~window.only)
    total, shared = _noise(cost, surprise, variance, between, calm)
    counted, last = cost.steps.copy(), cost.seen.copy()
    if window.plain:
        counted[index] += window.steps
    else:
        np.add.at(counted, index, window.steps)  # a cell may be there once for each context, and with prompts or not
    last[index] = now
    return amended(
        cost,
        mean=mean,
        steps=counted,
        seen=last,
        streak=streak,
        noise=total,
        shared=shared,
        speeds=speeds,
        changed=changed,
    )


def _solved(
    cost: Cost, window: _Window, seen: prompts.Sight, columns: Array, between: Array, noise: Array
) -> tuple[Array, Array, bool]:
    """The mean after a window, half of what the covariance loses, and whether the mean stayed where it was linearised.

    `seen`, `columns` and `between` are as linearised at the belief. What prompts add is linear nearby only: where the
    window takes the mean further, it is linearised anew there, until it stays (an iterated extended Kalman filter).
    """
    mean, near = cost.mean, True
    if window.plain:
        root = np.linalg.inv(np.linalg.cholesky(between + noise))
        half = root.dot(columns.T)
        return mean + root.dot(window.log - seen.log).dot(half), half, True
    for _ in range(ITERATIONS):
        root = np.linalg.inv(np.linalg.cholesky(between + noise))
        half = root @ columns.T
        away = window.log - seen.log - seen.moved(cost.mean - mean)
        step = cost.mean + (root @ away) @ half - mean
        if not window.mixed.any():
            return mean + step, half, True
        step *= min(1.0, LARGEST_STEP / max(1e-9, float(np.abs(step[-EFFECTS]))))
        mean = mean + step
        there = prompts.sight(amended(cost, mean=mean), window.cell, window.context, window.tokens, window.mixed)
        if np.abs(there.log - seen.log - seen.moved(step)).max() < LINEAR:
            break
        seen, near = there, False
        columns, between = seen.columns(cost.covariance)
    return mean, half, near


def _widened(cost: Cost, only: Mask, index: Index, surprise: Array, believed: Mask, own: Mask) -> None:
    """Make room for a change that is believed: of the machine where all cells moved alike, else of single cells, or, in
    steps that have prompts `only`, of what these add."""
    covariance, cells = cost.covariance, np.arange(cost.features.shape[0])
    together, alone = believed & own, believed
    if together.sum() * 2 > own.sum() and abs(np.sign(surprise[together]).sum()) == together.sum():
        # Most of what was measured moved alike: the machine did, not these ks. Only bursts can tell them apart.
        level = float(np.median(surprise[together]))
        covariance[: cells.size, : cells.size] += level**2
        covariance[cells, cells] += (LOOSENED * level) ** 2
        alone = believed & ~own
    covariance[index[alone], index[alone]] += surprise[alone] ** 2
    for row in np.flatnonzero(alone & only):
        prompts.widened(cost, int(index[row]), float(surprise[row]))


def _noise(cost: Cost, surprise: Array, scatter: Array, between: Array, calm: Mask) -> tuple[float, float]:
    """Variance of a window's cells beyond the scatter of steps, and the part they share, one window wiser."""
    total, shared, seen, known = cost.noise, cost.shared, surprise.tolist(), between.tolist()
    rows = [row for row, quiet in enumerate(calm.tolist()) if quiet]
    if count := len(rows):
        own = sum([seen[row] ** 2 - known[row][row] for row in rows])
        total += 0.05 * ((own - sum([scatter.item(row) for row in rows])) / count - cost.shared)
        if count > 1:
            expected = sum([known[row][column] for row in rows for column in rows])
            common = sum([seen[row] for row in rows]) ** 2 - expected - own
            shared += 0.05 * (common / (count * (count - 1)) - shared)
    total = min(NOISE_BOUNDS[1], max(NOISE_BOUNDS[0], total))
    return total, min(0.9 * total, max(0.0, shared))
