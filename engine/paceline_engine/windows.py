"""Sums of steps: what one window of about a second holds, and how windows add up to an answer of `GET /samples`."""

from __future__ import annotations

from math import log
from typing import NamedTuple, TypeVar

from paceline_engine.protocol import HISTOGRAM_BASE, AcceptanceCell, CostCell

_Key = TypeVar("_Key")
_LOG_BASE = log(HISTOGRAM_BASE)


class CostKey(NamedTuple):
    """What makes two decode steps comparable. Loads and contexts are lower bucket edges."""

    load: int
    context: int
    k_drafted: int
    k_verified: int
    probe: bool


class CostSum:
    """Steps of one cost cell."""

    __slots__ = ("emitted", "histogram", "request_steps", "seconds", "squares", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.request_steps = 0
        self.emitted = 0
        self.seconds = 0.0
        self.squares = 0.0
        self.histogram: dict[int, int] = {}

    def step(self, requests: int, seconds: float, emitted: int) -> None:
        """Count one step of `requests` sampling requests."""
        self.steps += 1
        self.request_steps += requests
        self.emitted += emitted
        self.seconds += seconds
        self.squares += seconds * seconds
        index = int(log(max(seconds * 1e6, 1.0)) / _LOG_BASE)
        self.histogram[index] = self.histogram.get(index, 0) + 1

    def add(self, other: CostSum) -> None:
        """Count all of `other`'s steps too."""
        self.steps += other.steps
        self.request_steps += other.request_steps
        self.emitted += other.emitted
        self.seconds += other.seconds
        self.squares += other.squares
        add_counts(self.histogram, other.histogram)

    def cell(self, key: CostKey) -> CostCell:
        """The same for the wire."""
        return CostCell(
            **key._asdict(),
            steps=self.steps,
            request_steps=self.request_steps,
            emitted=self.emitted,
            seconds=self.seconds,
            seconds_squared=self.squares,
            histogram=dict(sorted(self.histogram.items())),
        )


class AcceptanceSum:
    """Fate of the drafts made under one configured k, seen at one load."""

    __slots__ = ("fates", "request_steps")

    def __init__(self) -> None:
        self.request_steps = 0
        self.fates: dict[tuple[int, int], int] = {}
        """Drafts by (tokens verified, tokens accepted)."""

    def drafts(self, drafted: int, accepted: int, requests: int) -> None:
        """Count drafts of some requests: tokens verified in each, and how many of them from the start were accepted."""
        self.fates[drafted, accepted] = self.fates.get((drafted, accepted), 0) + requests

    def add(self, other: AcceptanceSum) -> None:
        """Count all of `other`'s drafts too."""
        self.request_steps += other.request_steps
        add_counts(self.fates, other.fates)

    def cell(self, k: int, load: int) -> AcceptanceCell:
        """The same by position, for the wire."""
        fates = [(drafted, accepted, count) for (drafted, accepted), count in self.fates.items()]
        positions = range(max([k, *(drafted for drafted, _, _ in fates)]))
        return AcceptanceCell(
            k=k,
            load=load,
            request_steps=self.request_steps,
            drafts=sum(count for drafted, _, count in fates if drafted),
            drafted=tuple(sum(count for drafted, _, count in fates if drafted > at) for at in positions),
            accepted=tuple(sum(count for d, accepted, count in fates if min(d, accepted) > at) for at in positions),
        )


class Window:
    """Everything counted between two moments of engine uptime, in seconds. Nobody changes it once it is sealed."""

    __slots__ = ("acceptance", "cells", "end", "excluded", "probe_steps_by_k", "start", "steps_by_k")

    def __init__(self, start: float) -> None:
        self.start = self.end = start
        self.cells: dict[CostKey, CostSum] = {}
        self.acceptance: dict[tuple[int, int], AcceptanceSum] = {}
        """By (configured k, load)."""
        self.excluded: dict[str, int] = {}
        self.steps_by_k: dict[int, int] = {}
        self.probe_steps_by_k: dict[int, int] = {}

    def add(self, other: Window) -> None:
        """Take in a later window."""
        self.end = other.end
        for key, cost in other.cells.items():
            self.cells.setdefault(key, CostSum()).add(cost)
        for at, fate in other.acceptance.items():
            self.acceptance.setdefault(at, AcceptanceSum()).add(fate)
        add_counts(self.excluded, other.excluded)
        add_counts(self.steps_by_k, other.steps_by_k)
        add_counts(self.probe_steps_by_k, other.probe_steps_by_k)


def add_counts(into: dict[_Key, int], counts: dict[_Key, int]) -> None:
    """Add the counts of each key."""
    for key, count in counts.items():
        into[key] = into.get(key, 0) + count
