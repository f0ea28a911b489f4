"""Goodput of every k at a load: requests x acceptance length / step seconds, tokens a second of one engine.

All in logarithms, where the product is a sum and the delta method is a sum of variances: that of a log goodput is that
of the log length plus that of the log step time, and a comparison of two ks keeps what they share out of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from paceline_operator.tuning import acceptance, cost
from paceline_operator.tuning.acceptance import Acceptance, Array, Lengths
from paceline_operator.tuning.cost import Cost
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
    steps: Array
    known: npt.NDArray[np.bool_]
    """Cost and acceptance both have their minimum count: only such a k may be chosen."""
    outdated: npt.NDArray[np.bool_]
    """Cost was not measured since it changed."""

    def gains(self, over: int) -> tuple[list[float], list[float]]:
        """Log goodput of every ladder k over that of `over`, and the standard errors."""
        row = self.ladder.index(over)
        covariance = self.length_covariance + self.step_covariance
        own = covariance.diagonal()
        variance = np.maximum(own + own[row] - 2 * covariance[row], 0.0)
        gains: list[float] = (self.log_goodput - self.log_goodput[row]).tolist()
        errors: list[float] = np.sqrt(variance).tolist()
        return gains, errors

    def gain(self, k: int, over: int) -> tuple[float, float]:
        """Log goodput of `k` over that of `over`, and its standard error."""
        gains, errors = self.gains(over)
        row = self.ladder.index(k)
        return gains[row], errors[row]


def score(lengths: Lengths, costs: Cost, load: int) -> Scores:
    """Scores of the ladder at `load`, one of the buckets of `costs`."""
    width = len(costs.ladder)
    position = costs.loads.index(load)
    cells = slice(position * width, (position + 1) * width)
    request_steps, counted = costs.requests[position]
    requests = float(request_steps / counted) if counted > 0 else float(load)
    return Scores(
        load=load,
        ladder=costs.ladder,
        requests=requests,
        log_length=lengths.log,
        log_step=costs.mean[cells],
        log_goodput=math.log(requests) + lengths.log - costs.mean[cells],
        length_covariance=lengths.covariance,
        step_covariance=costs.covariance[cells, cells],
        steps=costs.steps[cells],
        known=lengths.known & cost.is_own(costs, load),
        outdated=costs.seen[cells] < costs.changed,
    )


def goodput(scores: Scores, k: int) -> Interval:
    """Tokens per second of one engine at ladder k `k`, with its 95 % interval."""
    row = scores.ladder.index(k)
    return _intervals(scores.log_goodput, scores.length_covariance + scores.step_covariance)[row]


def interval(log: float, variance: float) -> Interval:
    """Value and 95 % interval of a quantity whose logarithm is `log` with `variance`."""
    return _intervals(np.asarray([log]), np.asarray([[variance]]))[0]


def view(scores: Scores, beliefs: Acceptance, lengths: Lengths, k: int, recommended: int, observed: bool) -> BucketView:
    """What is known at a load, for people."""
    rates = _intervals(scores.log_goodput, scores.length_covariance + scores.step_covariance)
    seconds = _intervals(scores.log_step, scores.step_covariance)
    tokens = _intervals(scores.log_length, scores.length_covariance)
    known, steps, survival = scores.known.tolist(), scores.steps.tolist(), lengths.survival.tolist()
    candidates = tuple(
        Candidate(
            k=candidate,
            goodput=rates[row],
            step_seconds=seconds[row],
            acceptance_length=tokens[row],
            steps=int(steps[row]),
            firing_rate=acceptance.firing_rate(beliefs, row),
            survival=tuple(survival[row][:candidate]),
            borrowed=not known[row],
        )
        for row, candidate in enumerate(scores.ladder)
    )
    return BucketView(scores.load, k, recommended, observed, candidates)


def _intervals(log: Array, covariance: Array) -> list[Interval]:
    half = Z95 * np.sqrt(np.maximum(covariance.diagonal(), 0.0))
    ends = np.exp(np.clip([log, log - half, log + half], -LARGEST_LOG, LARGEST_LOG))
    return [Interval(*row) for row in ends.T.tolist()]
