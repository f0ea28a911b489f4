"""What the cost cells of one engine's window say: a robust mean step time for each (load, k)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import lru_cache
from operator import add
from typing import NamedTuple, TypeAlias

from paceline_engine.protocol import (
    CONTEXT_EDGES,
    HISTOGRAM_BASE,
    LAUNCHED,
    PROMPT_EDGES,
    CostCell,
    Verification,
    context_bucket,
    prompt_bucket,
)

CONTEXTS = {edge: position for position, edge in enumerate(CONTEXT_EDGES)}
PROMPTS = {edge: position for position, edge in enumerate(PROMPT_EDGES)}
OUTLIER_FACTOR = 5.0
OUTLIER_BINS = math.log(OUTLIER_FACTOR) / math.log(HISTOGRAM_BASE)
OUTLIER_SHARE = 0.05
"""Steps above five times a cell's median, where they are at most a twentieth (or one), are stalls of the process (a
kernel compiled at first use takes seconds), not the cost of k."""


class Timing(NamedTuple):
    """Steps of one (load, k), alike in contexts and prompts, in one window of one engine."""

    log_mean: float
    """Log of the mean step seconds, stalls left out."""
    variance: float
    """Of that, from the scatter of the steps."""
    steps: int
    request_steps: float
    prompt_tokens: float
    """A step's mean."""
    mixed: float = 0.0
    """Share of the steps that have prompts in them, or in a step launched meanwhile."""
    rough: bool = False
    """Whether the same steps are in another timing, too, and this one is of those with prompts alone."""


Sums: TypeAlias = dict[int, list[float]]


def timings(
    window: Iterable[CostCell], loads: tuple[int, ...], ladder: tuple[int, ...], every_mode: bool = False
) -> dict[int, Timing]:
    """Timings by cell index; loads, ks and contexts outside are left out, and, but for `every_mode`, steps that
    adaptive verification cut.

    Where a step is launched while another runs, the longer of the two is what the clock shows. Nobody can tell which:
    steps take the same with few prompts and with many, or with those of the next alone. The mean over all of them is
    true all the same. So there they are told together, and those with prompts once more by themselves.

    Index: ((prompt position * contexts + context position) * len(loads) + load position) * len(ladder) + position of k.
    """
    rows, columns, width = places(loads), places(ladder), len(ladder)
    sums: Sums = {}
    rough: Sums = {}
    window = tuple(window)
    apart = all(cell.prompt != LAUNCHED for cell in window)
    size = len(CONTEXTS) * len(loads) * width
    for cell in window:
        # Fewer verified than configured is how ngram is: that is part of what k costs. More are drafts of a larger k
        # before. At k=0 nothing is verified, in whichever mode.
        k = cell.k_drafted
        cut = k > 0 and not every_mode and cell.verification is not Verification.ALL
        if cut or cell.k_verified > k:
            continue
        row, column = rows.get(cell.load), columns.get(k)
        if row is None or column is None or (kept := robust_mean(cell)) is None:
            continue
        mean, variance, steps = kept
        at, share = (CONTEXTS[context_bucket(cell.context)] * len(loads) + row) * width + column, steps / cell.steps
        # Squares, so that what steps with and without prompts differ by is scatter, too.
        squares = steps * mean * mean * (1.0 + variance)
        tokens = cell.prompt_tokens * share
        new = [steps, steps * mean, squares, cell.request_steps * share, tokens, steps if cell.prompt else 0.0]
        if cell.prompt and apart:
            at += PROMPTS[prompt_bucket(cell.prompt)] * size
        elif cell.prompt:
            _add(rough, at + size, new)
        _add(sums, at, new)
    return {at: _timing(found) for at, found in sums.items()} | {
        at: _timing(found)._replace(steps=0, request_steps=0.0, rough=True) for at, found in rough.items()
    }


def _add(sums: Sums, at: int, new: list[float]) -> None:
    sums[at] = list(map(add, sums[at], new)) if at in sums else new


def _timing(sums: list[float]) -> Timing:
    steps, seconds, squares, request_steps, tokens, mixed = sums
    mean = seconds / steps
    variance = max(squares / steps / (mean * mean) - 1.0, 1e-4)
    return Timing(math.log(mean), min(variance, 1.0) / steps, int(steps), request_steps, tokens / steps, mixed / steps)


@lru_cache(maxsize=256)
def places(values: tuple[int, ...]) -> Mapping[int, int]:
    """Position of each."""
    return {value: position for position, value in enumerate(values)}


def robust_mean(cell: CostCell) -> tuple[float, float, int] | None:
    """Mean step seconds without stalls, the variance of a step's logarithm, and the steps that were kept.

    None where a cell holds no time, or so little that its square is none. Stalls are found in the histogram (its bins
    are 5 % wide) and taken out of the sums at their bin's middle.
    """
    if cell.steps < 1 or cell.seconds <= 0:
        return None
    histogram, steps, seconds, squared = cell.histogram, cell.steps, cell.seconds, cell.seconds_squared
    # Where the whole of it is narrower than what makes an outlier, there is none.
    wide = bool(histogram) and max(histogram) - min(histogram) > OUTLIER_BINS
    if wide and (counted := sum(histogram.values())):
        bins = sorted(histogram.items())
        reached, median = 0, bins[0][0]
        for median, count in bins:  # noqa: B007 the bin where half is reached is the result
            reached += count
            if 2 * reached >= counted:
                break
        limit = median + OUTLIER_BINS
        stalls = [(position, count) for position, count in bins if position > limit]
        lost = sum(count for _, count in stalls)
        if 0 < lost <= max(1.0, OUTLIER_SHARE * counted):
            times = [(HISTOGRAM_BASE ** (position + 0.5) * 1e-6, count) for position, count in stalls]
            seconds -= sum(time * count for time, count in times)
            squared -= sum(time * time * count for time, count in times)
            steps -= lost
            ceiling = steps * HISTOGRAM_BASE**limit * 1e-6
            floor = steps * HISTOGRAM_BASE ** bins[0][0] * 1e-6
            seconds = min(max(seconds, floor), ceiling)
    if steps < 1 or seconds <= 0:
        return None
    mean = seconds / steps
    if not mean * mean:
        return None
    variance = max(squared / steps / (mean * mean) - 1.0, 1e-4)
    return mean, min(variance, 1.0), steps
