"""Goodput of every k at a load: requests x acceptance length / step seconds, tokens a second of one engine.

All in logarithms, where the product is a sum and the delta method is a sum of variances: that of a log goodput is that
of the log length plus that of the log step time, and a comparison of two ks keeps what they share out of it. Where
steps carry prompts, a step is one with the load's usual share of them (module prompts): what k gains is diluted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline_operator.tuning import acceptance, cost, prompts
from paceline_operator.tuning.acceptance import Acceptance, Array, Lengths
from paceline_operator.tuning.cost import Cost
from paceline_operator.tuning.direct import Direct
from paceline_operator.tuning.direct import lengths as direct_lengths
from paceline_operator.tuning.model import BucketView, Candidate, Interval

Z95 = 1.96
"""Half-width of a 95 % interval, standard deviations."""
LARGEST_LOG = 700.0
"""exp of more is infinite, which no answer may be."""


@dataclass(frozen=True)
class Scores:
    """Every ladder k at one load bucket. Arrays follow the ladder."""

    load: int
    ladder: tuple[int, ...]
    requests: float
    """Mean sampling requests in this bucket's steps."""
    log_length: Array
    log_step: Array
    log_goodput: Array
    """Log tokens per second."""
    length_covariance: Array
    step_covariance: Array
    covariance: Array
    """Of the log goodput."""
    steps: Array
    known: npt.NDArray[np.bool_]
    """Cost and acceptance both have their minimum count: only such a k may be chosen."""
    outdated: npt.NDArray[np.bool_]
    """Cost was not measured since it changed."""
    faster: npt.NDArray[np.bool_]
    """The last window was far below the believed cost, and no other has confirmed or refuted it yet."""
    told: npt.NDArray[np.bool_]
    """Acceptance is known by position; elsewhere the length is tokens over request-steps of this load."""

    def gains(self, over: int) -> tuple[list[float], list[float]]:
        """Log goodput of every ladder k over that of `over`, and the standard errors."""
        row = self.ladder.index(over)
        own = self.covariance.diagonal()
        variance = np.maximum(own + own[row] - 2 * self.covariance[row], 0.0)
        gains: list[float] = (self.log_goodput - self.log_goodput[row]).tolist()
        errors: list[float] = np.sqrt(variance).tolist()
        return gains, errors

    def gain(self, k: int, over: int) -> tuple[float, float]:
        """Log goodput of `k` over that of `over`, and its standard error."""
        gains, errors = self.gains(over)
        row = self.ladder.index(k)
        return gains[row], errors[row]


@dataclass(frozen=True)
class Board:
    """Scores of several load buckets at once: load positions first, ladder positions after."""

    loads: tuple[int, ...]
    ladder: tuple[int, ...]
    requests: Array
    log_length: Array
    log_step: Array
    log_goodput: Array
    length_covariance: Array
    step_covariance: Array
    covariance: Array
    steps: Array
    known: npt.NDArray[np.bool_]
    outdated: npt.NDArray[np.bool_]
    faster: npt.NDArray[np.bool_]
    told: npt.NDArray[np.bool_]

    def at(self, load: int) -> Scores:
        """The scores of one of `loads`."""
        row = self.loads.index(load)
        return Scores(
            load=load,
            ladder=self.ladder,
            requests=float(self.requests[row]),
            log_length=self.log_length[row],
            log_step=self.log_step[row],
            log_goodput=self.log_goodput[row],
            length_covariance=self.length_covariance[row],
            step_covariance=self.step_covariance[row],
            covariance=self.covariance[row],
            steps=self.steps[row],
            known=self.known[row],
            outdated=self.outdated[row],
            faster=self.faster[row],
            told=self.told,
        )

    def stirred(self, incumbents: Mapping[int, int], errors: float) -> set[int]:
        """Loads of `incumbents` (load -> k) where another known k is better by more than `errors` standard errors."""
        if not incumbents:
            return set()
        places = [self.loads.index(load) for load in incumbents]
        columns = [self.ladder.index(k) for k in incumbents.values()]
        log, own = self.log_goodput[places], np.arange(len(places))
        gains = log - log[own, columns][:, None]
        better = self.known[places] & (gains > 0)
        better[own, columns] = False
        if not better.any():
            return set()
        spread = self.covariance.diagonal(axis1=1, axis2=2)[places]
        variance = spread + spread[own, columns][:, None] - 2 * self.covariance[places, columns]
        better &= gains > errors * np.sqrt(np.maximum(variance, 0.0))
        return {load for load, found in zip(incumbents, better.tolist(), strict=True) if True in found}


def board(lengths: Lengths, costs: Cost, direct: Direct, loads: Sequence[int]) -> Board:
    """Scores of the ladder at `loads`, which are buckets of `costs`."""
    width, total = len(costs.ladder), len(costs.loads)
    size = width * total
    rows = np.asarray([costs.loads.index(load) for load in loads], dtype=np.intp)
    blocks = costs.covariance[:size, :size].reshape(total, width, total, width)
    step_covariance = blocks[rows, :, rows, :]
    log_step = costs.mean[:size].reshape(total, width)[rows]
    weights = cost.effects(costs)
    if weights is not None:
        weights = weights.reshape(total, width, -1)[rows]
        end = size + weights.shape[2]
        cross = costs.covariance[:size, size:end].reshape(total, width, -1)[rows] @ weights.transpose(0, 2, 1)
        effects = weights @ costs.covariance[size:end, size:end] @ weights.transpose(0, 2, 1)
        step_covariance = step_covariance + cross + cross.transpose(0, 2, 1) + effects
        log_step = log_step + weights @ costs.mean[size:end]
    request_steps, counted = costs.requests[rows].T
    requests = np.where(counted > 0, request_steps / np.maximum(counted, 1e-9), np.asarray(loads, float))
    alike = np.zeros(len(loads), dtype=np.intp)
    log_length = lengths.log[None][alike]
    length_covariance = lengths.covariance[None][alike]
    known = lengths.known[None][alike]
    if not direct.told.all() and direct.windows.any():
        told = lengths.known | direct.told
        log, variance, there = (found[rows] for found in direct_lengths(direct))
        log_length = np.where(told, lengths.log, np.where(there, log, lengths.log))
        both = told[:, None] & told[None, :]
        own = np.where(told, 0.0, variance)[:, :, None] * np.eye(width)
        length_covariance = np.where(both, lengths.covariance, own)
        known = np.where(told, lengths.known, there)
    covariance = length_covariance + step_covariance
    if costs.mix[rows, 1].any():
        log_step, step_covariance, covariance = _with_prompts(
            costs, rows, requests, log_length, log_step, length_covariance, step_covariance, weights
        )
    return Board(
        loads=tuple(loads),
        ladder=costs.ladder,
        requests=requests,
        log_length=log_length,
        log_step=log_step,
        log_goodput=np.log(requests)[:, None] + log_length - log_step,
        length_covariance=length_covariance,
        step_covariance=step_covariance,
        covariance=covariance,
        steps=costs.steps.reshape(total, width)[rows],
        known=known & cost.own(costs)[rows],
        outdated=(costs.seen < costs.changed).reshape(total, width)[rows],
        faster=(costs.streak < 0).reshape(total, width)[rows],
        told=lengths.known | direct.told,
    )


def _with_prompts(
    costs: Cost,
    rows: npt.NDArray[np.intp],
    requests: Array,
    log_length: Array,
    log_step: Array,
    length_covariance: Array,
    step_covariance: Array,
    weights: Array | None,
) -> tuple[Array, Array, Array]:
    """Log step seconds at each load's usual share of prompts, their covariance, and that of the log goodput.

    By load position of `rows`. `log_step` and `step_covariance` are of steps without prompts, `weights` the effects of
    contexts in them.
    """
    width = len(costs.ladder)
    log_step, step_covariance = log_step.copy(), step_covariance.copy()
    covariance = length_covariance + step_covariance
    for row, load in enumerate(rows.tolist()):
        cells = np.arange(load * width, (load + 1) * width)
        found = prompts.usual(costs, cells, requests[row] * np.exp(log_length[row]))
        if found is None:
            continue
        bare = np.exp(log_step[row])
        whole = bare + found.seconds
        places, added = prompts.effects(costs, cells, found)
        slope = np.concatenate([np.diag(bare), added], axis=1) / whole[:, None]
        slope[:, width - 1] += found.seconds / whole
        places = np.concatenate([cells, places])
        if weights is not None:
            start = costs.features.shape[0]
            places = np.concatenate([places, np.arange(start, start + weights.shape[2])])
            slope = np.concatenate([slope, slope[:, :width] @ weights[row]], axis=1)
        log_step[row] = np.log(whole)
        step_covariance[row] = slope @ costs.covariance[np.ix_(places, places)] @ slope.T
        diluted = 1 - found.by_tokens / whole
        covariance[row] = length_covariance[row] * np.outer(diluted, diluted) + step_covariance[row]
    return log_step, step_covariance, covariance


def goodput(scores: Scores, k: int) -> Interval:
    """Tokens per second of one engine at ladder k `k`, with its 95 % interval."""
    row = scores.ladder.index(k)
    return interval(float(scores.log_goodput[row]), float(scores.covariance[row, row]))


def interval(log: float, variance: float) -> Interval:
    """Value and 95 % interval of a quantity whose logarithm is `log` with `variance`."""
    half = Z95 * math.sqrt(max(variance, 0.0))
    return Interval(*(math.exp(min(max(at, -LARGEST_LOG), LARGEST_LOG)) for at in (log, log - half, log + half)))


def view(scores: Scores, beliefs: Acceptance, lengths: Lengths, k: int, recommended: int, observed: bool) -> BucketView:
    """What is known at a load, for people."""
    variances = [one.diagonal() for one in (scores.covariance, scores.step_covariance, scores.length_covariance)]
    log = np.asarray([scores.log_goodput, scores.log_step, scores.log_length])
    half = Z95 * np.sqrt(np.maximum(variances, 0.0))
    ends = np.exp(np.minimum(np.maximum([log, log - half, log + half], -LARGEST_LOG), LARGEST_LOG))
    rows = zip(
        scores.ladder,
        *(ends[:, quantity].T.tolist() for quantity in range(3)),
        scores.known.tolist(),
        scores.steps.tolist(),
        scores.told.tolist(),
        lengths.survival.tolist(),
        acceptance.firing_rates(beliefs),
        strict=True,
    )
    candidates = tuple(
        Candidate(
            k=candidate,
            goodput=Interval(*rate),
            step_seconds=Interval(*seconds),
            acceptance_length=Interval(*tokens),
            steps=int(steps),
            firing_rate=fired,
            survival=tuple(survival[:candidate]) if told else (),
            borrowed=not known,
            acceptance_known=told,
        )
        for candidate, rate, seconds, tokens, known, steps, told, survival, fired in rows
    )
    return BucketView(scores.load, k, recommended, observed, candidates)
