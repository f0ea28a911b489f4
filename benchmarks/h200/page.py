"""Result files in, Markdown out: what the page is made with."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "h200"
PAGE = ROOT / "docs" / "h200.md"
PICTURE = "images/h200-closed-loop.svg"
NOT_MEASURED = "–"


def read(name: str) -> dict[str, Any]:
    """`name`.json of the results (`name` may have folders); empty where there is none."""
    path = RESULTS / f"{name}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def rows(name: str) -> list[dict[str, str]]:
    """`name`.csv of the results."""
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def number(value: Any, digits: int = 2) -> str:
    """For people; a dash where nothing was measured."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return NOT_MEASURED if value is None else str(value)
    return f"{value:,.{digits}f}"


def interval(found: Mapping[str, Any] | None) -> str:
    """Value with its 95 % interval."""
    if not found or "value" not in found:
        return NOT_MEASURED
    if "low" not in found:
        return number(found["value"])
    return f"{number(found['value'])} ({number(found['low'])} to {number(found['high'])})"


def table(head: Iterable[str], body: Iterable[Iterable[str]]) -> list[str]:
    """A table with its numbers to the right."""
    head = list(head)
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---:|" * len(head),
        *("| " + " | ".join(row) + " |" for row in body),
        "",
    ]
