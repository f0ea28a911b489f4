"""The reports under docs/examples are what today's code makes of the measured results."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline_operator.experiment import report, results

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "benchmarks" / "results" / "h200" / "experiments"
EXAMPLES = ROOT / "docs" / "examples"
NOISE = 1e-9
"""Relative: the last digits of scipy differ from one processor to another."""


def alike(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(alike, one, other))
    return one == (pytest.approx(other, rel=NOISE) if isinstance(other, float) else other)


@pytest.mark.parametrize("name", ["k-sweep", "verification"])
def test_a_committed_report_is_that_of_the_committed_results(name: str) -> None:
    found = report.build(results.folder(MEASURED / name))
    folder = EXAMPLES / f"{name}-h200"
    committed = json.loads((folder / "report.json").read_text())
    assert alike(json.loads(json.dumps(report.as_json(found))), committed)
    assert not committed["missing"]
    page = (folder / "report.html").read_text()
    assert all(line in page for line in found.conclusions)
    assert "Acceptance is synthetic" in page
