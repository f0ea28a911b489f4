"""Published k-choice tables: CSV files with one measured throughput for each (workload, load, arm)."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from paceline_engine.protocol import MAX_K
from paceline_operator.api.speculation import Method
from paceline_operator.replay.notes import Note, Sheet, UnreadableError

REQUIRED = ("load", "k", "tok_s")
GRID = {"concurrency", "k", "step_ms"}
PROFILE = {"dataset", "method", "survival"}
LARGEST_LOAD = 65_536
"""A policy's table has no more entries."""
TOK_S_BOUNDS = (1e-3, 2e4)
"""Tokens a second of one request. No engine is faster; a step of less than 50 microseconds is none."""
RATE = re.compile(r"qps|rps|(^|[^a-z])rate|per[_ ]s(ec(ond)?)?($|[^a-z])|/s", re.IGNORECASE)
"""Load kinds that are arrivals a second: tok/s then follows the arrivals, not k."""
INVALID = re.compile(r"(no|false|0|invalid)\b", re.IGNORECASE)


@dataclass(frozen=True)
class Point:
    """One measured arm at one load."""

    tok_s: float
    length: float | None
    """Acceptance length: tokens a request gets per step; None = not published."""
    no_spec: bool
    """The source measured this k=0 in an engine without a drafter."""


@dataclass(frozen=True)
class Table:
    """One table and workload: valid fixed arms by load and k; only loads with at least two."""

    file: str
    table_id: str
    workload: str
    method: Method
    points: Mapping[int, Mapping[int, Point]]


@dataclass
class Found:
    """What is in the files: tables, and what was left out or could not be read."""

    tables: list[Table] = field(default_factory=list)
    skipped: list[Note] = field(default_factory=list)
    problems: list[Note] = field(default_factory=list)


def read(paths: Sequence[Path]) -> Found:
    """Tables in files and in the CSV files of folders, by name. Never raises for what they hold."""
    found = Found()
    for path in _files(paths, found):
        try:
            _sheet(Sheet.open(path), found)
        except UnreadableError as error:
            found.problems.append(error.note)
    _without_repeats(found)
    return found


def _files(paths: Sequence[Path], found: Found) -> Iterable[Path]:
    seen: set[Path] = set()
    for path in paths:
        inside: list[Path] = [path]
        if path.is_dir():
            inside = sorted(one for one in path.rglob("*") if one.suffix.lower() == ".csv" and not one.is_dir())
            if not inside:
                found.problems.append(Note(str(path), None, "a folder without CSV files"))
        for file in inside:
            if (resolved := file.resolve()) not in seen:
                seen.add(resolved)
                yield file


def _sheet(sheet: Sheet, found: Found) -> None:
    columns = set(sheet.columns)
    lacking = [name for name in REQUIRED if name not in columns]
    if columns >= GRID:
        found.skipped.append(Note(sheet.name, None, "a step-cost grid: give it as --grid with an --acceptance file"))
        return
    if columns >= PROFILE:
        found.skipped.append(Note(sheet.name, None, "an acceptance profile: give it as --acceptance with a --grid"))
        return
    if lacking:
        note = Note(sheet.name, 1, f"not a k-choice table: no column {', '.join(lacking)}")
        (found.skipped if len(lacking) > 1 else found.problems).append(note)
        return
    points: dict[tuple[str, str], dict[int, dict[int, Point]]] = {}
    methods: dict[tuple[str, str], str] = {}
    stem = Path(sheet.name).stem
    for line, row in sheet.rows():
        try:
            read = _row(row, stem)
        except LeftError as left:
            (found.skipped if left.known else found.problems).append(Note(sheet.name, line, str(left)))
            continue
        key, load, k, point, doubt = read
        if doubt:
            found.problems.append(Note(sheet.name, line, doubt))
        at = points.setdefault(key, {}).setdefault(load, {})
        methods.setdefault(key, row.get("method", ""))
        if (past := at.get(k)) is not None:
            if past.no_spec == point.no_spec:
                found.skipped.append(Note(sheet.name, line, f"k={k} at load {load} a second time: the first counts"))
                continue
            found.skipped.append(
                Note(sheet.name, line, f"k=0 in two ways at load {load}: the one with a drafter counts")
            )
            point = past if point.no_spec else point
        at[k] = point
    found.problems += sheet.notes
    for (table_id, workload), loads in points.items():
        cases = {load: dict(sorted(arms.items())) for load, arms in sorted(loads.items()) if len(arms) > 1}
        name = f"{table_id} {workload}".strip()
        if len(cases) < len(loads):
            alone = ", ".join(str(load) for load in sorted(loads) if load not in cases)
            found.skipped.append(Note(sheet.name, None, f"{name}: fewer than two valid fixed arms at load {alone}"))
        if cases:
            method = method_of(methods[table_id, workload])
            found.tables.append(Table(sheet.name, table_id, workload, method, cases))


class LeftError(Exception):
    """A row that is not used. `known`: it is what it should be, and no candidate."""

    def __init__(self, reason: str, *, known: bool = False) -> None:
        super().__init__(reason)
        self.known = known


def _row(row: Mapping[str, str], stem: str) -> tuple[tuple[str, str], int, int, Point, str]:
    """(table and workload), load, k, the point, and what is doubtful in it."""
    kind = row.get("load_kind", "")
    if RATE.search(kind):
        raise LeftError(f"load in {kind}: tok/s follows the arrivals there, not k", known=True)
    arm = row.get("arm", "").lower() or "fixed"
    if arm not in ("fixed", "no_spec"):
        raise LeftError(f"arm {arm!r} is no fixed k", known=True)
    numbered = re.fullmatch(r"[-+]?[\d.]+(?:e[-+]?\d+)?", row["k"], re.IGNORECASE)
    if arm == "fixed" and row["k"] and not numbered:
        raise LeftError(f"a fixed arm without a number: k is {row['k'][:40]!r}", known=True)
    k = whole("k", row["k"], 0, MAX_K) if arm == "fixed" or numbered else 0
    if arm == "no_spec" and k:
        raise LeftError(f"no_spec with k={k}: a drafter is there or is not")
    if INVALID.match(row.get("valid_output", "")):
        raise LeftError(f"k={k} is no candidate: valid_output is {row['valid_output'][:40]!r}", known=True)
    load = whole("load", row["load"], 1, LARGEST_LOAD)
    tok_s = number("tok_s", row["tok_s"])
    if not TOK_S_BOUNDS[0] <= tok_s / load <= TOK_S_BOUNDS[1]:
        raise LeftError(f"tok_s {row['tok_s'][:40]!r} cannot be at load {load}")
    length, doubt = (1.0, "") if k == 0 else _length(row.get("acceptance_len", ""), k)
    key = (row.get("table_id") or stem, row.get("workload", ""))
    return key, load, k, Point(tok_s, length, arm == "no_spec"), doubt


def _length(text: str, k: int) -> tuple[float | None, str]:
    if not text:
        return None, ""
    try:
        value = number("acceptance_len", text)
    except LeftError as left:
        return None, f"{left}; acceptance counts as unknown"
    if not 1.0 <= value <= k + 1 + 1e-6:
        return None, f"acceptance_len {text[:40]} is not between 1 and k+1 = {k + 1}; acceptance counts as unknown"
    return min(value, k + 1.0), ""


def number(name: str, text: str) -> float:
    """A finite number. Raises LeftError."""
    if not text:
        raise LeftError(f"no {name}")
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise LeftError(f"{name} {text[:40]!r} is not a number")
    return value


def whole(name: str, text: str, least: int, most: int) -> int:
    """A whole number, also written as 16.0. Raises LeftError."""
    value = number(name, text)
    if value != int(value) or not least <= value <= most:
        raise LeftError(f"{name} {text[:40]!r} is not a whole number from {least} to {most}")
    return int(value)


def method_of(text: str) -> Method:
    """The drafting method that a file's own words begin with (`eagle topk=1`); eagle where they name none."""
    low = text.strip().lower().replace("-", "_")
    named = [method for method in Method if low.startswith(method)]
    return max(named, key=len, default=Method.EAGLE)


def _without_repeats(found: Found) -> None:
    """A table, workload and load that an earlier file has too counts once."""
    first: dict[tuple[str, str, int], str] = {}
    kept: list[Table] = []
    for table in found.tables:
        own: dict[int, Mapping[int, Point]] = {}
        for load, arms in table.points.items():
            key = (table.table_id, table.workload, load)
            if key in first:
                reason = f"{table.table_id} at load {load} was read from {first[key]} already"
                found.skipped.append(Note(table.file, None, reason))
                continue
            first[key] = table.file
            own[load] = arms
        if own:
            kept.append(Table(table.file, table.table_id, table.workload, table.method, own))
    found.tables = kept
