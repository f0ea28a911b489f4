"""docs/reliability.md: its tables are written by the tests that make what they tell of.

A test notes what it saw; where PACELINE_UPDATE_RELIABILITY is set, that becomes a row. Rows of other runs stay.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tests.reliability.killer import BEFORE

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
UPDATE = "PACELINE_UPDATE_RELIABILITY"
SAME = "same end"
NONE = "–"
_LOCK = threading.Lock()
Rows = dict[tuple[str, ...], list[str]]
"""First cells of a row -> its others."""


def note_life(calls: Mapping[str, Sequence[str]]) -> None:
    """Every write of an undisturbed life, by stage: the rows of crash points that were not met yet."""
    with _LOCK:
        rows = _read("crashes", 2)
        made = {(stage, str(i + 1)): call for stage, each in calls.items() for i, call in enumerate(each)}
        _write("crashes", {key: [call, *rows.get(key, ["", NONE, NONE])[1:]] for key, call in made.items()})


def note_crash(stage: str, point: tuple[int, str], at: str, lost: Iterable[str]) -> None:
    """What came of one; `at` empty: the stage was over before its write."""
    with _LOCK:
        rows = _read("crashes", 2)
        row = rows.setdefault((stage, str(point[0])), [at, NONE, NONE])
        said = "; ".join(lost) or (SAME if at else "over before")
        row[1 if point[1] == BEFORE else 2] = said.replace("|", "/")
        _write("crashes", rows)


def note_view(fault: str, how: str, stage: str, stages: Sequence[str], lost: Iterable[str]) -> None:
    """What came of a view in one stage."""
    with _LOCK:
        rows = _read("views", 1)
        row = rows.setdefault((fault,), [how, *(NONE for _ in stages)])
        row[0], row[1 + stages.index(stage)] = how, "; ".join(lost).replace("|", "/") or SAME
        _write("views", rows)


def _block(table: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {table} -->\n\n(?:\|.*\n){{2}})((?:\|.*\n)*)", re.MULTILINE)


def _read(table: str, keys: int) -> Rows:
    found = _block(table).search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE} has no table {table}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[2].splitlines()]
    return {tuple(row[:keys]): row[keys:] for row in cells}


def _write(table: str, rows: Rows) -> None:
    if not os.environ.get(UPDATE):
        return
    text = "".join(f"| {' | '.join((*key, *row))} |\n" for key, row in rows.items())
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(_block(table).sub(lambda found: found[1] + text, page), encoding="utf-8")
