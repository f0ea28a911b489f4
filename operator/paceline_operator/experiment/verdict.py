"""Better, worse, or no difference shown: each variant against the baseline, at each load. Pure.

The unit is a round: the ratio of a variant's window to the baseline's of the same load and round, in logarithms, so
that what drifts from round to round falls out. Its mean is judged by Student's t. The variance is the larger of the
comparison's own and the one pooled over all variants of that load (residuals of rounds + variants): few rounds tell too
little of one variant's spread, and pooling alone would be unfair to a variant that is noisier than the others. Holm's
procedure over variants x loads x both judges (throughput, TPOT) keeps the chance that an experiment without any
difference shows one below 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from paceline_operator.experiment import student
from paceline_operator.experiment.results import VariantResult, Window
from paceline_operator.experiment.taint import clean, of_all

FAMILY_ERROR = 0.05
"""Chance of any false word in an experiment."""
POWER = 0.80
INTERVAL = 0.95
LARGE_PERCENT = 200.0
"""A smallest effect above this says no more than that there were too few rounds."""
SAME = 1e-12
"""Standard errors of a log ratio below this are rounding."""


class Judge(StrEnum):
    """What a variant is judged by."""

    THROUGHPUT = "throughput"
    TPOT = "tpot"


class Word(StrEnum):
    """What was shown."""

    BETTER = "better"
    WORSE = "worse"
    NO_DIFFERENCE = "no difference shown"


class Basis(StrEnum):
    """What a ratio is taken from."""

    CLEAN = "clean windows"
    DECODE = "all windows, time to first tokens taken out"
    RAW = "all windows"


@dataclass(frozen=True)
class Spread:
    """What the rounds of one comparison say of chance."""

    error: float
    """Standard error of the mean log ratio."""
    freedom: int


@dataclass(frozen=True)
class Comparison:
    """One variant against the baseline at one load, by one judge. Ratios are geometric means over rounds."""

    variant: str
    load: int
    judge: Judge
    ratio: float
    basis: Basis
    rounds: int
    raw_ratio: float
    raw_rounds: int
    spread: Spread | None = None
    p_value: float | None = None
    """After Holm."""
    word: Word = Word.NO_DIFFERENCE
    reason: str = ""
    smallest_percent: float | None = None
    """The smallest true difference that would have been shown in 80 % of such experiments."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """95 % interval of this ratio alone; the words take all comparisons together and so are stricter."""
        if self.spread is None:
            return None
        half = min(student.bound(self.spread.freedom, 1 - INTERVAL) * self.spread.error, 50.0)
        return self.ratio * math.exp(-half), self.ratio * math.exp(half)


Value = Callable[[Window], float | None]
Place = tuple[str, int, int]
"""Variant, load, round."""


def throughput(window: Window) -> float | None:
    """Output tokens per second of wall time."""
    return window.tokens_per_second or None


def tpot(window: Window) -> float | None:
    """Median time per output token, in milliseconds, as the client saw it."""
    return window.client.tpot.p50 or None if window.client.tpot else None


VALUES: Mapping[Judge, Value] = {Judge.THROUGHPUT: throughput, Judge.TPOT: tpot}


def compare(results: Sequence[VariantResult]) -> tuple[Comparison, ...]:
    """Every variant at every load, by both judges, where there is anything to compare. The baseline comes first."""
    good = {place for place, taints in of_all(results).items() if clean(taints)}
    loads = sorted({window.load for result in results for window in result.windows})
    found = [one for judge in Judge for load in loads for one in _at(results, load, judge, good)]
    return _judged(found)


def _at(results: Sequence[VariantResult], load: int, judge: Judge, good: set[Place]) -> list[Comparison]:
    value = VALUES[judge]
    raw = _logs(results, load, value)
    cleaned = _logs(results, load, value, good)
    decode = _logs(results, load, lambda window: window.decode_tokens_per_second)
    pooled = _pooled(cleaned)
    found: list[Comparison] = []
    for at, result in enumerate(results[1:], start=1):
        all_pairs, pairs, decoding = (_pairs(table, at) for table in (raw, cleaned, decode))
        if not all_pairs.size:
            continue
        basis, used = Basis.CLEAN, pairs
        if not pairs.size:
            by_decode = judge is Judge.THROUGHPUT and decoding.size
            basis, used = (Basis.DECODE, decoding) if by_decode else (Basis.RAW, all_pairs)
        found.append(
            Comparison(
                result.variant,
                load,
                judge,
                math.exp(used.mean()),
                basis,
                used.size,
                math.exp(all_pairs.mean()),
                all_pairs.size,
                _spread(pairs, pooled),
            )
        )
    return found


def _logs(
    results: Sequence[VariantResult], load: int, value: Value, good: set[Place] | None = None
) -> NDArray[np.float64]:
    """Rounds x variants; NaN where there is nothing, or nothing good."""
    last = max(window.round for result in results for window in result.windows)
    table = np.full((last + 1, len(results)), np.nan)
    for at, result in enumerate(results):
        for window in result.windows:
            kept = window.load == load and (good is None or (result.variant, load, window.round) in good)
            if kept and (one := value(window)):
                table[window.round, at] = math.log(one)
    return table


def _pairs(table: NDArray[np.float64], at: int) -> NDArray[np.float64]:
    """Log ratios to the baseline, a round each."""
    ratios = table[:, at] - table[:, 0]
    return ratios[~np.isnan(ratios)]


def _pooled(table: NDArray[np.float64]) -> tuple[float, int] | None:
    """Variance of a log ratio of two windows, and its degrees of freedom: residuals of rounds + variants."""
    rounds, variants = np.nonzero(~np.isnan(table))
    if not rounds.size:
        return None
    design = np.hstack([np.eye(table.shape[0])[rounds], np.eye(table.shape[1])[variants]])
    values = table[rounds, variants]
    fitted, _, rank, _ = np.linalg.lstsq(design, values)
    freedom = len(values) - int(rank)
    return (2 * float(np.sum((values - design @ fitted) ** 2)) / freedom, freedom) if freedom > 0 else None


def _spread(pairs: NDArray[np.float64], pooled: tuple[float, int] | None) -> Spread | None:
    if pairs.size < 2 or pooled is None:
        return None
    variance, freedom = pooled
    return Spread(math.sqrt(max(variance, float(pairs.var(ddof=1))) / pairs.size), freedom)


def _judged(found: Sequence[Comparison]) -> tuple[Comparison, ...]:
    family = [at for at, one in enumerate(found) if one.spread]
    values = holm(_p_values([found[at] for at in family]))
    judged = [replace(one, reason=_why_not(one)) for one in found]
    for at, p_value in zip(family, values, strict=True):
        one = found[at]
        word = Word.NO_DIFFERENCE
        if p_value < FAMILY_ERROR:
            word = Word.BETTER if (one.ratio > 1) == (one.judge is Judge.THROUGHPUT) else Word.WORSE
        smallest = _smallest(one, len(family))
        judged[at] = replace(
            one,
            p_value=p_value,
            word=word,
            reason=_unseen(smallest) if word is Word.NO_DIFFERENCE else "",
            smallest_percent=smallest,
        )
    return tuple(judged)


def _unseen(smallest: float) -> str:
    if smallest > LARGE_PERCENT:
        return "too few rounds to show anything but a multiple"
    return f"a difference below {smallest:.1f} % may have gone unseen"


def _why_not(one: Comparison) -> str:
    if one.basis is not Basis.CLEAN:
        return f"no round has clean windows of both: the ratio is of {one.basis}"
    return "one clean round has no spread: two are needed"


def _p_values(family: Sequence[Comparison]) -> list[float]:
    """Two-sided, each for itself."""
    found: list[float] = []
    for one in family:
        effect, spread = abs(math.log(one.ratio)), one.spread or Spread(math.inf, 1)
        statistic = effect / spread.error if spread.error >= SAME else (math.inf if effect >= SAME else 0.0)
        found.append(student.both_tails(spread.freedom, statistic))
    return found


def _smallest(one: Comparison, family: int) -> float:
    """In percent, at Holm's first and strictest step."""
    if one.spread is None:
        return math.inf
    effect = student.shift(one.spread.freedom, FAMILY_ERROR / family, POWER)
    return 100 * math.expm1(min(effect * one.spread.error, 50.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values, in the given order (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for left, at in enumerate(sorted(range(len(p_values)), key=lambda at: p_values[at])):
        largest = max(largest, min(1.0, (len(p_values) - left) * p_values[at]))
        adjusted[at] = largest
    return adjusted
