"""Sums of steps: what one window of about a second holds, and how windows add up to an answer of `GET /samples`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import log
from typing import NamedTuple, TypeVar

from paceline_engine.protocol import HISTOGRAM_BASE, MAX_K, AcceptanceCell, CostCell, Verification

_Key = TypeVar("_Key")
_LOG_BASE = log(HISTOGRAM_BASE)
MAX_CELLS = 1024
"""Cost cells of one sum. An engine in service has tens; the loads and ks of a hostile one could make a million."""
CROWDED = "crowded"


class CostKey(NamedTuple):
    """What makes two steps comparable. Loads, contexts and prompt tokens are lower bucket edges."""

    load: int
    context: int
    k_drafted: int
    k_verified: int
    probe: bool
    verification: Verification
    prompt: int = 0


class AcceptanceKey(NamedTuple):
    """What makes the fates of two drafts comparable. `k` is the one configured when they were made."""

    k: int
    load: int
    verification: Verification


class CostSum:
    """Steps of one cost cell."""

    __slots__ = (
        "emitted",
        "first_tokens",
        "histogram",
        "prompt_tokens",
        "request_steps",
        "seconds",
        "squares",
        "steps",
    )

    def __init__(self) -> None:
        self.steps = 0
        self.request_steps = 0
        self.emitted = 0
        self.prompt_tokens = 0
        self.first_tokens = 0
        self.seconds = 0.0
        self.squares = 0.0
        self.histogram: dict[int, int] = {}

    def step(self, requests: int, seconds: float, emitted: int, prompt_tokens: int = 0, first_tokens: int = 0) -> None:
        """Count one step of `requests` sampling requests, `first_tokens` of which ended their prompt."""
        self.steps += 1
        self.request_steps += requests
        self.emitted += emitted
        self.prompt_tokens += prompt_tokens
        self.first_tokens += first_tokens
        self.seconds += seconds
        self.squares += seconds * seconds
        index = int(log(max(seconds * 1e6, 1.0)) / _LOG_BASE)
        self.histogram[index] = self.histogram.get(index, 0) + 1

    def add(self, other: CostSum) -> None:
        """Count all of `other`'s steps too."""
        self.steps += other.steps
        self.request_steps += other.request_steps
        self.emitted += other.emitted
        self.prompt_tokens += other.prompt_tokens
        self.first_tokens += other.first_tokens
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
            prompt_tokens=self.prompt_tokens,
            first_tokens=self.first_tokens,
            seconds=self.seconds,
            seconds_squared=self.squares,
            histogram=dict(sorted(self.histogram.items())),
        )


class AcceptanceSum:
    """Fate of the drafts made under one configured k, seen at one load."""

    __slots__ = ("accepted", "drafted", "request_steps")

    def __init__(self) -> None:
        self.request_steps = 0
        self.drafted: list[int] = []
        self.accepted: list[int] = []
        """Draft tokens by position. Acceptance stops at the first rejection, so neither list ever rises."""

    def add_positions(self, drafted: Iterable[int], accepted: Iterable[int]) -> None:
        """Count draft tokens by position; each up to its first zero."""
        for ours, theirs in ((self.drafted, drafted), (self.accepted, accepted)):
            for at, count in enumerate(theirs):
                if not count or at >= MAX_K:
                    break
                if at < len(ours):
                    ours[at] += count
                else:
                    ours.append(count)

    def add(self, other: AcceptanceSum) -> None:
        """Count all of `other`'s drafts too."""
        self.request_steps += other.request_steps
        self.add_positions(other.drafted, other.accepted)

    def cell(self, key: AcceptanceKey) -> AcceptanceCell:
        """The same for the wire."""
        positions = max(key.k, len(self.drafted), len(self.accepted))
        return AcceptanceCell(
            **key._asdict(),
            request_steps=self.request_steps,
            drafts=self.drafted[0] if self.drafted else 0,
            drafted=_padded(self.drafted, positions),
            accepted=_padded(self.accepted, positions),
        )


class Window:
    """Everything counted between two moments of engine uptime, in seconds. Nobody changes it once it is sealed."""

    __slots__ = ("acceptance", "cells", "end", "excluded", "probe_steps_by_k", "start", "steps_by_k")

    def __init__(self, start: float) -> None:
        self.start = self.end = start
        self.cells: dict[CostKey, CostSum] = {}
        self.acceptance: dict[AcceptanceKey, AcceptanceSum] = {}
        self.excluded: dict[str, int] = {}
        self.steps_by_k: dict[int, int] = {}
        self.probe_steps_by_k: dict[int, int] = {}

    def cost(self, key: CostKey) -> CostSum | None:
        """The cell of `key`; None where there are too many already."""
        found = self.cells.get(key)
        if found is None and len(self.cells) < MAX_CELLS:
            found = self.cells[key] = CostSum()
        return found

    def fate(self, key: AcceptanceKey) -> AcceptanceSum:
        """Where drafts of `key` are counted."""
        found = self.acceptance.get(key)
        if found is None:
            found = self.acceptance[key] = AcceptanceSum()
        return found

    def add(self, other: Window) -> None:
        """Take in a later window."""
        self.end = other.end
        for key, cost in other.cells.items():
            found = self.cost(key)
            if found is None:
                self.excluded[CROWDED] = self.excluded.get(CROWDED, 0) + cost.steps
            else:
                found.add(cost)
        for at, fate in other.acceptance.items():
            self.fate(at).add(fate)
        add_counts(self.excluded, other.excluded)
        add_counts(self.steps_by_k, other.steps_by_k)
        add_counts(self.probe_steps_by_k, other.probe_steps_by_k)


def add_counts(into: dict[_Key, int], counts: dict[_Key, int]) -> None:
    """Add the counts of each key."""
    for key, count in counts.items():
        into[key] = into.get(key, 0) + count


def positions(fates: Mapping[tuple[int, int], int]) -> tuple[list[int], list[int]]:
    """Draft tokens (verified, accepted) by position, from the count of drafts by (tokens verified, tokens accepted)."""
    length = max((tokens for tokens, _ in fates), default=0)
    drafted, accepted = [0] * length, [0] * length
    for (tokens, taken), count in fates.items():
        for at in range(tokens):
            drafted[at] += count
        for at in range(min(tokens, taken)):
            accepted[at] += count
    return drafted, accepted


def _padded(counts: list[int], length: int) -> tuple[int, ...]:
    return (*counts, *[0] * (length - len(counts)))
