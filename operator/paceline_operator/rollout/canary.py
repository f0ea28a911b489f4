"""Is a canary as good as the pods beside it? Evidence of the same time in, a judgement with its numbers out. Pure.

Goodput is compared step by step of the same kind (load, context, prompt tokens): traffic need not be shared evenly, and
at one load goodput and time per output token say the same. Times of whole requests, from vLLM's histograms, speak
against a canary where they are surely longer; they stand in for goodput where the engine has no plugin.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Canary
from paceline_operator.rollout.contract import ASKED
from paceline_operator.rollout.evidence import Side, Window, Windows
from paceline_operator.rollout.situation import Judgement

LEAST_WINDOWS = 4
"""Of a kind on each side: fewer have no spread that one could trust."""
LEAST_REQUESTS = 20
NORMAL = 1.96
SLOW_QUANTILE, MIDDLE = 0.95, 0.5
LIKE_LOADS = 1.25
"""Mean loads whose ratio is within this are alike: times per output token of whole requests may be compared."""


class Interval(NamedTuple):
    """An estimate with its 95 % interval."""

    value: float
    low: float
    high: float


def judge(limits: Canary, stable: Side, canary: Side) -> Judgement:
    """`good` False as soon as anything is surely worse than `limits` allow, True once goodput is surely not."""
    if found := _failing(limits, stable, canary) or _breaking(limits, stable, canary):
        return found
    lost, slower = limits.max_goodput_loss_percent / 100, limits.max_latency_increase_percent / 100
    ratio = goodput_ratio(stable.windows, canary.windows)
    if ratio is not None and ratio.high < 1 - lost:
        return Judgement(False, Reason.GOODPUT_LOST, f"{_told(ratio)}; rollout.canary allows a loss of {lost:.0%}")
    one, other = stable.requests, canary.requests
    if share := _slower(one.first_token, other.first_token, SLOW_QUANTILE, slower):
        text = (
            f"{share.value:.0%} of its requests (at least {share.low:.0%}) had their first token later than the 95th "
        )
        text += f"percentile of the other pods and {slower:.0%} more; 5 % would be as many as theirs"
        return Judgement(False, Reason.TTFT_INCREASED, text)
    alike = _alike(stable.windows, canary.windows)
    if alike and (share := _slower(one.token, other.token, MIDDLE, slower)):
        text = (
            f"{share.value:.0%} of its requests (at least {share.low:.0%}) took longer per output token than half of "
        )
        text += f"those of the other pods and {slower:.0%} more"
        return Judgement(False, Reason.TPOT_INCREASED, text)
    if limits.output_contract and min(stable.answers.given, canary.answers.given) < ASKED:
        return Judgement(None, Reason.CANARY_UNJUDGED, "its output contract was not asked often enough yet")
    if ratio is not None and ratio.low >= 1 - lost:
        return Judgement(True, Reason.CANARY_GOOD, _told(ratio))
    if ratio is not None:
        text = f"whether it loses more than {lost:.0%} of goodput is not sure yet"
        return Judgement(None, Reason.CANARY_UNJUDGED, text)
    least = min(_count(one.token), _count(other.token))
    if not stable.windows and not canary.windows and least >= 5 * LEAST_REQUESTS:
        text = "its requests took no longer per output token, nor to the first, than those of the other pods"
        return Judgement(True, Reason.CANARY_GOOD, text)
    text = "too little is known of it: there is no load at which it and another pod both decoded enough"
    return Judgement(None, Reason.CANARY_UNJUDGED, text)


def goodput_ratio(stable: Windows, canary: Windows) -> Interval | None:
    """Goodput of the canary over that of the others, where both had enough steps of one kind; kinds count by the steps
    that both have."""
    logs, variances, weights, freedom = [], [], [], 0
    for kind in sorted(stable.keys() & canary.keys()):
        one, other = stable[kind], canary[kind]
        if min(len(one), len(other)) >= LEAST_WINDOWS:
            (mean, variance), (mean_c, variance_c) = _mean(one), _mean(other)
            logs.append(mean_c - mean)
            variances.append(variance + variance_c)
            weights.append(min(_steps(one), _steps(other)))
            freedom += min(len(one), len(other)) - 1
    if not logs:
        return None
    total = sum(weights)
    value = sum(w * x for w, x in zip(weights, logs, strict=True)) / total
    error = math.sqrt(sum(w * w * v for w, v in zip(weights, variances, strict=True))) / total
    # Close to Student's quantile: 3.0 at 3 degrees of freedom (3.18), 2.28 at 10 (2.23), and towards 1.96.
    half = (NORMAL + 3.2 / freedom) * error
    return Interval(math.exp(value), math.exp(value - half), math.exp(value + half))


def wilson(hits: float, of: float) -> Interval:
    """A share with its 95 % score interval (Wilson); `of` above 0."""
    z, share = NORMAL, hits / of
    middle, spread = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    scale = 1 + z * z / of
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return Interval(share, max(0.0, min(low, share)), min(1.0, max(high, share)))  # rounding apart, it holds the share


def _failing(limits: Canary, stable: Side, canary: Side) -> Judgement | None:
    one, other = stable.requests, canary.requests
    if other.answered < LEAST_REQUESTS and other.failed < LEAST_REQUESTS / 4:
        return None
    share = wilson(other.failed, max(other.answered, other.failed))
    beside = wilson(one.failed, one.answered) if one.answered >= LEAST_REQUESTS else Interval(0.0, 0.0, 0.0)
    allowed = limits.max_errors_permille / 1000
    if share.low <= beside.high + allowed:
        return None
    text = f"{share.value:.1%} of its requests failed (at least {share.low:.1%}), {beside.value:.1%} of those of the "
    return Judgement(False, Reason.REQUESTS_FAILED, text + f"other pods; rollout.canary allows {allowed:.1%} more")


def _breaking(limits: Canary, stable: Side, canary: Side) -> Judgement | None:
    one, other = stable.answers, canary.answers
    if limits.output_contract is None or min(one.given, other.given) < ASKED:
        return None
    if wilson(other.broken, other.given).low <= wilson(one.broken, one.given).high:
        return None
    text = f"{other.broken} of its {other.given} answers broke rollout.canary.outputContract, {one.broken} of "
    return Judgement(False, Reason.OUTPUT_CONTRACT, f"{text}{one.given} of another pod did")


def _slower(
    stable: Mapping[float, float], canary: Mapping[float, float], quantile: float, more: float
) -> Interval | None:
    """The share of the canary's requests beyond the others' quantile and `more`, where it is surely larger than theirs.

    Requests in the bucket of that limit count as within it: where in it they are is not known."""
    if min(_count(stable), _count(canary)) < LEAST_REQUESTS:
        return None
    limit = _quantile(stable, quantile) * (1 + more)
    if not math.isfinite(limit):
        return None
    within = next((canary[edge] for edge in sorted(canary) if edge >= limit), _count(canary))
    share = wilson(max(0.0, _count(canary) - within), _count(canary))
    return share if share.low > 1 - quantile else None


def _quantile(histogram: Mapping[float, float], quantile: float) -> float:
    wanted = quantile * _count(histogram)
    return next((edge for edge in sorted(histogram) if histogram[edge] >= wanted), math.inf)


def _count(histogram: Mapping[float, float]) -> float:
    return max(histogram.values(), default=0.0)


def _alike(stable: Windows, canary: Windows) -> bool:
    """Whether both had about the same load, or nothing is known of it."""
    loads = [_mean_load(windows) for windows in (stable, canary)]
    if None in loads:
        return loads == [None, None]
    return max(loads) <= LIKE_LOADS * min(loads)  # type: ignore[type-var, operator]


def _mean_load(windows: Windows) -> float | None:
    steps = {kind: _steps(found) for kind, found in windows.items()}
    total = sum(steps.values())
    return sum(kind.load * count for kind, count in steps.items()) / total if total else None


def _mean(windows: tuple[Window, ...]) -> tuple[float, float]:
    """Mean of the logarithm of goodput, by steps, and the variance of that mean."""
    total = _steps(windows)
    mean = sum(w.steps * math.log(w.goodput) for w in windows) / total
    spread = sum((w.steps * (math.log(w.goodput) - mean)) ** 2 for w in windows)
    return mean, spread / total**2 * len(windows) / (len(windows) - 1)


def _steps(windows: tuple[Window, ...]) -> int:
    return sum(window.steps for window in windows)


def _told(ratio: Interval) -> str:
    return (
        f"goodput at the same loads is {ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f}) of that of the other pods"
    )
