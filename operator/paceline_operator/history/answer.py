"""Prometheus' answer to a range query → seconds by number of requests, or the reason why it tells nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline_operator.api.conditions import Reason
from paceline_operator.history.load import Absence, Load, Source, distribution
from paceline_operator.history.question import Question

STALE_SECONDS = 600.0
"""Twice Prometheus' look-back (5 min): a series that is scraped has a point that is newer."""
MAX_REQUESTS = 1_000_000


def load(
    asked: Question, running: Mapping[int, float] | Absence, demand: Mapping[int, float] | Absence
) -> Load | Absence:
    """Of what the answers to both queries come to (`seconds`)."""
    if isinstance(running, Absence):
        return running
    if isinstance(demand, Absence):
        return demand
    of_pod, of_all = distribution(running), distribution(demand)
    if of_pod is None or of_all is None:
        return _empty(asked)
    return Load(Source.PROMETHEUS, of_pod, of_all)


def seconds(asked: Question, answer: object, now: float) -> Mapping[int, float] | Absence:
    """Requests -> seconds, of an answer (data.result of a matrix) at `now`, seconds since the epoch.

    Goes through the points once and keeps none: an answer may be large.
    """
    found: dict[int, float] = {}
    count, newest = 0, -math.inf
    try:
        for at, value in _points(answer):
            count += 1
            if math.isfinite(value) and 0 <= value <= MAX_REQUESTS:
                newest = max(newest, at)
                found[round(value)] = found.get(round(value), 0.0) + asked.step_seconds
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError) as error:
        text = f"the answer is no matrix of numbers: {type(error).__name__}"
        return Absence(Reason.HISTORY_ERROR, text)
    if not count:
        return _empty(asked)
    if not found:
        return Absence(Reason.HISTORY_NAN, f"none of {count} points is a number of requests")
    if now - newest > STALE_SECONDS + asked.step_seconds:
        minutes = int(STALE_SECONDS + asked.step_seconds) // 60
        return Absence(
            Reason.HISTORY_STALE, f"series {asked.matchers} have no point of the last {minutes} minutes: is it scraped?"
        )
    return found


def _points(answer: object) -> Iterator[tuple[float, float]]:
    if not isinstance(answer, Sequence) or isinstance(answer, str | bytes):
        raise TypeError
    for series in answer:
        values: Any = series["values"]
        for at, value in values:
            yield float(at), float(value)


def _empty(asked: Question) -> Absence:
    text = f"no series {asked.matchers}: see that Prometheus scrapes the pods, and set metrics.prometheus.labels"
    return Absence(Reason.HISTORY_EMPTY, text)
