"""Which variant, if any, is worth changing the serving for. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, geometric_mean

from paceline_operator.api.experiment import BASELINE, SERVING
from paceline_operator.experiment.results import VariantResult
from paceline_operator.experiment.verdict import Comparison, Judge, Word, compare


@dataclass(frozen=True)
class Winner:
    """The variant to run; SERVING: as it is."""

    variant: str
    message: str


def winner(results: Sequence[VariantResult]) -> Winner:
    """Of `results`, the baseline first. Who failed does not win.

    Of a serving that did not fail: the largest mean throughput of those that are shown to be better than it at some
    load and worse at none; where none is, it stays. Of one that did: the largest of those that did not.
    """
    serving = next((one for one in results if one.variant == SERVING), None)
    if serving is None:
        return Winner(SERVING, "the serving as it stands was not measured: nothing is shown against it")
    sound = [one for one in results if one is not serving and one.windows and not faults(one)]
    against = compare((serving, *sound))
    if faults(serving):
        return _remedy(serving, sound)
    shown = {one.variant: _places(against, one.variant) for one in sound}
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


def faults(result: VariantResult) -> int:
    """Windows in which its engine failed."""
    return sum(window.fault_seconds is not None for window in result.windows)


def _remedy(serving: VariantResult, sound: Sequence[VariantResult]) -> Winner:
    said = f"the serving's engine failed in {faults(serving)} of {len(serving.windows)} windows"
    rates = {
        one.variant: (geometric_mean(found), sum(window.seconds for window in one.windows))
        for one in sound
        if (found := [window.tokens_per_second for window in one.windows if window.tokens])
    }
    if not rates:
        return Winner(SERVING, f"{said}, and so did all the others")
    best = max(rates, key=lambda name: rates[name])
    return Winner(
        best,
        f"{said}; {'no speculation' if best == BASELINE else best} gave most of those that did not fail, over "
        f"{rates[best][1]:.0f} s: that it never does is not proven",
    )


def _places(comparisons: Sequence[Comparison], variant: str) -> dict[Word, set[int]]:
    return {word: {one.load for one in comparisons if one.variant == variant and one.word is word} for word in Word}


def _mean(comparisons: Sequence[Comparison], variant: str) -> float:
    found = [one for one in comparisons if one.variant == variant and one.judge is Judge.THROUGHPUT]
    return fmean(math.log(one.ratio) for one in found) if found else -math.inf
