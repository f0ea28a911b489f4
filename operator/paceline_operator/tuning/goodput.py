"""Goodput of every k at a load: requests x acceptance length / step seconds, tokens a second of one engine.

All in logarithms, where the product is a sum and the delta method is a sum of variances: that of a log goodput is that
of the log length plus that of the log step time, and a comparison of two ks keeps what they share out of it. Where
steps carry prompts, a step is one with the load's usual share of them (module prompts): what k gains is diluted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, overload

import numpy as np
import numpy.typing as npt

from paceline_operator.tuning import acceptance, cost, prompts
from paceline_operator.tuning.acceptance import Acceptance, Array, Lengths
from paceline_operator.tuning.cost import Cost
from paceline_operator.tuning.direct import Direct
from paceline_operator.tuning.direct import lengths as direct_lengths
from paceline_operator.tuning.model import BucketView, Candidate, Interval
from paceline_operator.tuning.timing import places

Z95 = 1.96
"""Half-width of a 95 % interval, standard deviations."""
LARGEST_LOG = 700.0
"""exp of more is infinite, which no answer may be."""


class Scores(NamedTuple):
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
        logs, variances = self.log_goodput.tolist(), self.covariance.diagonal().tolist()
        least, own, shared = logs[row], variances[row], self.covariance[row].tolist()
        each = zip(variances, shared, strict=True)
        errors = [math.sqrt(max(variance + own - 2 * both, 0.0)) for variance, both in each]
        return [log - least for log in logs], errors

    def gain(self, k: int, over: int) -> tuple[float, float]:
        """Log goodput of `k` over that of `over`, and its standard error."""
        gains, errors = self.gains(over)
        row = self.ladder.index(k)
        return gains[row], errors[row]


class Board(NamedTuple):
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

    def stirred(self, incumbents: Mapping[int, int], errors: float, allowance: float = 0.0) -> set[int]:
        """Loads of `incumbents` (load -> k) where another known k is better by more than `errors` standard errors, k=0
        by `allowance` less."""
        positions, found = places(self.ladder), set[int]()
        zero, known, covariance = positions.get(0), self.known.item, self.covariance.item
        for row, (load, logs) in enumerate(zip(self.loads, self.log_goodput.tolist(), strict=True)):
            if load not in incumbents:
                continue
            own = positions[incumbents[load]]
            least = logs[own]
            if zero is not None and zero != own:
                logs[zero] += allowance
            for at in [at for at, log in enumerate(logs) if log > least]:
                variance = covariance(row, at, at) + covariance(row, own, own) - 2 * covariance(row, own, at)
                if known(row, at) and logs[at] - least > errors * math.sqrt(max(variance, 0.0)):
                    found.add(load)
                    break
        return found


def board(lengths: Lengths, costs: Cost, direct: Direct, loads: Sequence[int]) -> Board:
    """Scores of the ladder at `loads`, which are buckets of `costs`."""
    width, total = len(costs.ladder), len(costs.loads)
    size = width * total
    rows = _rows(costs.loads, tuple(loads))
    # All of them in order need no copies.
    pick = slice(None) if len(loads) == total else rows
    step_covariance = costs.covariance.take(_blocks(costs.mean.size, total, width)[pick])
    log_step = costs.mean[:size].reshape(total, width)[pick]
    weights = cost.effects(costs)
    if weights is not None:
        weights = weights.reshape(total, width, -1)[pick]
        end = size + weights.shape[2]
        cross = costs.covariance[:size, size:end].reshape(total, width, -1)[rows] @ weights.transpose(0, 2, 1)
        effects = weights @ costs.covariance[size:end, size:end] @ weights.transpose(0, 2, 1)
        step_covariance = step_covariance + cross + cross.transpose(0, 2, 1) + effects
        log_step = log_step + weights @ costs.mean[size:end]
    seen = zip(costs.requests[pick].tolist(), loads, strict=True)
    requests = np.asarray([steps / count if count > 0 else float(load) for (steps, count), load in seen])
    log_length = lengths.log[None].repeat(len(loads), axis=0)
    length_covariance = lengths.covariance[None].repeat(len(loads), axis=0)
    known, told = lengths.known, lengths.known | direct.told
    if False in direct.told.tolist() and direct.windows.any():
        log, variance, there = (found[rows] for found in direct_lengths(direct))
        log_length = np.where(told, lengths.log, np.where(there, log, lengths.log))
        both = told[:, None] & told[None, :]
        own = np.where(told, 0.0, variance)[:, :, None] * np.eye(width)
        length_covariance = np.where(both, lengths.covariance, own)
        known = np.where(told, lengths.known, there)
    covariance = length_covariance + step_covariance
    if came := prompts.traffic(costs):
        log_step, step_covariance, covariance = _with_prompts(
            costs, came, rows, requests, log_length, log_step, length_covariance, step_covariance, weights
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
        steps=costs.steps.reshape(total, width)[pick],
        known=cost.own(costs)[pick] & known,
        outdated=(costs.seen < costs.changed).reshape(total, width)[pick],
        faster=(costs.streak < 0).reshape(total, width)[pick],
        told=told,
    )


@lru_cache(maxsize=64)
def _rows(buckets: tuple[int, ...], loads: tuple[int, ...]) -> npt.NDArray[np.intp]:
    """Positions of `loads`."""
    positions = places(buckets)
    return np.asarray([positions[load] for load in loads], dtype=np.intp)


@lru_cache(maxsize=8)
def _blocks(size: int, loads: int, width: int) -> npt.NDArray[np.intp]:
    """Places of each load's cells with one another in a covariance of `size` rows."""
    cells = np.arange(loads * width).reshape(loads, width)
    return cells[:, :, None] * size + cells[:, None, :]


def _with_prompts(
    costs: Cost,
    came: prompts.Traffic,
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
        found = prompts.usual(costs, came, cells, requests[row] * np.exp(log_length[row]))
        if found is None:
            continue
        bare = np.exp(log_step[row])
        whole = bare + found.seconds
        places, added = prompts.effects(costs, cells, found)
        slope = np.concatenate([np.diag(bare * (1 + found.by_bare)), added], axis=1) / whole[:, None]
        slope[:, width - 1] += (found.seconds - bare * found.by_bare) / whole
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
    covariances = (scores.covariance, scores.step_covariance, scores.length_covariance)
    told = _Told(
        ladder=scores.ladder,
        logs=np.asarray([scores.log_goodput, scores.log_step, scores.log_length]),
        variances=np.asarray([one.diagonal() for one in covariances]),
        known=scores.known.tolist(),
        steps=scores.steps.tolist(),
        told=scores.told.tolist(),
        beliefs=beliefs,
        lengths=lengths,
    )
    return BucketView(scores.load, k, recommended, observed, told)


@dataclass(frozen=True, eq=False, slots=True)
class _Told(Sequence[Candidate]):
    """The candidates of a load, worked out where they are read: most never are."""

    ladder: tuple[int, ...]
    logs: Array
    """Of goodput, step seconds and length, by k."""
    variances: Array
    known: list[bool]
    steps: list[float]
    told: list[bool]
    beliefs: Acceptance
    lengths: Lengths

    def __len__(self) -> int:
        return len(self.ladder)

    @overload
    def __getitem__(self, at: int) -> Candidate: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Candidate]: ...
    def __getitem__(self, at: int | slice) -> Candidate | Sequence[Candidate]:
        return tuple(self)[at]

    def __iter__(self) -> Iterator[Candidate]:
        half = Z95 * np.sqrt(np.maximum(self.variances, 0.0))
        logs = np.asarray([self.logs, self.logs - half, self.logs + half])
        ends = np.exp(np.minimum(np.maximum(logs, -LARGEST_LOG), LARGEST_LOG))
        rows = zip(
            self.ladder,
            *(ends[:, quantity].T.tolist() for quantity in range(3)),
            self.known,
            self.steps,
            self.told,
            self.lengths.survival.tolist(),
            acceptance.firing_rates(self.beliefs),
            strict=True,
        )
        for candidate, rate, seconds, tokens, known, steps, told, survival, fired in rows:
            yield Candidate(
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
