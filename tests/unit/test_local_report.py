"""Report and view of a run: what they promise is in them, whatever the run had time to measure."""

import dataclasses
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.local import report
from paceline_operator.local.record import DecisionRecord, EngineRecord, PhaseRecord, Record
from paceline_operator.local.tally import Cluster, Tally
from paceline_operator.local.view import LiveView, PlainView, View, screen
from paceline_operator.tuning.decide import settings_of, step
from paceline_operator.tuning.model import Engine, Memory
from tests.unit.simulated import POOR, SimulatedEngine, fixed

SERVING = SpeculativeServing.model_validate(
    {
        "apiVersion": naming.API_VERSION,
        "kind": naming.KIND_SERVING,
        "metadata": {"name": "one", "uid": "u"},
        "spec": {
            "model": {"source": "/models/m"},
            "engine": {"maxNumSeqs": 32},
            "speculation": {"method": "ngram", "maxTokens": 3},
            "tuning": {"ladder": [3, 1, 0], "intervalSeconds": 5},
        },
    }
)
Phases = Sequence[tuple[int, str, int]]
"""(concurrency, text, passes)"""
RUN: Phases = ((1, "copy", 25), (16, "numbers", 25))


def cost(requests: int, k: int) -> float:
    """A machine on which drafts are cheap for one request and dear for many."""
    return 0.02 * (1 + 0.02 * k + requests * (k + 1) / 20)


def recorded(phases: Phases, seed: int = 0) -> Record:
    """A run of the real tuner over a simulated engine, as run.py records it."""
    of = settings_of(SERVING.spec)
    engine = SimulatedEngine(cost, fixed(POOR), of.boot_table, of.ladder, np.random.default_rng(seed), noise=0.01)
    record = Record(SERVING, "2026-01-01T00:00:00Z", ended_by="the last phase")
    record.engines = [EngineRecord("one-0", [4711], state=engine.state())]
    record.completed_requests = 12
    memory, now = Memory(), 0.0
    for concurrency, text, passes in phases:
        engine.requests = concurrency
        record.phases.append(PhaseRecord(concurrency, text))
        for _ in range(passes):
            samples = engine.run(of.interval_seconds)
            now += of.interval_seconds
            seen = Engine("one-0", state=engine.state(), samples=samples)
            found = step(of, memory, [seen], known_generation=0, now=now)
            memory, record.step, record.seconds = found.memory, found, now
            if found.policy is not None:
                engine.push(found.policy)
            record.decisions += [DecisionRecord(now, decision) for decision in found.decisions]
            phase = record.phases[-1]
            phase.table = found.table
            phase.tally.add(samples)
            phase.tally.seconds += of.interval_seconds
            phase.tally.tokens += 100
    return record


@pytest.fixture(scope="module")
def record() -> Record:
    return recorded(RUN)


def shown(make: Any, *records: Record) -> str:
    output = io.StringIO()
    view: View = make(Console(file=output, width=130, force_terminal=make is LiveView))
    view.starting("one-0", 1.0, "loading")
    for one in records:
        view.update(one)
    view.close()
    view.say("[bold]said[/bold]")
    return output.getvalue()


def test_the_report_has_what_it_promises(record: Record) -> None:
    found = json.loads(json.dumps(report.build(record), allow_nan=False))
    assert (found["engine_restarts"], found["failed_requests"], found["completed_requests"]) == (0, 0, 12)
    assert found["ended_by"] == "the last phase"
    assert set(found["versions"]) >= {"paceline", "plugin", "engine", "python"}
    low, high = found["ratio_to_k0"]["interval"]
    assert low <= found["ratio_to_k0"]["value"] <= high
    assert found["decisions"]
    for decision in found["decisions"]:
        assert {"at_seconds", "reason", "message", "from", "to"} <= set(decision)
        assert decision["from"] != decision["to"]
        assert decision["candidates"]
    for phase, (concurrency, text, _) in zip(found["phases"], RUN, strict=True):
        assert (phase["concurrency"], phase["text"]) == (concurrency, text)
        assert phase["table"][0]["from_requests"] == 1
        assert sum(phase["k_in_force"].values()) > 0
        assert phase["tokens_per_second"] == 20.0
        assert phase["acceptance_length"] >= 1
        assert [row["position"] for row in phase["acceptance_by_position"]] == [1, 2, 3]


def test_the_sweep_shows_where_the_best_k_differs(record: Record) -> None:
    sweeps = [phase["sweep"] for phase in report.build(record)["phases"]]
    best = [max(sweep["goodput_by_k"], key=lambda row: row["goodput"])["k"] for sweep in sweeps]
    assert [sweep["load"] for sweep in sweeps] == [1, 16]
    assert best == [3, 0] or best == [1, 0]


def test_the_summary_tells_decisions_and_goodputs(record: Record) -> None:
    text = report.summary(record)
    assert "engine restarts 0, requests 12 completed, 0 failed" in text
    for made in record.decisions:
        assert made.decision.message in text
    assert "Phase 2: 16 requests of numbers; goodput of each k at load 16" in text


@given(st.sets(st.integers(0, 5)))
def test_a_k_that_was_not_compared_is_not_told_as_the_best(ks: set[int]) -> None:
    tally = Tally()
    tally.clusters.update({(4, k): [Cluster(1.0 + k, 1.0, 10)] * 2 for k in ks})
    tally.table_clusters[4] = [Cluster(1.0, 1.0, 10)] * 2
    best = "-" if not ks else str(max(ks))
    assert report.best(tally) == best + (" (only one measured)" if len(ks) == 1 else "")


def test_the_rows_leave_out_what_is_left_of_the_phase_before_and_say_so() -> None:
    one = recorded(RUN)
    assert "phase before" not in report.summary(one) + shown(PlainView, one)
    before = report.build(one)
    phase = one.phases[-1]
    row = next(line for line in report.summary(one).splitlines() if line.startswith("| 16 | numbers"))
    phase.drain.seconds, phase.drain.tokens, phase.left_over = 24.2, 99_999, 19
    phase.drain.steps_by_k[3] = 9_999
    assert row in report.summary(one)
    assert "were still answered: 24 s of phase 2.\n" in report.summary(one)
    assert "sends 16 at a time (numbers), 19 of the phase before go on |" in shown(PlainView, one)
    found = report.build(one)
    assert [phase["drain_seconds"] for phase in found["phases"]] == [0, 24.2]
    assert found["phases"][1]["seconds"] == round(before["phases"][1]["seconds"] + 24.2, 1)
    assert found["phases"][1]["tokens_per_second"] == before["phases"][1]["tokens_per_second"]


def test_a_summary_without_decisions_says_why() -> None:
    slow = report.summary(recorded(((16, "numbers", 1),)))
    assert "- none: not every k of the ladder is measured at 16 requests yet" in slow
    assert re.search(r"There were [1-9]\d* steps in 5 s, and a decision needs about 14 at each k", slow)
    assert "too slow or too busy for this load" in slow
    right = recorded(((1, "copy", 60),))
    right.decisions.clear()
    assert right.step is not None
    assert f"- none: {right.step.reason.value}: {right.step.message}" in report.summary(right)
    assert "too slow" not in report.summary(right)
    assert "- none: no pass was made" in report.summary(recorded(()))


def test_it_is_written_whole_and_readable(tmp_path: Path, record: Record) -> None:
    report.write(record, tmp_path / "report.json")
    assert json.loads((tmp_path / "report.json").read_text()) == json.loads(json.dumps(report.build(record)))
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("phases", [(), ((1, "copy", 0),), ((0, "copy", 3),), ((1, "copy", 1),)])
def test_a_run_that_was_cut_short_still_reports_and_shows(phases: Phases) -> None:
    cut = recorded(phases)
    assert report.build(cut)["ratio_to_k0"]["value"] is None
    assert "not measured" in report.summary(cut)
    for make in (PlainView, LiveView):
        assert "said" in shown(make, cut)


@settings(deadline=None, max_examples=15)
@given(
    st.lists(st.tuples(st.integers(0, 32), st.sampled_from(["copy", "numbers"]), st.integers(0, 6)), max_size=3),
    st.integers(0, 1000),
)
def test_any_run_reports_numbers_that_json_can_say(phases: Phases, seed: int) -> None:
    one = recorded(phases, seed)
    json.dumps(report.build(one), allow_nan=False)
    assert report.summary(one)
    assert shown(PlainView, one)
    Console(file=io.StringIO(), width=60).print(screen(one))


def test_plain_lines_tell_a_pass_and_each_decision_once(record: Record) -> None:
    text = shown(PlainView, record, record)
    assert text.count("sends 16 at a time (numbers)") == 2
    assert text.count("DECISION") == len(record.decisions)
    assert "table 1:" in text
    assert "[bold]said[/bold]" in text
    assert "\x1b" not in text


@given(st.lists(st.tuples(st.sampled_from("ABC"), st.lists(st.sampled_from("ABC"), max_size=2)), max_size=8))
def test_plain_lines_say_why_only_where_it_is_new(record: Record, passes: list[tuple[str, list[str]]]) -> None:
    """(the step's message, those of the decisions made in it) a pass."""
    made, one = record.decisions[0], dataclasses.replace(record, decisions=[])
    output, before, wanted = io.StringIO(), "", []
    view = PlainView(Console(file=output))
    for message, decisions in passes:
        assert one.step is not None
        one.step = dataclasses.replace(one.step, reason=made.decision.reason, message=message)
        one.decisions += [
            dataclasses.replace(made, decision=dataclasses.replace(made.decision, message=text)) for text in decisions
        ]
        view.update(one)
        wanted += ["" if message in (before, *decisions) else message, *(f"DECISION {text}" for text in decisions)]
        before = message
    said = re.findall(
        rf"failed(?: \| {made.decision.reason.value}: (.))?$|(DECISION) \w+: (.)$", output.getvalue(), re.M
    )
    assert [why or f"{decision} {text}".strip() for why, decision, text in said] == wanted


def test_a_line_of_an_engine_is_cut_and_what_paceline_says_is_not() -> None:
    output = io.StringIO()
    view = PlainView(Console(file=output))
    view.starting("one-0", 67.0, "config: " + "x" * 4000)
    view.starting("one-0", 68.0, "short\x1b")
    view.say("y" * 4000)
    first, second, said = output.getvalue().splitlines()
    assert len("one-0 starting, 67 s: config: ") < len(first) < 250
    assert (second, len(said)) == ("one-0 starting, 68 s: short", 4000)


def test_the_screen_shows_load_table_positions_ks_and_decisions(record: Record) -> None:
    output = io.StringIO()
    Console(file=output, width=160).print(screen(record))
    text = output.getvalue()
    for heading in ("survival", "conditional", "adds", "tok/pos", "95 %", "decisions", "pid 4711"):
        assert heading in text
    assert "16 requests of numbers" in text
    assert record.decisions[-1].decision.reason.value in text
