"""What was seen of a canary and of the pods beside it, over the same time. Pure.

A machine, its neighbours and the text that users ask about change within minutes, for both sides alike: so goodput is
compared step by step of one kind and one time, and how far such pairs differ says how sure their mean is.

A canary that is much slower always has more requests than the others: they never have the same load. A larger batch
gives no fewer tokens a second, so steps of another load still say that it is at most, or at least, so good.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from paceline_operator.rollout import page
from paceline_operator.rollout.contract import Answers
from paceline_operator.rollout.page import Page
from paceline_operator.tuning.model import Engine

LEAST_STEPS = 6
"""Decode steps of one kind on each side that make a pair; fewer say more of the moment than of the engine."""
SPAN = 16
"""Readings for which steps wait for those of the other side: later ones would be of another time."""
PATIENCE = 4
"""Readings after which steps of the nearest other load will do."""
KEPT_PAIRS = 256
"""The newest."""
NEAR = 3
"""Loads whose ratio is beyond it say nothing of each other: beside one request in a step, a second is nearly free."""


class Kind(NamedTuple):
    """Steps that may be compared: the same load, context and prompt tokens (lower edges of buckets)."""

    load: int
    context: int
    prompt: int


class Sums(NamedTuple):
    """Steps of one kind and side that wait for those of the other."""

    steps: int = 0
    emitted: int = 0
    seconds: float = 0.0
    readings: int = 0
    """Since the first of them."""


class Pair(NamedTuple):
    """Steps of both sides, of the same kinds and the same time."""

    log: float
    """Natural logarithm of the canary's goodput (tokens a second of step time) over that of the others."""
    steps: int
    """Of the side that had fewer."""
    order: int = 0
    """0: at the same load. -1: the canary had a larger one, so that it is at most so good. 1: it had a smaller one, so
    that it is at least so good."""


@dataclass(frozen=True)
class Side:
    """One of the two that are compared."""

    steps: int = 0
    """Decode steps, of all its pods; none: its engines have no plugin, or nobody asked."""
    load_steps: int = 0
    """The load buckets of these steps, summed."""
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
    pairs: tuple[Pair, ...] = ()
    """The oldest first."""
    begun: Mapping[tuple[bool, Kind], Sums] = field(default_factory=dict)
    """(whether of the canary, kind) -> what the next pair has so far."""
    decoded: Mapping[bool, tuple[int, int]] = field(default_factory=dict)
    """Whether of the canary -> (steps, load_steps) as of a Side."""
    first: Mapping[str, Page] = field(default_factory=dict)
    """Pod -> the first reading of its /metrics."""
    last: Mapping[str, Page] = field(default_factory=dict)
    """Pod -> what came since."""
    answers: tuple[Answers, Answers] = field(default_factory=lambda: (Answers(), Answers()))
    """(stable, canary) to the output contract's request."""

    def sides(self, canaries: Iterable[str]) -> tuple[Side, Side, tuple[Pair, ...]]:
        """(stable, canary, what pairs their goodput); `canaries`: the pods of the canary."""
        mine = set(canaries)
        stable, canary = (
            Side(
                *self.decoded.get(of_canary, (0, 0)),
                page.total(found for pod, found in self.last.items() if (pod in mine) is of_canary),
                self.answers[of_canary],
            )
            for of_canary in (False, True)
        )
        return stable, canary, self.pairs


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
    waiting = {key: sums._replace(readings=sums.readings + 1) for key, sums in past.begun.items()}
    begun = {key: sums for key, sums in waiting.items() if sums.readings < SPAN}
    decoded, cursors = dict(past.decoded), {}
    for engine in engines:
        if engine.samples is None or engine.state is None or engine.state.boot_id != engine.samples.boot_id:
            continue
        cursors[engine.name] = engine.samples.cursor
        if engine.name in past.cursors and not engine.samples.reset:
            _count(engine, engine.name in mine, begun, decoded)
    begun, pairs = _paired(begun)
    first = dict(past.first)
    last = {pod: found for pod, found in past.last.items() if pod in pages}
    for pod, found in pages.items():
        risen = page.between(first[pod], found) if pod in first else None
        if risen is None:
            first[pod] = found
            last[pod] = Page()
        else:
            last[pod] = risen
    kept = (*past.pairs, *pairs)[-KEPT_PAIRS:]
    return replace(past, cursors=cursors, pairs=kept, begun=begun, decoded=decoded, first=first, last=last)


def _count(
    engine: Engine, of_canary: bool, begun: dict[tuple[bool, Kind], Sums], decoded: dict[bool, tuple[int, int]]
) -> None:
    """Add a reading. Steps that a probe burst drafted for are not what an engine does by itself."""
    assert engine.samples is not None
    for cell in engine.samples.cells:
        if not cell.probe:
            key = of_canary, Kind(cell.load, cell.context, cell.prompt)
            steps, emitted, seconds, readings = begun.get(key, Sums())
            begun[key] = Sums(steps + cell.steps, emitted + cell.emitted, seconds + cell.seconds, readings)
            steps, load_steps = decoded.get(of_canary, (0, 0))
            decoded[of_canary] = steps + cell.steps, load_steps + cell.steps * cell.load


def _paired(begun: Mapping[tuple[bool, Kind], Sums]) -> tuple[dict[tuple[bool, Kind], Sums], list[Pair]]:
    """What goes on waiting, and a pair of each order for which both sides have enough steps."""
    rest = {key: sums for key, sums in begun.items() if sums.steps < LEAST_STEPS}
    enough = {key: sums for key, sums in begun.items() if sums.steps >= LEAST_STEPS}
    mine, theirs = (
        {kind: sums for (of_canary, kind), sums in enough.items() if of_canary is side} for side in (True, False)
    )
    used, found = set[tuple[bool, Kind]](), dict[int, list[Pair]]()
    for kind, sums in mine.items():
        for other, order in _matches(kind, theirs) if sums.readings >= PATIENCE or kind in theirs else ():
            used |= {(True, kind), (False, other)}
            stable = theirs[other]
            if min(stable.emitted, sums.emitted) and min(stable.seconds, sums.seconds) > 0:
                log = math.log(sums.emitted / sums.seconds) - math.log(stable.emitted / stable.seconds)
                found.setdefault(order, []).append(Pair(log, min(sums.steps, stable.steps), order))
    rest |= {key: sums for key, sums in enough.items() if key not in used}
    return rest, [_mean(pairs) for pairs in found.values()]


def _matches(kind: Kind, theirs: Mapping[Kind, Sums]) -> list[tuple[Kind, int]]:
    """The same kind, else the nearest smaller and the nearest larger load; each with its order."""
    if kind in theirs:
        return [(kind, 0)]
    near = range(-(-kind.load // NEAR), kind.load * NEAR + 1)
    alike = [other for other in theirs if other[1:] == kind[1:] and other.load in near]
    below = max((other for other in alike if other.load < kind.load), default=None)
    above = min((other for other in alike if other.load > kind.load), default=None)
    return [(other, order) for other, order in ((below, -1), (above, 1)) if other is not None]


def _mean(pairs: list[Pair]) -> Pair:
    """Of kinds of one time, by their steps."""
    steps = sum(pair.steps for pair in pairs)
    return Pair(math.fsum(pair.log * pair.steps for pair in pairs) / steps, steps, pairs[0].order)
