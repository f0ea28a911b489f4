"""Which variant, if any, is worth changing the serving for. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from paceline_operator.api.experiment import BASELINE, SERVING
from paceline_operator.experiment.results import VariantResult
from paceline_operator.experiment.verdict import Comparison, Judge, Word, compare


@dataclass(frozen=True)
class Winner:
    """The variant to run; SERVING: as it is."""

    variant: str
    message: str


def winner(results: Sequence[VariantResult]) -> Winner:
    """Of `results`, the baseline first: the largest mean throughput of those that are shown to be better than the
    serving at some load and worse at none. Where none is, the serving stays."""
    serving = next((one for one in results if one.variant == SERVING), None)
    if serving is None:
        return Winner(SERVING, "the serving as it stands was not measured: nothing is shown against it")
    against = compare((serving, *(one for one in results if one.variant != SERVING)))
    shown = {one.variant: _places(against, one.variant) for one in results if one.variant != SERVING}
    better = [name for name, found in shown.items() if found[Word.BETTER] and not found[Word.WORSE]]
    if not better:
        return Winner(SERVING, "no variant is shown to be better than the serving at some load and worse at none")
    best = max(better, key=lambda name: (_mean(against, name), name))
    what = "no speculation" if best == BASELINE else best
    return Winner(
        best,
        f"{what} is better than the serving at {', '.join(map(str, sorted(shown[best][Word.BETTER])))} requests and "
        f"worse at none; {math.exp(_mean(against, best)):.2f}× its throughput over all loads",
    )


def _places(comparisons: Sequence[Comparison], variant: str) -> dict[Word, set[int]]:
    return {word: {one.load for one in comparisons if one.variant == variant and one.word is word} for word in Word}


def _mean(comparisons: Sequence[Comparison], variant: str) -> float:
    found = [one for one in comparisons if one.variant == variant and one.judge is Judge.THROUGHPUT]
    return fmean(math.log(one.ratio) for one in found) if found else -math.inf
