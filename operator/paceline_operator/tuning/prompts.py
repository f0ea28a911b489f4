"""Steps that carry prompt tokens besides drafts: what the prompts add, and what a usual step costs with its share.

    seconds(load, k, p) = S(load, k) + S(load, 0) * (extra(load, k) + price(load, k) * p)
    extra(load, k) = offset(load) - hidden * (S(load, k) / S(load, 0) - 1), bent to stay above 0

S is the belief about decode-only steps, p the prompt tokens computed in the step. The offset is what such a step costs
beyond its tokens (another kind of graph). Where it is the launching of the step that takes so long, a larger k hides it
behind the work of the GPU, with hidden = 1 all of it: such steps take the same with any k up to some k, and no longer
than without prompts from there on. On an H200 at 256 requests a launch with prompts made turns of 24 ms, where those of
k=0 took 14 else and those of k=1 17; from k=2 on there is next to nothing of it, but prompts take the GPU's time, 3 to
5 ms of 130 tokens, which they did not at k=0 (benchmarks/results/h200/mixed.json). The log price of a token
has a level and slopes in the doublings of the load and in k. Offset and price are in units of the load's step at the
ladder's last k, so that they say the same of a fast machine and of a slow one, and all ks have them in common: two ks
are compared by steps of one kind, or across kinds with the uncertainty of what lies between. They are part of the
Gaussian belief, linearised where it stands (an extended Kalman filter): mixed steps inform S, and S them.

Of an engine that launches a step while another runs (module timing) a window tells of all steps of a k together, and
then S is what holds their mean: what this model has wrong of the prompts counts only as far as their share is another.

In a closed loop prompts come with tokens: a k that gives more tokens a step ends more requests a step. So the mix of a
k follows from that of the steps seen, by the tokens of a step, and from the steps of all loads together: requests that
end are followed a step or two later, so that prompts may come in steps of another load than the one whose k ended them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from paceline_engine.protocol import CostCell
from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.cost import EFFECTS, HIDDEN, RIDGE_TOKENS, Cost
from paceline_operator.tuning.timing import CONTEXTS

Index = npt.NDArray[np.intp]

MISFIT = 0.05
"""Relative standard deviation of what prompts add to one window's steps around what is believed of it."""
ROUGH = 0.15
"""Relative standard deviation of the steps themselves, where the prompts may be those of the next step instead."""
NEGLIGIBLE_SHARE = 0.01
"""Of steps with prompts, below which a load's steps are taken for decode-only ones."""
MOST_SHARE, NEWTON_STEPS = 0.999, 30
"""Of steps with prompts that is told apart from all, and in how many steps of Newton's method at most."""
MIX_HALF_LIFE_SECONDS = 60.0
FORGOTTEN = 1e-9
"""Steps of a load, of which nothing is left to tell what they carried."""
BEND = 0.15
"""Of the step at the ladder's last k, about which what prompts take is still uncertain where it would be nothing."""
LEAST_OF_STEP = 0.5
"""Of a step without prompts, that is left of one with whatever they are believed to take."""


class Sight(NamedTuple):
    """Measured cells as the belief expects them."""

    log: Array
    """Log step seconds."""
    slope: Array | None
    """Row by measured cell: of that in the whole belief; None where each cell is just a place in it."""
    share: Array
    """Of the step, that its prompts take."""
    place: Index

    def columns(self, covariance: Array) -> tuple[Array, Array]:
        """Covariance of the whole belief (rows) with the cells, and of the cells with one another."""
        if self.slope is None:
            columns = covariance.take(self.place, axis=1)
            return columns, columns[self.place]
        columns = covariance @ self.slope.T
        return columns, self.slope @ columns

    def moved(self, step: Array) -> Array:
        """What a `step` of the whole belief changes of the cells."""
        found: Array = step[self.place] if self.slope is None else self.slope @ step
        return found


def sight(cost: Cost, place: Index, context: Index, tokens: Array, carrying: Array) -> Sight:
    """Cells at `place` in contexts (by position), with a mean of `tokens` prompt tokens a step, a share of which are
    `carrying` any."""
    count, width = place.size, len(cost.ladder)
    if not (context.any() or carrying.any()):
        return Sight(cost.mean[place], None, np.zeros(count), place)
    slope = np.zeros((count, cost.mean.size))
    slope[np.arange(count), place] = 1.0
    for row in np.flatnonzero(context):
        start = cost.features.shape[0] + (context[row] - 1) * EFFECTS
        slope[row, start : start + EFFECTS] = cost.features[place[row]]
    log = slope @ cost.mean
    share = np.zeros(count)
    for row in np.flatnonzero(carrying):
        load = int(place[row]) // width
        last = (load + 1) * width - 1
        price = float(_prices(cost, place[row : row + 1])[0]) * float(tokens[row])
        ratio = math.exp(min(max(float(cost.mean[last] - log[row]), -50.0), 50.0))
        extra = _extra(cost, load, np.asarray([1.0 / ratio]))
        once = float(carrying[row])
        bare, offset, hidden = (once * float(one[0]) for one in (extra.by_bare, extra.by_offset, extra.by_hidden))
        added = ratio * (once * float(extra.value[0]) + price)
        rest = 1.0 / (1.0 + added)
        log[row] += math.log1p(added)
        share[row] = added * rest
        slope[row] *= (1.0 + bare) * rest
        slope[row, last] += (added - bare) * rest
        slope[row, _offset(cost, load)] = ratio * offset * rest
        slope[row, HIDDEN] = ratio * hidden * rest
        slope[row, -EFFECTS:] = ratio * price * rest * cost.features[place[row]]
    return Sight(log, slope, share, place)


def widened(cost: Cost, place: int, surprise: float) -> None:
    """Less sure, in place, of what prompts add at the load of a cell, by a `surprise` about its log seconds."""
    load = place // len(cost.ladder)
    ratio = math.exp(float(cost.mean[place] - cost.mean[(load + 1) * len(cost.ladder) - 1]))
    at = _offset(cost, load)
    cost.covariance[at, at] += (min(ratio, 10.0) * surprise) ** 2


def mixed(cost: Cost, cells: list[CostCell], seconds: float) -> Array:
    """By load: steps, steps with prompts, prompt tokens and tokens emitted, `seconds` older and with `cells` added.

    Nothing is counted before the first prompt.
    """
    if not np.count_nonzero(cost.mix) and not any(cell.prompt for cell in cells):
        return cost.mix
    found: Array = cost.mix * 0.5 ** (seconds / MIX_HALF_LIFE_SECONDS)
    rows = {load: row for row, load in enumerate(cost.loads)}
    for cell in cells:
        if cell.emitted and (row := rows.get(cell.load)) is not None:
            found[row] += cell.steps, cell.steps if cell.prompt else 0, cell.prompt_tokens, cell.emitted
    return found


@dataclass(frozen=True)
class Usual:
    """A load's steps with their usual prompts, by k."""

    seconds: Array
    """That prompts add to a step, on average over steps with and without."""
    by_bare: Array
    """Slopes of these: in the seconds of the step without,"""
    by_offset: Array
    """in the offset,"""
    by_hidden: Array
    """in what of it a larger k hides,"""
    by_price: Array
    """in the logarithm of the price,"""
    by_tokens: Array
    """and in the logarithm of the tokens that a step emits."""


class Traffic(NamedTuple):
    """What comes with each token emitted, at any load."""

    begun: float
    """Steps' worth of prompts: where a step emits n tokens, exp(-n * begun) of such steps carry none."""
    prompt_tokens: float


def traffic(cost: Cost) -> Traffic | None:
    """Of lately; None where no prompts came.

    Of all loads' steps as many carry prompts as did: sum of steps * (1 - exp(-tokens a step * begun)), by Newton's
    method from below, where it does not overshoot, as that sum is concave.
    """
    _, carrying, prompt_tokens, tokens = np.add.reduce(cost.mix).tolist()
    if carrying <= FORGOTTEN:
        return None
    rows = [(steps, tokens / steps) for steps, _, _, tokens in cost.mix.tolist() if steps > FORGOTTEN and tokens > 0]
    if not rows:
        return None
    total = sum(steps for steps, _ in rows)
    carrying = min(carrying, MOST_SHARE * total)
    begun = carrying / tokens
    for _ in range(NEWTON_STEPS):
        without = [steps * math.exp(-begun * out) for steps, out in rows]
        missing = carrying - total + sum(without)
        begun += missing / sum(steps * out for steps, (_, out) in zip(without, rows, strict=True))
        if missing <= NEGLIGIBLE_SHARE * carrying:
            break
    return Traffic(begun, prompt_tokens / tokens)


def usual(cost: Cost, came: Traffic, place: Index, emitted: Array) -> Usual | None:
    """Of cells of one load, whose steps emit `emitted` tokens; None where hardly any carries a prompt."""
    none = np.exp(-came.begun * emitted)
    if none.min() >= 1 - NEGLIGIBLE_SHARE:
        return None
    load = int(place[0]) // len(cost.ladder)
    unit = _unit(cost, load)
    extra = _extra(cost, load, np.exp(cost.mean[place]) / unit)
    offset = unit * extra.value
    price = unit * _prices(cost, place) * came.prompt_tokens * emitted
    return Usual(
        seconds=offset * (1 - none) + price,
        by_bare=extra.by_bare * (1 - none),
        by_offset=unit * extra.by_offset * (1 - none),
        by_hidden=unit * extra.by_hidden * (1 - none),
        by_price=price,
        by_tokens=offset * came.begun * emitted * none + price,
    )


def effects(cost: Cost, place: Index, found: Usual) -> tuple[Index, Array]:
    """Places in the belief of what prompts add to `found`, which is of the cells at `place`, and its slopes in them."""
    places = np.arange(cost.mean.size + HIDDEN, cost.mean.size)
    places = np.concatenate([[_offset(cost, int(place[0]) // len(cost.ladder))], places])
    two = np.stack([found.by_offset, found.by_hidden], axis=1)
    return places, np.concatenate([two, found.by_price[:, None] * cost.features[place]], axis=1)


def leveled(cost: Cost, window: Sequence[CostCell]) -> Sequence[CostCell]:
    """`window` as if all its steps had carried the prompts that steps of their load usually carry, and no first tokens.

    What two ks gave in one window is compared so: else the one that met fewer prompts would win.
    """
    if not np.count_nonzero(cost.mix):
        return window
    came = traffic(cost)
    return [_leveled(cost, came, cell) for cell in window]


def _leveled(cost: Cost, came: Traffic | None, cell: CostCell) -> CostCell:
    if cell.load not in cost.loads or cell.k_drafted not in cost.ladder or not cell.emitted or not cell.steps:
        return cell
    load = cost.loads.index(cell.load)
    place = np.asarray([load * len(cost.ladder) + cost.ladder.index(cell.k_drafted)])
    emitted = max(1, cell.emitted - cell.first_tokens)
    found = usual(cost, came, place, np.asarray([emitted / cell.steps])) if came else None
    if found is None and not cell.prompt:
        return cell
    seconds = cell.seconds
    if cell.prompt:
        unit, bare = _unit(cost, load), np.exp(cost.mean[place])
        price = float(_prices(cost, place)[0]) * cell.prompt_tokens
        seconds -= unit * (float(_extra(cost, load, bare / unit).value[0]) * cell.steps + price)
        seconds = max(seconds, LEAST_OF_STEP * cell.steps * float(bare[0]))
    if found is not None:
        seconds += cell.steps * float(found.seconds[0])
    scattered = seconds / cell.seconds if cell.seconds else 0.0
    return cell.model_copy(
        update={
            "seconds": seconds,
            "seconds_squared": cell.seconds_squared * scattered**2,
            "emitted": emitted,
            "request_steps": cell.request_steps - cell.first_tokens,
            "histogram": {},
        }
    )


class _Extra(NamedTuple):
    """What a step with prompts takes beyond their tokens, in steps at the ladder's last k, and its slopes."""

    value: Array
    by_bare: Array
    """In the step without prompts, in the same unit."""
    by_offset: Array
    by_hidden: Array


def _extra(cost: Cost, load: int, bare: Array) -> _Extra:
    """Of steps that take `bare` without prompts, in steps at the ladder's last k."""
    hidden = _logistic(cost.mean[HIDDEN])
    over = np.maximum(bare - 1.0, 0.0)
    straight = float(cost.mean[_offset(cost, load)]) - hidden * over
    bent = _logistic(straight / BEND)
    return _Extra(
        value=BEND * np.logaddexp(0.0, straight / BEND),
        by_bare=-hidden * bent * (over > 0),
        by_offset=bent,
        by_hidden=-hidden * (1.0 - hidden) * over * bent,
    )


def _logistic(logit: Array) -> Array:
    """Its exponential is never above 1, however far off the logit is."""
    found: Array = np.exp(-np.logaddexp(0.0, -logit))
    return found


def _unit(cost: Cost, load: int) -> float:
    """Believed seconds of a step without prompts at the ladder's last k."""
    return math.exp(float(cost.mean[(load + 1) * len(cost.ladder) - 1]))


def _offset(cost: Cost, load: int) -> int:
    """Place of a load's offset in the belief: after the effects of contexts."""
    cells: int = cost.features.shape[0]
    return cells + (len(CONTEXTS) - 1) * EFFECTS + load


def _prices(cost: Cost, place: Index) -> Array:
    """Of a prompt token in steps of cells."""
    prices: Array = np.exp(np.minimum(cost.features[place] @ cost.mean[-EFFECTS:], 20.0)) / RIDGE_TOKENS
    return prices
