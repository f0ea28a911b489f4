"""A dozen servings as `make bench-scale` runs a thousand: all converge, and faults of some delay no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.scale import __main__ as program
from benchmarks.scale.engines import Engine, Engines, quantile
from benchmarks.scale.measure import Reading, exponent
from benchmarks.scale.trial import Plan, run

pytestmark = pytest.mark.cluster

SERVINGS = 12
PLAN = Plan(converge=90, settle=2, steady=4, change=4, faults=8, rest=0, idle=1, interval=2)
LATE_SECONDS = 4.0
"""Two periods, on a machine that other suites share."""


@pytest.mark.usefixtures("control_plane")
def test_all_converge_and_faults_of_some_delay_no_other(tmp_path: Path) -> None:
    found = run(SERVINGS, PLAN, tmp_path / "plane")
    assert found["converge_seconds"] is not None, found["not_converged"]
    assert found["change"]["lag"]["p99_seconds"] <= LATE_SECONDS, found["change"]
    others, lying = found["faults"]["others"], found["faults"]["lying"]
    # Each of the engines beside the faults was read in most of the periods, and so was the one that tells garbage.
    assert others["readings"] >= 12 * PLAN.faults / PLAN.interval / 2
    assert others["p99_seconds"] <= LATE_SECONDS, found["faults"]
    assert lying["p99_seconds"] <= LATE_SECONDS, found["faults"]
    log = (tmp_path / "plane" / "logs" / "operator.log").read_text()
    assert "Traceback" not in log, log


def test_a_lag_is_what_a_reading_comes_later_than_its_period() -> None:
    engines = Engines()
    engines.by_address["a"] = Engine((b"x",), "a", (0,) * 257, asked=[0.0, 10.0, 23.0, 33.0])
    engines.by_address["b"] = Engine((b"x",), "b", (0,) * 257, asked=[5.0])
    assert engines.lags(5.0, 40.0, 10.0) == [0.0, 0.0, 0.0, 3.0, 25.0], "b is late until the end"
    assert quantile([0.0, 0.0, 3.0, 25.0], 0.5) == 0.0
    assert quantile([], 0.99) == 0.0


def test_the_last_line_tells_of_runs_that_did_not_come_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(program, "RESULTS", tmp_path)
    whole = {"servings": 10, "converged": 10, "converge_seconds": 9.0, "steady_cores": 0.1, "rss_mb": 100.0}
    late = {"servings": 100, "converged": 60, "converge_seconds": None, "converge_operator_cpu_seconds": 7.0}
    for one in (whole, late, {"servings": 1000, "error": "not run"}):
        (tmp_path / f"{one['servings']}.json").write_text(json.dumps(one))
    assert program.line(10)["cores_steady"] == 0.1
    told = program.line(100)
    assert (told["converged"], told["converge_seconds"], told["converge_operator_cpu_seconds"]) == (60, None, 7.0)
    assert program.line(1000)["error"] == "not run"


def test_the_exponent_of_a_power_law_is_its_power() -> None:
    assert exponent([(10, 3.0), (100, 30.0), (1000, 300.0)]) == 1.0
    assert exponent([(10, 5.0), (1000, 5.0)]) == 0.0
    assert exponent([(10, 5.0)]) is None


def test_what_was_asked_between_two_looks_is_told_by_kind_the_most_first() -> None:
    first = Reading(
        0.0, 0.0, 0.0, 1.0, {("Pod", "200"): 3.0, ("Job", "200"): 1.0}, {("Event", "create", "201"): 2.0}, 0.0
    )
    writes = {("Event", "create", "201"): 3.0, ("SpeculativeServing", "patch", "200"): 9.0}
    last = Reading(1.0, 0.0, 0.0, 1.0, {("Pod", "200"): 8.0, ("Job", "200"): 1.0}, writes, 0.0)
    assert (last.reads, last.all_writes) == (9.0, 12.0)
    told = last.since(first)
    assert told["reads_by_kind"] == {"Pod/200": 5.0}
    assert list(told["writes_by_kind"].items()) == [("SpeculativeServing/patch/200", 9.0), ("Event/create/201", 1.0)]
