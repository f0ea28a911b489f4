"""What a run goes through: the truth at every load, and the order in which the loads come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from paceline_operator.replay.contest import Setup
from paceline_operator.replay.tables import Point, Table
from paceline_operator.replay.world import Arm, Scenario, Visit

VISIT_SECONDS = 600.0
STEADY_SECONDS = 300.0
"""The last of each visit: the steady state."""
TABLE_SWEEPS = ("up", "down", "walk")
GRID_SWEEPS = ("steps", "walk")
TABLE_NOISE, GRID_NOISE = 0.05, 0.02
MAX_NUM_SEQS = 256
"""vLLM's default on most GPUs, and the API's: the engine of a file is booted for this many requests, or for its
largest load."""

Truth = Mapping[int, Mapping[int, Arm]]
"""Arms by load and k."""


@dataclass(frozen=True)
class Course:
    """Loads that one engine goes through, in several orders (sweeps)."""

    table_id: str
    workload: str
    setup: Setup
    truths: tuple[tuple[str, Truth], ...]
    """By workload; each has its equal share of the run, one after the other."""
    noise: float
    sweeps: tuple[str, ...]
    by_load: bool
    """Whether each load is a case of its own."""

    @property
    def loads(self) -> tuple[int, ...]:
        """Ascending."""
        return tuple(sorted(self.truths[0][1]))

    def scenario(self, sweep: str, rng: np.random.Generator) -> Scenario:
        """One run of `sweep`; `rng` decides the way of a walk."""
        order = _order(sweep, self.loads, rng)
        visits = []
        for position, load in enumerate(order):
            workload, truth = self.truths[position * len(self.truths) // len(order)]
            visits.append(Visit(load, VISIT_SECONDS, truth[load], workload))
        return Scenario(self.setup, tuple(visits), self.noise)


def of_table(table: Table, interval_seconds: float) -> Iterator[Course]:
    """Courses of a table: an engine's ladder is one for all loads, so loads with other valid ks are another course."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for load, points in table.points.items():
        groups.setdefault(tuple(sorted(points, reverse=True)), []).append(load)
    for ladder, loads in groups.items():
        truth = {load: {k: _arm(load, k, table.points[load][k]) for k in ladder} for load in loads}
        setup = Setup(ladder, max(MAX_NUM_SEQS, *loads), table.method, interval_seconds)
        truths = ((table.workload, truth),)
        yield Course(table.table_id, table.workload, setup, truths, TABLE_NOISE, TABLE_SWEEPS, by_load=True)


def _arm(load: int, k: int, point: Point) -> Arm:
    if point.length is None:
        return Arm(load / point.tok_s)
    return Arm(load * point.length / point.tok_s, point.length, geometric(point.length, k))


def geometric(length: float, k: int) -> tuple[float, ...]:
    """Survival by position 1..k with a constant chance of each next draft, for an acceptance length: tables have no
    positions. Halving, since the sum has no inverse in closed form."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**i for i in range(1, k + 1)) < length - 1 else (low, middle)
    return tuple(high**i for i in range(1, k + 1))


def _order(sweep: str, loads: Sequence[int], rng: np.random.Generator) -> list[int]:
    if sweep == "up":
        return list(loads)
    if sweep == "down":
        return list(reversed(loads))
    if sweep == "steps":
        return [*loads, *reversed(loads)]
    place = int(rng.integers(len(loads)))
    order = []
    for _ in range(2 * len(loads)):
        order.append(loads[place])
        ahead = [one for one in (place - 1, place + 1) if 0 <= one < len(loads)]
        place = ahead[int(rng.integers(len(ahead)))] if ahead else place
    return order
