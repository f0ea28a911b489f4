"""How far an experiment is: windows counted, the newest shown, and nothing made up where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from paceline_operator.cli.app import app
from paceline_operator.experiment import watched
from paceline_operator.experiment.plan import plan
from tests.unit.test_experiment_plan import spec
from tests.unit.test_profiling_measured import result, window


def test_rows_count_what_is_there() -> None:
    planned = plan(spec())
    newest = window(16, 1, 0.02, 2.0, client={"ttft": None, "tpot": dict.fromkeys(("mean", "p50", "p95", "p99"), 9.5)})
    there = result("serving", 3, [window(1, 0, 0.02, 2.0, warmed=False), newest])
    base = result("baseline", 0, [])
    rows = {row[0]: row for row in watched.rows(planned, {"baseline": base, "serving": there})}
    assert set(rows) == set(planned.variants)
    total = planned.rounds * len({one.load for visit in planned.visits for one in visit.measurements})
    assert rows["serving"][1:5] == ["3", f"2/{total}", "1", "16"]
    assert rows["serving"][6:8] == ["9.50", "2.00"]
    assert rows["baseline"][1:] == ["0", f"0/{total}", *["-"] * 6]
    assert all(len(row) == len(watched.HEAD) for row in watched.rows(planned, {}))


@pytest.mark.parametrize("files", [{}, {"experiment.yaml": "kind: x"}, {"experiment.yaml": "- ["}])
def test_a_folder_that_is_none_of_an_experiment_is_told_in_one_line(tmp_path: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    said = CliRunner().invoke(app, ["experiment", "watch", str(tmp_path)])
    assert said.exit_code == 2
    assert said.output.startswith("paceline experiment watch: ")


def test_a_folder_that_has_only_begun_is_watched_once_in_a_pipe(tmp_path: Path) -> None:
    example = Path(__file__).resolve().parents[2] / "examples" / "experiments" / "four-variants.yaml"
    wanted = ("SpeculationExperiment", "SpeculativeServing")
    documents = [one for one in yaml.safe_load_all(example.read_text()) if one["kind"] in wanted]
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump_all(documents))
    said = CliRunner().invoke(app, ["experiment", "watch", str(tmp_path)])
    assert said.exit_code == 0, said.output
    assert "nothing measured yet" in said.output
    assert said.output.startswith("VARIANT")
