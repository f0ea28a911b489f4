"""What the tuner must reach in the replay, with one seed: all tables, and H200 grids with each workload, the poor
profile and a switch. `paceline replay` runs the ten seeds."""

from __future__ import annotations

import os

import pytest

from paceline_operator.cli.replay import OWN_TABLES
from paceline_operator.replay.ask import Question, material
from paceline_operator.replay.report import Report, replay
from paceline_operator.replay.score import Case, overall

GRIDS = OWN_TABLES.parent / "grids"
WORKLOADS, POOR = "workload_acceptance.csv", "poor.csv"


def played(question: Question) -> Report:
    found = material(question)
    assert not found.problems
    return replay(found.courses, seeds=(0,), processes=os.cpu_count() or 1)


def test_published_tables() -> None:
    found = overall(played(Question((OWN_TABLES,))).cases)
    assert found["cases"] == 26
    assert (found["steady_mean_regret_pct"] or 0) <= 1
    assert (found["steady_worst_regret_pct"] or 0) <= 5
    assert (found["mean_regret_pct"] or 0) <= 3


@pytest.mark.parametrize("grid", ["h200_llama8b_eagle_small", "h200_dense32b_eagle"])
@pytest.mark.parametrize(
    ("profiles", "switch"),
    [(WORKLOADS, ()), (POOR, ()), (WORKLOADS, ("gsm8k", "sharegpt"))],
    ids=["each", "poor", "switch"],
)
def test_measured_grids(grid: str, profiles: str, switch: tuple[str, ...]) -> None:
    cases = played(Question(grid=GRIDS / f"{grid}.csv", acceptance=GRIDS / profiles, switch=switch)).cases
    assert cases
    for case in cases:
        _near_the_oracle(case)
        assert case.ratio_to_best_fixed >= 0.99
        assert case.gain_kept_pct is None or case.gain_kept_pct >= 70
        assert (case.time_below_off_pct or 0) < 1


def _near_the_oracle(case: Case) -> None:
    assert case.loads
    for at in case.loads:
        assert at["oracle_ratio_after_first_minute"] >= 0.97, at
        assert at["oracle_ratio"] >= 0.95, at
