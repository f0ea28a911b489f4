"""docs/reliability.md: its tables are written by the tests that make what they tell of.

A test notes what it saw; where PACELINE_UPDATE_RELIABILITY is set, that becomes a cell. Cells of other runs stay, also
of those that go on at the same time: so all that is long can be run in pieces.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.reliability.killer import BEFORE
from tests.reliability.life import STAGES
from tests.reliability.second import BEHIND
from tests.reliability.views import VIEWS

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
UPDATE = "PACELINE_UPDATE_RELIABILITY"
SAME = "same end"
NONE = "–"
_ORDER = [*(stage.name for stage in STAGES), *VIEWS, *BEHIND]
Rows = dict[tuple[str, ...], list[str]]
"""First cells of a row -> its others."""


def note_life(calls: Mapping[str, Sequence[str]]) -> None:
    """Every write of an undisturbed life, by stage: the rows of crash points that were not met yet."""
    with _rows("crashes", 2) as rows:
        made = {(stage, str(i + 1)): call for stage, each in calls.items() for i, call in enumerate(each)}
        for key in [key for key, row in rows.items() if key not in made and row[1:] == [NONE, NONE]]:
            del rows[key]
        for key, call in made.items():
            rows[key] = [call, *rows.get(key, ["", NONE, NONE])[1:]]


def note_crash(stage: str, point: tuple[int, str], at: str, lost: Iterable[str]) -> None:
    """What came of one; `at` empty: the stage was over before its write."""
    with _rows("crashes", 2) as rows:
        row = rows.setdefault((stage, str(point[0])), [at, NONE, NONE])
        said = "; ".join(lost) or (SAME if at else "over before")
        row[1 if point[1] == BEFORE else 2] = said.replace("|", "/")


def note_view(fault: str, how: str, stage: str, stages: Sequence[str], lost: Iterable[str]) -> None:
    """What came of a view in one stage."""
    with _rows("views", 1) as rows:
        row = rows.setdefault((fault,), [how, *(NONE for _ in stages)])
        row[0], row[1 + stages.index(stage)] = how, "; ".join(lost).replace("|", "/") or SAME


def _block(table: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {table} -->\n\n(?:\|.*\n){{2}})((?:\|.*\n)*)", re.MULTILINE)


def _read(table: str, keys: int) -> Rows:
    found = _block(table).search(PAGE.read_text(encoding="utf-8"))
    assert found, f"{PAGE} has no table {table}"
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in found[2].splitlines()]
    return {tuple(row[:keys]): row[keys:] for row in cells}


@contextmanager
def _rows(table: str, keys: int) -> Iterator[Rows]:
    """Those of a table, to be changed; the page is of one process meanwhile."""
    if not os.environ.get(UPDATE):
        yield {}
        return
    with PAGE.open(encoding="utf-8") as page:
        fcntl.flock(page, fcntl.LOCK_EX)
        rows = _read(table, keys)
        yield rows
        text = "".join(f"| {' | '.join((*key, *row))} |\n" for key, row in sorted(rows.items(), key=_place))
        written = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(_block(table).sub(lambda found: found[1] + text, written), encoding="utf-8")


def _place(row: tuple[tuple[str, ...], list[str]]) -> tuple[int, int]:
    """In the order of stages and their writes, or of views."""
    what, *number = row[0]
    return _ORDER.index(what), int(number[0]) if number else 0
