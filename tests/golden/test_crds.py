"""What is committed is what the API types say."""

from __future__ import annotations

from pathlib import Path

from paceline_operator.api.crd import stale

ROOT = Path(__file__).parents[2]


def test_committed_crds_chart_copy_and_reference_are_current() -> None:
    assert stale(ROOT) == [], "run `python -m paceline_operator.api.crd --write`"
