"""A step's cost in parts: fixed, per drafted token, per verified token; and the two curves that re-price AV.

Step seconds are taken as V(requests x (k + 1)) + k x (a + b x requests): verification by tokens, drafting by position.
Cells of the same number of tokens and other ks tell the two apart. V is linear between knots, two a doubling of tokens.
For people, profiles and AV's own prices; choices of k use the measured cells, whose cliffs no such sum has.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paceline_engine.protocol import Cost as CurvePoint
from paceline_operator.tuning.acceptance import Array
from paceline_operator.tuning.cost import Cost, own

MIN_LOADS, MIN_KS = 2, 3
TRUSTED_ERROR = 0.1
"""Of the parts, up to which they price what was not measured."""
SMOOTHNESS = 0.02
"""Weight of the bends of V against the relative errors of cells."""


@dataclass(frozen=True)
class Parts:
    """Seconds."""

    tokens: Array
    verify: Array
    """V at `tokens`; nondecreasing."""
    draft: float
    draft_per_request: float
    error: float
    """Root mean square of the relative errors over the measured cells."""

    def drafting(self, requests: float) -> float:
        """Seconds of one more draft position at `requests`."""
        return self.draft + self.draft_per_request * requests

    def verifying(self, tokens: float) -> float:
        """Seconds of a step that verifies `tokens` and drafts nothing."""
        return float(np.interp(tokens, self.tokens, self.verify))


@dataclass(frozen=True)
class Decomposition:
    """A step's seconds at one load: fixed + drafted * k + verified * load * (k + 1), V straightened over its ks."""

    load: int
    fixed: float
    drafted: float
    """Of one more draft position."""
    verified: float
    """Of one more token in the verification."""


def parts(costs: Cost) -> Parts | None:
    """The parts of what is measured; None below two loads of three ks, where they cannot be told apart."""
    measured = own(costs)
    if (measured.sum(axis=1) >= MIN_KS).sum() < MIN_LOADS:
        return None
    request_steps, steps = costs.requests.T
    loads = np.where(steps > 0, request_steps / np.maximum(steps, 1e-9), np.asarray(costs.loads, float))
    rows, columns = np.nonzero(measured)
    requests, ks = loads[rows], np.asarray(costs.ladder, float)[columns]
    seconds = np.exp(costs.mean[: measured.size].reshape(measured.shape)[rows, columns])
    tokens = requests * (ks + 1)
    count = max(2, int(np.ceil(2 * np.log2(tokens.max() / tokens.min()))) + 1)
    knots = np.geomspace(tokens.min(), tokens.max() * 1.0001, count)
    hats = np.stack([np.interp(tokens, knots, row) for row in np.eye(count)], axis=1)
    design = np.concatenate([hats, ks[:, None], (ks * requests)[:, None]], axis=1) / seconds[:, None]
    scale = SMOOTHNESS / float(np.median(seconds))
    bends = np.zeros((count - 2, count + 2))
    for row in range(count - 2):
        left, right = knots[row + 1] - knots[row], knots[row + 2] - knots[row + 1]
        bends[row, row : row + 3] = scale * np.asarray([right, -left - right, left]) / (left + right)
    prior = np.zeros((2, count + 2))
    prior[0, -2], prior[1, -1] = scale, scale * float(np.median(requests)) * 10
    whole = np.concatenate([design, bends, prior])
    target = np.concatenate([np.ones(seconds.size), np.zeros(bends.shape[0] + 2)])
    found = np.linalg.lstsq(whole, target, rcond=None)[0]
    found[-2:] = np.maximum(found[-2:], 0.0)
    found[:count] = np.maximum.accumulate(np.maximum(found[:count], 0.0))
    error = float(np.sqrt(np.square(design @ found - 1.0).mean()))
    return Parts(knots, found[:count], float(found[-2]), float(found[-1]), error)


def decomposed(costs: Cost, found: Parts, load: int) -> Decomposition:
    """The parts at one load."""
    few, many = float(load), float(load * (costs.ladder[0] + 1))
    low, high = found.verifying(few), found.verifying(many)
    verified = (high - low) / (many - few) if many > few else 0.0
    return Decomposition(load, max(0.0, low - verified * few), found.drafting(load), verified)


def curves(costs: Cost, found: Parts, k: int) -> tuple[tuple[CurvePoint, ...], tuple[CurvePoint, ...]]:
    """Drafting k tokens by requests, and verifying by tokens, as a policy carries them."""
    draft = tuple(CurvePoint(at=load, microseconds=max(1e-3, 1e6 * k * found.drafting(load))) for load in costs.loads)
    knots = zip(found.tokens.tolist(), found.verify.tolist(), strict=True)
    points = {round(at): 1e6 * seconds for at, seconds in knots}
    verify = tuple(CurvePoint(at=at, microseconds=max(1e-3, value)) for at, value in sorted(points.items()))
    return draft, verify
