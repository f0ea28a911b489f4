"""From what a person names (files, workloads, ways of the load) to courses, or what they must change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline_operator.replay import grids, tables, traces
from paceline_operator.replay.courses import GRID_SWEEPS, Course, of_table
from paceline_operator.replay.notes import Note

INTERVAL_SECONDS = 10.0
"""The API's default of tuning.intervalSeconds."""


@dataclass(frozen=True)
class Question:
    """What to replay."""

    paths: Sequence[Path] = ()
    grid: Path | None = None
    acceptance: Path | None = None
    method: str = "eagle"
    sweeps: tuple[str, ...] = GRID_SWEEPS
    switch: tuple[str, ...] = ()


@dataclass
class Material:
    """Courses and traces, and what was left out of the files or could not be read."""

    courses: list[Course] = field(default_factory=list)
    traces: list[traces.Trace] = field(default_factory=list)
    skipped: list[Note] = field(default_factory=list)
    problems: list[Note] = field(default_factory=list)


def material(question: Question, interval_seconds: float = INTERVAL_SECONDS) -> Material:
    """Read the files. Raises ValueError, with what to change, where the question has no meaning."""
    if (question.grid is None) != (question.acceptance is None):
        raise ValueError("--grid and --acceptance go together: step costs, and what drafts are worth")
    if question.switch and question.grid is None:
        raise ValueError("--switch goes with --grid: tables have one workload each")
    if question.switch and (len(question.switch) < 2 or not all(question.switch)):
        raise ValueError("--switch takes two or more workloads, with commas: --switch gsm8k,sharegpt")
    found = Material()
    recorded = [file for path in question.paths for file in _traces(path)]
    for file in recorded:
        trace, notes = traces.read(file)
        found.traces += [trace] if trace else []
        found.problems += notes
    others = [path for path in question.paths if path not in recorded and not (path.is_dir() and _only_traces(path))]
    if others:
        read = tables.read(others)
        found.courses += [course for table in read.tables for course in of_table(table, interval_seconds)]
        found.skipped += read.skipped
        found.problems += read.problems
    if question.grid is not None and question.acceptance is not None:
        crossed = grids.Read()
        grids.read_grid(question.grid, crossed)
        grids.read_acceptance(question.acceptance, question.method, crossed)
        if crossed.grid and crossed.survivals:
            found.courses += grids.courses(
                question.grid, crossed, question.method, question.sweeps, question.switch, interval_seconds
            )
        found.skipped += crossed.skipped
        found.problems += crossed.problems
    return found


def _traces(path: Path) -> list[Path]:
    """A trace itself, or those in a folder."""
    if path.is_dir():
        return sorted(path.rglob(f"*{traces.SUFFIX}"))
    return [path] if path.suffix == traces.SUFFIX else []


def _only_traces(folder: Path) -> bool:
    return bool(_traces(folder)) and not any(folder.rglob("*.csv"))
