"""What a decode step costs: log seconds by (load bucket, k), one Gaussian belief over all cells.

Step cost is a staircase in tokens with a cliff where graphs end, so no curve is fitted: each measured cell follows its
own samples. Cells nobody measured take their value from neighbours through the prior covariance, and say so by their
variance. What all cells of a window share (a busy machine) is noise common to them, and cancels when two ks of one load
are compared. Contexts from 8k on add an effect of their own: a level, a slope in the doublings of the load and one in
k, learnt with the cells; so has what prompts add to a step (module prompts). (A Kalman filter on a Gaussian-process
prior: Rasmussen and Williams 2006, chapter 2.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.timing import CONTEXTS
from paceline_operator.tuning.values import amended

Mask: TypeAlias = npt.NDArray[np.bool_]
Places: TypeAlias = npt.NDArray[np.intp]

MIN_STEPS = 14.0
"""Two bursts, but for a step or two that stood still: below this a cell's cost is not its own. Half of it does where
the same k has it at another load: what that says of this one is in the belief, and one burst tells whether it holds.
Steps with prompts count too; how much they tell is in the covariance."""
FIRST_GUESS_SECONDS = 0.02
DRAFT_GUESS = 0.05
"""Cost of one more drafted token over that of a step: 0.03 to 0.09 measured on an H200 (dense 32B, 8B) with EAGLE."""
RIDGE_TOKENS = 300.0
"""Tokens in a step that double it: about 300 on an H200. A prior, far off on other machines, soon overruled."""
LOOSENED, LOOSENED_SECONDS = 0.1, 60.0
"""Standard deviation that every cell gets for itself, as a share of a common change of cost."""
EFFECTS = 3
"""Of a context bucket above the first: level, slope in doublings of load, slope in k."""
EFFECT_DEVIATIONS = (0.3, 0.1, 0.03)
"""Prior standard deviations of these: attention at 32k adds up to a third to a step, more so with more requests."""
OFFSET_GUESS, OFFSET_DEVIATION, OFFSET_OWN = 0.1, 0.3, 0.15
"""What a step with prompts costs beyond its tokens, over the load's step without: a guess, and the standard deviations
that all loads share and that each has for itself. A graph in pieces in place of a full one is some tenths of a step."""
HIDDEN_GUESS, HIDDEN_DEVIATION = 1.0, 2.0
"""Logit of the share of the offset that a larger k hides in its longer steps. Nearly all on an H200 (see prompts)."""
HIDDEN = -EFFECTS - 1
"""Its place in the belief: before the price of a token, which is last."""
PRICE_DEVIATIONS = (2.0, 0.1, 0.03)
"""Standard deviations of the log price of a prompt token (RIDGE_TOKENS of them double a step): its level, its slope in
doublings of the load and its slope in k."""
NEGLIGIBLE_SHARE = 0.01


@dataclass(frozen=True)
class Cost:
    """Belief about log step seconds. A cell's index is load position * len(ladder) + ladder position."""

    loads: tuple[int, ...]
    ladder: tuple[int, ...]
    mean: Array
    """Of every cell at a context below 8k; then the effects of each longer context bucket; then what steps with prompts
    add: an offset for each load, the logit of the share that a larger k hides, and the effects on the log price of a
    token."""
    covariance: Array
    features: Array
    """Per cell: what the effects of a context are multiplied with."""
    steps: Array
    """Steps of each cell, ever. How old they are is in the covariance, which grows with time."""
    lent: Array
    """1 for each cell of which a profile tells: half of its minimum, once and whatever it rests on."""
    seen: Array
    """When each cell was measured last, in the caller's seconds; -inf = never."""
    streak: Array
    """Signed count of windows in a row that surprised a cell."""
    requests: Array
    """Per load: (sum of request-steps, sum of steps), forgotten."""
    contexts: Array
    """Decode seconds by context bucket, forgotten over a minute."""
    mix: Array
    """Per load, forgotten over a minute: steps, steps with prompts, prompt tokens, tokens emitted."""
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
    load, features = np.repeat(np.asarray(loads, float), len(ladder)), _features(loads, ladder)
    _, doublings, k = features.T
    distance = np.abs(doublings[:, None] - doublings[None, :]) / 1.5 + np.abs(k[:, None] - k[None, :]) / 3.0
    effects = (len(CONTEXTS) - 1) * EFFECTS
    extra = effects + len(loads) + 1 + EFFECTS
    covariance = np.zeros((load.size + extra, load.size + extra))
    covariance[: load.size, : load.size] = (
        9.0
        + 0.3**2 * np.outer(doublings, doublings)
        + 0.1**2 * np.outer(k, k)
        + 0.03**2 * np.outer(doublings * k, doublings * k)
        + 0.08**2 * np.exp(-distance)
        + 0.03**2 * np.eye(load.size)
    )
    covariance[range(load.size, load.size + effects), range(load.size, load.size + effects)] = np.tile(
        np.square(EFFECT_DEVIATIONS), len(CONTEXTS) - 1
    )
    offsets = slice(load.size + effects, load.size + effects + len(loads))
    covariance[offsets, offsets] = OFFSET_DEVIATION**2 + OFFSET_OWN**2 * np.eye(len(loads))
    covariance[HIDDEN, HIDDEN] = HIDDEN_DEVIATION**2
    covariance[range(-EFFECTS, 0), range(-EFFECTS, 0)] = np.square(PRICE_DEVIATIONS)
    mean = math.log(FIRST_GUESS_SECONDS) + np.log1p(DRAFT_GUESS * k + load * (k + 1) / RIDGE_TOKENS)
    return Cost(
        loads=loads,
        ladder=ladder,
        mean=np.concatenate(
            [mean, np.zeros(effects), np.full(len(loads), OFFSET_GUESS), [HIDDEN_GUESS], np.zeros(EFFECTS)]
        ),
        covariance=covariance,
        features=features,
        steps=np.zeros(load.size),
        lent=np.zeros(load.size),
        seen=np.full(load.size, -math.inf),
        streak=np.zeros(load.size),
        requests=np.zeros((len(loads), 2)),
        contexts=np.zeros(len(CONTEXTS)),
        mix=np.zeros((len(loads), 4)),
    )


@lru_cache(maxsize=64)
def _features(loads: tuple[int, ...], ladder: tuple[int, ...]) -> Array:
    """One for all servings."""
    doublings = np.repeat(np.log2(np.asarray(loads, float)), len(ladder))
    k = np.tile(np.asarray(ladder, float), len(loads))
    found = np.stack([np.ones(k.size), doublings, k], axis=1)
    found.flags.writeable = False
    return found


def folded(cost: Cost) -> Cost:
    """`cost` between two passes: of its covariance, which is symmetric, the lower triangle alone, in single precision.

    After 120 passes of six simulated servings means of log seconds differed by 1.4e-6 from those with doubles, tables
    not at all; the smallest eigenvalue, 1e-5, by 1e-9.
    """
    if cost.covariance.ndim < 2:
        return cost
    return amended(cost, covariance=cost.covariance.astype(np.float32).take(_triangle(cost.mean.size)[0]))


def unfolded(cost: Cost) -> Cost:
    """`cost` in a pass: with the whole covariance."""
    return cost if cost.covariance.ndim > 1 else amended(cost, covariance=whole(cost))


def whole(cost: Cost) -> Array:
    """The covariance of `cost`, folded or not, as a matrix of the caller's own."""
    folded = cost.covariance.ndim < 2
    if not folded:
        return cost.covariance.copy()
    return cost.covariance.astype(np.float64).take(_triangle(cost.mean.size)[1])


@lru_cache(maxsize=8)
def _triangle(size: int) -> tuple[Places, Places]:
    """Places of the lower triangle in a matrix, and of each of a matrix's entries in the triangle."""
    rows, columns = np.tril_indices(size)
    whole = np.empty((size, size), np.intp)
    whole[rows, columns] = whole[columns, rows] = np.arange(rows.size)
    return rows * size + columns, whole


def contexts(cost: Cost) -> Array:
    """Share of decode time by context bucket, lately; all in the first where nothing was measured."""
    total = sum(cost.contexts.tolist())
    shares: Array = cost.contexts / total if total > 0 else np.eye(cost.contexts.size)[0]
    return shares


def effects(cost: Cost) -> Array | None:
    """Per cell, the weights of the context effects at the present mix of contexts; None where all is below 8k."""
    first, *longer = cost.contexts.tolist()
    if sum(longer) < NEGLIGIBLE_SHARE * (first + sum(longer)) or not sum(longer):
        return None
    return np.concatenate([share * cost.features for share in contexts(cost)[1:]], axis=1)


def loosened(cost: Cost, share: float, now: float) -> Cost:
    """Every cell less sure by a standard deviation of `share` of itself, and to be measured again.

    Once a minute at most: a change of traffic may be noticed in several windows, but it is one.
    """
    if now - cost.changed < LOOSENED_SECONDS:
        return cost
    covariance = whole(cost)
    cells = np.arange(cost.features.shape[0])
    covariance[cells, cells] += share**2
    return amended(cost, covariance=covariance, changed=now)


def measured(cost: Cost) -> tuple[int, ...]:
    """Load buckets that were seen at any k."""
    return tuple([load for load, steps in zip(cost.loads, cost.requests[:, 1].tolist(), strict=True) if steps > 0])


def own(cost: Cost) -> Mask:
    """By load and ladder position, whether a cost rests on enough steps of its own."""
    steps = cost.steps.reshape(len(cost.loads), len(cost.ladder))
    if np.count_nonzero(cost.lent):
        lent = cost.lent.reshape(steps.shape) / 2
        known = (steps + lent * MIN_STEPS >= MIN_STEPS).any(axis=0)
        least = np.where(known, MIN_STEPS / 2, MIN_STEPS)
        found: Mask = steps + lent * least >= least
        return found
    least = np.where(np.maximum.reduce(steps) >= MIN_STEPS, MIN_STEPS / 2, MIN_STEPS)
    return np.greater_equal(steps, least)
