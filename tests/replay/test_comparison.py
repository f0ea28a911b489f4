"""docs/tuner.md shows what the result file says; the file is of the contestants that there are."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.tuner import page, picture
from benchmarks.tuner.compare import OUT, PAGE, PICTURE, Task, play, tasks
from benchmarks.tuner.contestants import BY_NAME, CONTESTANTS, courses


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((OUT / "comparison.json").read_text(encoding="utf-8"))
    return found


def test_the_page_is_written_from_the_result(result: dict[str, Any], tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    page.write(copy, result)
    assert copy.read_text(encoding="utf-8") == PAGE.read_text(encoding="utf-8")


def test_the_picture_is_drawn_from_the_result(result: dict[str, Any], tmp_path: Path) -> None:
    """By its words and figures: where they stand is the drawing library's business."""
    picture.draw(tmp_path / "picture.svg", result)
    drawn, shown = (_words(path) for path in (tmp_path / "picture.svg", PICTURE))
    assert drawn == shown
    assert "paceline" in shown


def _words(path: Path) -> list[str]:
    return re.findall(r"<text[^>]*>([^<]*)<", path.read_text(encoding="utf-8"))


def test_the_result_is_of_the_contestants_that_there_are(result: dict[str, Any]) -> None:
    assert {row["name"] for row in result["contestants"]} == {*BY_NAME, "hindsight"}
    with (OUT / "cases.csv").open() as file:
        rows = list(csv.DictReader(file))
    for contestant in CONTESTANTS:
        mine = [row for row in rows if row["contestant"] == contestant.name]
        expected = [one for one in courses() if contestant.fits(one)]
        assert {(row["table_id"], row["workload"]) for row in mine} == {
            (one.table_id, one.workload) for one in expected
        }


def test_a_page_without_marks_is_refused(result: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text("# A page\n")
    with pytest.raises(ValueError, match="no place for the table"):
        page.write(tmp_path / "page.md", result)


@pytest.mark.parametrize("contestant", ["paceline", "turbospec", "ucb", "epsilon_greedy"])
def test_a_run_is_the_same_each_time(contestant: str) -> None:
    index = next(i for i, one in enumerate(courses()) if one.table_id == "T24")
    task = Task(contestant, index, "up", 2)
    assert task in list(tasks(BY_NAME[contestant], courses(), 3))
    assert play(task) == play(task)
