"""What was seen of a canary and of the pods beside it, over the same time. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paceline_operator.rollout import page
from paceline_operator.rollout.contract import Answers
from paceline_operator.rollout.page import Page
from paceline_operator.tuning.model import Engine

LEAST_STEPS = 8
"""Decode steps of one kind in a window; fewer say more of the moment than of the engine."""
KEPT_WINDOWS = 64
"""Of one kind, the newest: an hour of them judges no better."""


class Kind(NamedTuple):
    """Steps that may be compared: the same load, context and prompt tokens (lower edges of buckets)."""

    load: int
    context: int
    prompt: int


class Sums(NamedTuple):
    """Steps of one kind and pod that are too few yet for a window."""

    steps: int = 0
    emitted: int = 0
    seconds: float = 0.0


class Window(NamedTuple):
    """Of one pod, a reading or several: tokens a second of step time, and the steps that it rests on."""

    goodput: float
    steps: int


Windows = Mapping[Kind, tuple[Window, ...]]


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    windows: Windows = field(default_factory=dict)
    requests: Page = field(default_factory=Page)
    """What requests came to, of all its pods."""
    answers: Answers = field(default_factory=Answers)
    """To the output contract's request."""


@dataclass(frozen=True)
class Watch:
    """What one process saw since the canary became ready. Lost with it, and gathered anew by the next."""

    revision: str = ""
    """The canary's; empty: none is watched."""
    since: float = 0.0
    """Monotonic seconds of the first look at it since when it is ready."""
    cursors: Mapping[str, str] = field(default_factory=dict)
    """Pod -> cursor for its next `GET /samples`: not the tuner's, which rests meanwhile."""
    stable: Windows = field(default_factory=dict)
    canary: Windows = field(default_factory=dict)
    begun: Mapping[tuple[str, Kind], Sums] = field(default_factory=dict)
    """(pod, kind) -> what the next window has so far."""
    first: Mapping[str, Page] = field(default_factory=dict)
    """Pod -> the first reading of its /metrics."""
    last: Mapping[str, Page] = field(default_factory=dict)
    """Pod -> what came since."""
    answers: tuple[Answers, Answers] = field(default_factory=lambda: (Answers(), Answers()))
    """(stable, canary) to the output contract's request."""

    def sides(self, canaries: Iterable[str]) -> tuple[Side, Side]:
        """(stable, canary); `canaries`: the pods of the canary."""
        mine = set(canaries)
        return (
            Side(
                self.stable,
                page.total(found for pod, found in self.last.items() if pod not in mine),
                self.answers[0],
            ),
            Side(self.canary, page.total(found for pod, found in self.last.items() if pod in mine), self.answers[1]),
        )


def seen(
    past: Watch,
    revision: str,
    engines: Iterable[Engine],
    pages: Mapping[str, Page],
    canaries: Iterable[str],
    now: float,
) -> Watch:
    """`past` and one more reading, at `now` (monotonic seconds).

    The first reading of a pod is where counting begins: what was before is not of the time that is compared.
    """
    if past.revision != revision:
        past = Watch(revision, now)
    mine = set(canaries)
    sides: dict[bool, dict[Kind, tuple[Window, ...]]] = {True: dict(past.canary), False: dict(past.stable)}
    cursors, begun = {}, dict[tuple[str, Kind], Sums]()
    for engine in engines:
        if engine.samples is None or engine.state is None or engine.state.boot_id != engine.samples.boot_id:
            continue
        cursors[engine.name] = engine.samples.cursor
        if engine.name not in past.cursors or engine.samples.reset:
            continue
        side = sides[engine.name in mine]
        for kind, sums in _grown(past.begun, engine).items():
            if sums.steps < LEAST_STEPS:
                begun[engine.name, kind] = sums
            elif sums.emitted and sums.seconds > 0:
                window = Window(sums.emitted / sums.seconds, sums.steps)
                side[kind] = (*side.get(kind, ()), window)[-KEPT_WINDOWS:]
    first = dict(past.first)
    last = {pod: found for pod, found in past.last.items() if pod in pages}
    for pod, found in pages.items():
        risen = page.between(first[pod], found) if pod in first else None
        if risen is None:
            first[pod] = found
            last[pod] = Page()
        else:
            last[pod] = risen
    return replace(past, cursors=cursors, stable=sides[False], canary=sides[True], begun=begun, first=first, last=last)


def _grown(begun: Mapping[tuple[str, Kind], Sums], engine: Engine) -> dict[Kind, Sums]:
    """What was begun of the engine and one more reading. Steps that a probe burst drafted for are not what it does by
    itself."""
    assert engine.samples is not None
    found = {kind: sums for (name, kind), sums in begun.items() if name == engine.name}
    for cell in engine.samples.cells:
        if not cell.probe:
            kind = Kind(cell.load, cell.context, cell.prompt)
            steps, emitted, seconds = found.get(kind, Sums())
            found[kind] = Sums(steps + cell.steps, emitted + cell.emitted, seconds + cell.seconds)
    return found
