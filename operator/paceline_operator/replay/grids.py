"""Step-cost grids crossed with acceptance profiles: what an engine costs, times what a workload's drafts are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from paceline_engine.protocol import MAX_K
from paceline_operator.replay.contest import Setup
from paceline_operator.replay.courses import GRID_NOISE, MAX_NUM_SEQS, Course, Truth
from paceline_operator.replay.notes import Note, Sheet, UnreadableError
from paceline_operator.replay.tables import GRID, LARGEST_LOAD, PROFILE, LeftError, method_of, number, whole
from paceline_operator.replay.world import Arm

STEP_MS_BOUNDS = (0.05, 1e6)

Grid = Mapping[int, Mapping[int, float]]
"""Step seconds by load and k."""
Survivals = Mapping[str, Mapping[int, tuple[float, ...]]]
"""Survival by position, by workload and k."""


@dataclass
class Read:
    """A grid and the profiles of one method, and what could not be read."""

    grid: Grid = field(default_factory=dict)
    survivals: Survivals = field(default_factory=dict)
    skipped: list[Note] = field(default_factory=list)
    problems: list[Note] = field(default_factory=list)


def read_grid(path: Path, into: Read) -> None:
    """Columns concurrency, k and step_ms of a CSV file; others are not needed. The first of two equal cells counts."""
    cells: dict[int, dict[int, float]] = {}
    sheet = _open(path, GRID, "a step-cost grid", into)
    for line, row in sheet.rows() if sheet else ():
        try:
            load, k = whole("concurrency", row["concurrency"], 1, LARGEST_LOAD), whole("k", row["k"], 0, MAX_K)
            step_ms = number("step_ms", row["step_ms"])
            if not STEP_MS_BOUNDS[0] <= step_ms <= STEP_MS_BOUNDS[1]:
                raise LeftError(f"step_ms {row['step_ms'][:40]!r} cannot be")
            if k in cells.get(load, ()):
                raise LeftError(f"k={k} at {load} requests a second time: the first counts")
        except LeftError as left:
            into.problems.append(Note(str(path), line, str(left)))
            continue
        cells.setdefault(load, {})[k] = step_ms / 1000
    into.problems += sheet.notes if sheet else ()
    into.grid = {load: dict(sorted(ks.items())) for load, ks in sorted(cells.items())}


def read_acceptance(path: Path, method: str, into: Read) -> None:
    """Columns dataset, method, k and survival (shares by position, between blanks); rows of `method` alone."""
    found: dict[str, dict[int, tuple[float, ...]]] = {}
    others: set[str] = set()
    sheet = _open(path, PROFILE, "an acceptance profile", into)
    for line, row in sheet.rows() if sheet else ():
        if row["method"].lower() != method.lower():
            others.add(row["method"])
            continue
        try:
            k = whole("k", row.get("k", ""), 1, MAX_K)
            survival = _survival(row["survival"], k)
            if k in found.get(row["dataset"], ()):
                raise LeftError(f"k={k} of {row['dataset']} a second time: the first counts")
        except LeftError as left:
            into.problems.append(Note(str(path), line, str(left)))
            continue
        found.setdefault(row["dataset"], {})[k] = survival
    into.problems += sheet.notes if sheet else ()
    if sheet and not found:
        there = f": there is {', '.join(sorted(others))}" if others else ""
        into.problems.append(Note(str(path), None, f"no rows of method {method}{there}"))
    into.survivals = found


def courses(
    path: Path, read: Read, method: str, sweeps: tuple[str, ...], switch: Sequence[str], interval_seconds: float
) -> Iterator[Course]:
    """One for each workload, or one that goes through the workloads of `switch`.

    Candidates are k=0 and the ks that every load of the grid and every workload in question have; the others become
    notes. Raises ValueError where `switch` names a workload that is not there.
    """
    if unknown := [one for one in switch if one not in read.survivals]:
        there = ", ".join(sorted(read.survivals)) or "none"
        raise ValueError(f"no workload {', '.join(unknown)} among the profiles of method {method}: there is {there}")
    name = str(path)
    everywhere = set.intersection(*(set(ks) for ks in read.grid.values())) if read.grid else set()
    for workloads in [tuple(switch)] if switch else [(one,) for one in read.survivals]:
        able = {0}.union(set.intersection(*(set(read.survivals[one]) for one in workloads)))
        ladder = tuple(sorted(everywhere & able, reverse=True))
        label = ",".join(workloads)
        left = sorted(set().union(*read.grid.values()) - set(ladder))
        if left:
            said = f"{label}: not every load or profile has k {', '.join(map(str, left))}: no candidate"
            read.skipped.append(Note(name, None, said))
        if len(ladder) < 2:
            read.problems.append(Note(name, None, f"{label}: fewer than two ks that every load and profile has"))
            continue
        truths = tuple((one, _truth(read.grid, read.survivals[one], ladder)) for one in workloads)
        setup = Setup(ladder, max(MAX_NUM_SEQS, *read.grid), method_of(method), interval_seconds)
        yield Course(path.stem, label, setup, truths, GRID_NOISE, sweeps, by_load=False)


def _truth(grid: Grid, survivals: Mapping[int, tuple[float, ...]], ladder: Sequence[int]) -> Truth:
    shares = {k: survivals[k] if k else () for k in ladder}
    return {load: {k: Arm(ks[k], 1 + sum(shares[k]), shares[k]) for k in ladder} for load, ks in grid.items()}


def _open(path: Path, needed: set[str], what: str, into: Read) -> Sheet | None:
    try:
        sheet = Sheet.open(path)
    except UnreadableError as error:
        into.problems.append(error.note)
        return None
    if lacking := sorted(needed - set(sheet.columns)):
        into.problems.append(Note(str(path), 1, f"not {what}: no column {', '.join(lacking)}"))
        return None
    return sheet


def _survival(text: str, k: int) -> tuple[float, ...]:
    shares = tuple(number("survival", part) for part in text.split())
    if len(shares) != k:
        raise LeftError(f"survival has {len(shares)} shares for k={k}")
    if any(not 0 <= share <= 1 for share in shares) or any(b > a + 1e-9 for a, b in pairwise(shares)):
        raise LeftError("survival must be shares from 0 to 1 that do not rise")
    return shares
