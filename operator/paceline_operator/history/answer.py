"""Prometheus' answer to a range query → seconds by number of requests, or the reason why it tells nothing. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from paceline_operator.api.conditions import Reason
from paceline_operator.history.load import Absence, Load, Source, distribution
from paceline_operator.history.question import Question

STALE_SECONDS = 600.0
"""Twice Prometheus' look-back (5 min): a series that is scraped has a point that is newer."""
MAX_REQUESTS = 1_000_000


def load(asked: Question, running: object, demand: object, now: float) -> Load | Absence:
    """Of the answers (data.result of a matrix) to both queries at `now`, seconds since the epoch."""
    found = [_seconds(asked, answer, now) for answer in (running, demand)]
    for one in found:
        if isinstance(one, Absence):
            return one
    of_pod, of_all = (distribution(one) for one in found if not isinstance(one, Absence))
    if of_pod is None or of_all is None:
        return _empty(asked)
    return Load(Source.PROMETHEUS, of_pod, of_all)


def _seconds(asked: Question, answer: object, now: float) -> dict[int, float] | Absence:
    try:
        points = list(_points(answer))
    except (TypeError, ValueError, KeyError, IndexError, OverflowError, AttributeError) as error:
        text = f"the answer is no matrix of numbers: {type(error).__name__}"
        return Absence(Reason.HISTORY_ERROR, text)
    if not points:
        return _empty(asked)
    numbers = [(at, value) for at, value in points if math.isfinite(value) and 0 <= value <= MAX_REQUESTS]
    if not numbers:
        return Absence(Reason.HISTORY_NAN, f"none of {len(points)} points is a number of requests")
    newest = max(at for at, _ in numbers)
    if now - newest > STALE_SECONDS + asked.step_seconds:
        minutes = int(STALE_SECONDS + asked.step_seconds) // 60
        return Absence(
            Reason.HISTORY_STALE, f"series {asked.matchers} have no point of the last {minutes} minutes: is it scraped?"
        )
    seconds: dict[int, float] = {}
    for _, value in numbers:
        seconds[round(value)] = seconds.get(round(value), 0.0) + asked.step_seconds
    return seconds


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
