"""Is a canary as good as the pods beside it? Evidence of the same time in, a judgement with its numbers out. Pure.

Goodput is compared step by step of the same kind (load, context, prompt tokens) and time: traffic need not be shared
evenly, and at one load goodput and time per output token say the same. Times of whole requests, from vLLM's histograms,
speak against a canary where they are surely longer; they stand in for goodput where the engine has no plugin.

Whoever looks at an interval after each reading and acts on the first that tells sees many: each has to be so wide that
in 95 of 100 watches none of them misses the truth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Canary
from paceline_operator.rollout.contract import ASKED
from paceline_operator.rollout.evidence import Pair, Side
from paceline_operator.rollout.situation import Judgement

LEAST_PAIRS = 5
"""Fewer have no spread that one could trust."""
LEAST_REQUESTS = 20
SURE = 3.0
"""Standard errors on each side of an estimate. Looked at after each of 5 to 360 readings, such intervals all hold the
truth in 95 of 100 watches (Siegmund, Sequential Analysis, 1985: the normed random walk leaves +-z between m and n with
probability phi(z) ((z - 1/z) log(n/m) + 4/z), 0.056); those of 1.96, right for one look, in 55 (simulated)."""
ONCE = 1.96
"""The same for what is looked at once."""
STICKIEST = 0.8
"""Correlation of neighbouring pairs that is believed at most."""
SLOW_QUANTILE, MIDDLE = 0.95, 0.5
LIKE_LOADS = 1.25
"""Mean loads whose ratio is within this are alike: times per output token of whole requests may be compared."""


class Interval(NamedTuple):
    """An estimate, and between what it surely lies."""

    value: float
    low: float
    high: float


def judge(limits: Canary, stable: Side, canary: Side, pairs: Sequence[Pair] = ()) -> Judgement:
    """`good` False as soon as anything is surely worse than `limits` allow, True once goodput is surely not."""
    if found := _failing(limits, stable, canary) or _breaking(limits, stable, canary):
        return found
    lost, slower = limits.max_goodput_loss_percent / 100, limits.max_latency_increase_percent / 100
    same, most, least = _ratios(pairs)
    for ratio, bound in ((same, ""), (most, "at most ")):
        if ratio is not None and ratio.high < 1 - lost:
            text = f"{_told(ratio, bound)}; rollout.canary allows a loss of {lost:.0%}"
            return Judgement(False, Reason.GOODPUT_LOST, text)
    one, other = stable.requests, canary.requests
    if share := _slower(one.first_token, other.first_token, SLOW_QUANTILE, slower):
        text = (
            f"{share.value:.0%} of its requests (at least {share.low:.0%}) had their first token later than the 95th "
        )
        text += f"percentile of the other pods and {slower:.0%} more; 5 % would be as many as theirs"
        return Judgement(False, Reason.TTFT_INCREASED, text)
    if _alike(stable, canary) and (share := _slower(one.token, other.token, MIDDLE, slower)):
        text = (
            f"{share.value:.0%} of its requests (at least {share.low:.0%}) took longer per output token than half of "
        )
        text += f"those of the other pods and {slower:.0%} more"
        return Judgement(False, Reason.TPOT_INCREASED, text)
    if limits.output_contract and min(stable.answers.given, canary.answers.given) < ASKED:
        return Judgement(None, Reason.CANARY_UNJUDGED, "its output contract was not asked often enough yet")
    for ratio, bound in ((same, ""), (least, "at least ")):
        if ratio is not None and ratio.low >= 1 - lost:
            return Judgement(True, Reason.CANARY_GOOD, _told(ratio, bound))
    if most is not None or least is not None:
        text = f"whether it loses more than {lost:.0%} of goodput is not sure yet"
        return Judgement(None, Reason.CANARY_UNJUDGED, text)
    if not stable.steps and not canary.steps and min(_count(one.token), _count(other.token)) >= 5 * LEAST_REQUESTS:
        text = "its requests took no longer per output token, nor to the first, than those of the other pods"
        return Judgement(True, Reason.CANARY_GOOD, text)
    text = "too little is known of it: there is no load at which it and another pod both decoded enough"
    return Judgement(None, Reason.CANARY_UNJUDGED, text)


def _ratios(pairs: Sequence[Pair]) -> tuple[Interval | None, Interval | None, Interval | None]:
    """Goodput of the canary over that of the others: (at the same loads, at most, at least). What was seen at the same
    loads is in all three."""
    orders = ({0}, {0, -1}, {0, 1})
    same, most, least = (goodput_ratio([pair for pair in pairs if pair.order in each]) for each in orders)
    return same, most, least


def goodput_ratio(pairs: Sequence[Pair]) -> Interval | None:
    """Goodput of the canary over that of the others, where both had enough steps of one kind and time; pairs count by
    their steps."""
    count, total = len(pairs), sum(pair.steps for pair in pairs)
    if count < LEAST_PAIRS:
        return None
    value = math.fsum(pair.log * pair.steps for pair in pairs) / total
    apart = [pair.steps * (pair.log - value) for pair in pairs]
    squares = math.fsum(each * each for each in apart)
    error = math.sqrt(squares * count / (count - 1) * _stickiness(apart, squares)) / total
    half = _sure(count - 1) * error
    return Interval(math.exp(value), math.exp(value - half), math.exp(value + half))


def _stickiness(apart: Sequence[float], squares: float) -> float:
    """By how much more the mean of a sequence varies whose neighbours are alike: noise lasts longer than a reading.

    (1 + r) / (1 - r), with the correlation r of neighbours freed of its bias in short sequences (Kendall, Biometrika
    1954: about -(1 + 3 r) / n).
    """
    if not squares:
        return 1.0
    count = len(apart)
    found = math.fsum(one * other for one, other in pairwise(apart)) / squares
    sticky = min(STICKIEST, max(0.0, (found * count + 1) / (count - 3)))
    return (1 + sticky) / (1 - sticky)


def _sure(freedom: int) -> float:
    """SURE for an error that was estimated itself: close to Student's quantile of the same probability, never below it
    (6.6 at 4 degrees of freedom, 3.96 at 10, 3.27 at 30)."""
    return SURE + 8 / freedom + 32 / freedom**2


def wilson(hits: float, of: float, z: float = SURE) -> Interval:
    """A share with its score interval (Wilson) of `z` standard errors; `of` above 0."""
    share = hits / of
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
    if wilson(other.broken, other.given, ONCE).low <= wilson(one.broken, one.given, ONCE).high:
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


def _alike(stable: Side, canary: Side) -> bool:
    """Whether both had about the same load, or nothing is known of it."""
    loads = [side.load_steps / side.steps if side.steps else None for side in (stable, canary)]
    if None in loads:
        return loads == [None, None]
    return max(loads) <= LIKE_LOADS * min(loads)  # type: ignore[type-var, operator]


def _told(ratio: Interval, bound: str = "") -> str:
    """`bound`: "at most " or "at least ", of pairs whose loads differ."""
    numbers = f"{ratio.value:.3f} ({ratio.low:.3f}-{ratio.high:.3f})"
    where = "though they had another load" if bound else "at the same loads and times"
    return f"goodput {where} is {bound}{numbers} of that of the other pods"
