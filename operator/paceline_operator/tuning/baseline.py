"""The live baseline: goodput of the k in force over that of k=0 in the same engines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from paceline_operator.tuning.goodput import Scores, interval
from paceline_operator.tuning.model import Interval


def ratio_to_k0(scores: Iterable[Scores], table: tuple[int, ...], weights: Mapping[int, float]) -> Interval | None:
    """Mean over the loads seen lately (`weights`: load bucket -> time), of loads where both ks are measured.

    Says nothing of an engine without a drafter: k=0 in a speculative engine still pays for a draft pass.
    """
    total = log = variance = 0.0
    for one in scores:
        weight, k = weights.get(one.load, 0.0), table[one.load]
        measured = {k for k, known in zip(one.ladder, one.known, strict=True) if known}
        if weight <= 0 or not {0, k} <= measured:
            continue
        gain, error = one.gain(k, 0)
        total, log, variance = total + weight, log + weight * gain, variance + (weight * error) ** 2
    if total <= 0 or not math.isfinite(log):
        return None
    return interval(log / total, variance / total**2)
