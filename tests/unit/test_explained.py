"""`paceline explain`: the numbers that made a decision, as text and as JSON, from status and from a recording."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_engine.protocol import compress
from paceline_operator import explained
from paceline_operator.api.status import (
    BucketStatus,
    Cell,
    DecisionRecord,
    ExplorationStatus,
    GoodputRow,
    ProposalStatus,
    ServingStatus,
    TableRow,
    VerificationMode,
    VerificationRow,
    VerificationStatus,
)
from paceline_operator.cli.app import app
from paceline_operator.replay.traces import Writer
from paceline_operator.tuning.explain import MAX_EVIDENCE
from tests.unit.simulated import Loop, grid, spec, workload

RUNNER = CliRunner()


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A serving whose load goes from 8 to 64 requests and back, three times."""
    path = tmp_path_factory.mktemp("trace") / "chat.jsonl"
    loop = Loop.of(grid("h200_dense32b_eagle.csv"), workload("gsm8k"), noise=0.02)
    with path.open("w") as file:
        write = Writer(file, "team/chat", spec())
        for requests in (8, 64) * 4:
            for _ in range(15):
                for engine in loop.engines.values():
                    engine.requests = requests
                loop.now += loop.interval
                answers = [engine.answer(loop.interval, name) for name, engine in loop.engines.items()]
                write(loop.now, loop.known, answers)
                loop.take(answers)
    assert len(loop.decisions) > MAX_EVIDENCE
    return path


def invoke(*arguments: str) -> str:
    result = RUNNER.invoke(app, ["explain", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_recording_is_explained_decision_by_decision_with_the_numbers_of_each_k(trace: Path) -> None:
    said = invoke("--record", str(trace))
    assert said.startswith("team/chat (")
    assert "tier Live" in said
    assert re.search(r"goodput against k=0 in the same engines: [12]\.\d{3}", said)
    assert "goodput against an engine without a drafter: unknown" in said
    assert "exploration over about an hour:" in said
    assert "verification of drafts: AbsentAtBoot" in said
    assert "at 8 requests: k 5, observed" in said
    decisions = re.findall(r"^\+\d+s (\w+) at (\d+) requests: k (\d) to (\d) \(generation \d+\)$", said, re.MULTILINE)
    assert ("Load", "64", "5", "1") in decisions
    assert ("Load", "8", "1", "5") in decisions
    rows = re.findall(r"^[> <] +(\d)  +([\d.]+) \(([\d.]+) to ([\d.]+)\)", said, re.MULTILINE)
    assert {row[0] for row in rows} == {"0", "1", "2", "3", "5"}
    for _, value, low, high in rows:
        assert float(low) <= float(value) <= float(high)


def test_json_has_the_apis_names_and_the_evidence_of_each_decision(trace: Path) -> None:
    told = json.loads(invoke("--record", str(trace), "-o", "json"))
    decisions = told["status"]["decisions"]
    assert all(len(one["candidates"]) == 5 for one in decisions), "a recording keeps the numbers of all of them"
    row = next(row for row in decisions[0]["candidates"] if row["k"] == 5)
    survival = row["survivalPermille"]
    assert len(survival) == 5
    assert survival == sorted(survival, reverse=True)
    assert row["acceptanceLengthMilli"] == pytest.approx(1000 + sum(survival), rel=0.03)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name a serving"),
        (["team/chat", "--record", "x"], "name a serving"),
        (["--record", "absent.jsonl"], "paceline explain: absent.jsonl: cannot be read: No such file or directory\n"),
        (["--record", __file__], "test_explained.py:1: not the head of a trace"),
        (["team/chat"], "KUBECONFIG"),
        (["team/chat", "-o", "poem"], "poem"),
    ],
)
def test_a_mistake_is_told(arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    result = RUNNER.invoke(app, ["explain", *arguments])
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


NUMBERS = st.integers(-(2**53), 2**53)
TEXT = st.text(max_size=20)


def row(**more: Any) -> st.SearchStrategy[GoodputRow]:
    numbers = {
        name: NUMBERS for name, field in GoodputRow.model_fields.items() if field.annotation is int and name != "k"
    }
    return st.builds(
        GoodputRow,
        k=st.integers(0, 32),
        firing_rate_permille=st.none() | NUMBERS,
        survival_permille=st.lists(NUMBERS, max_size=4),
        borrowed=st.none() | st.booleans(),
        **numbers,
        **more,
    )


MODES = st.sampled_from(VerificationMode)
STATUS = st.builds(
    ServingStatus,
    k=TEXT,
    table=st.lists(st.builds(TableRow, from_requests=st.integers(1, 4096), k=st.integers(0, 32)), max_size=3),
    load_requests=st.none() | NUMBERS,
    ratio_to_k0_permille=st.none() | NUMBERS,
    exploration=st.none()
    | st.builds(
        ExplorationStatus,
        step_share_permille=NUMBERS,
        time_share_permille=NUMBERS,
        tokens_lost=NUMBERS,
        quarantined=st.just([Cell(from_requests=1, k=1)]),
    ),
    verification=st.none()
    | st.builds(
        VerificationStatus,
        mode=MODES,
        cap_tokens=st.none() | NUMBERS,
        starved=st.booleans(),
        message=TEXT,
        measured=st.lists(
            st.builds(
                VerificationRow,
                from_requests=NUMBERS,
                mode=MODES,
                k=NUMBERS,
                cap_tokens=st.none() | NUMBERS,
                gain_permille=NUMBERS,
                low_permille=NUMBERS,
                high_permille=NUMBERS,
            ),
            max_size=2,
        ),
    ),
    proposals=st.lists(st.builds(ProposalStatus, reason=TEXT, message=TEXT), max_size=2),
    buckets=st.lists(
        st.builds(
            BucketStatus,
            from_requests=NUMBERS,
            k=NUMBERS,
            recommended_k=st.none() | NUMBERS,
            observed=st.booleans(),
            candidates=st.lists(row(), max_size=3),
        ),
        max_size=2,
    ),
    decisions=st.lists(
        st.builds(
            DecisionRecord,
            at=TEXT,
            reason=TEXT,
            message=TEXT,
            requests=NUMBERS,
            from_k=NUMBERS,
            to_k=NUMBERS,
            generation=NUMBERS,
            verification=st.none() | MODES,
            candidates=st.lists(row(), max_size=3),
        ),
        max_size=3,
    ),
)


@given(STATUS)
def test_every_status_can_be_told(status: ServingStatus) -> None:
    said = explained.text("team/chat", status)
    assert said.startswith("team/chat\n")
    assert all(record.message.strip() in said for record in status.decisions)


def table(*rows: tuple[int, int]) -> list[TableRow]:
    return [TableRow(from_requests=start, k=k) for start, k in rows]


def test_a_table_that_changes_inside_a_load_is_told_so_and_asked_for_any_load() -> None:
    bucket = BucketStatus(from_requests=16, k=5, observed=False)
    status = ServingStatus(k="3-5", load_requests=16, table=table((1, 5), (17, 3), (24, 2)), buckets=[bucket])
    said = explained.text("team/chat", status)
    assert "\nk 3-5 (from 17 requests on k 3) in force, load 16 requests an engine" in said
    assert "\nat 16 requests: k 5, from 17 on k 3, observing" in said
    at = explained.at("team/chat", status, 20)
    assert at.startswith("team/chat\nat 20 requests: k 3, the table's from 17 to 23\n")
    assert "measured together from 16 to 23 requests:\nat 16 requests: k 5, from 17 on k 3, observing" in at
    assert explained.at("team/chat", status, 24).endswith(
        "k 2, the table's from 24 on\nnothing is known yet from 24 to 31 requests"
    )
    assert explained.at("team/chat", ServingStatus(), 1).endswith(
        "at 1 requests: k unknown\nnothing is known yet at 1 requests"
    )


def test_a_load_is_told_with_its_own_decisions_alone() -> None:
    records = [
        DecisionRecord(
            at=str(load), reason="Load", message=f"moved at {load}", requests=load, from_k=5, to_k=3, generation=1
        )
        for load in (16, 32)
    ]
    bucket = BucketStatus(from_requests=16, k=3, observed=True)
    said = explained.at("a/b", ServingStatus(table=table((1, 3)), buckets=[bucket], decisions=records), 23)
    assert "moved at 16" in said
    assert "moved at 32" not in said


@given(st.lists(st.integers(0, 8), min_size=2, max_size=80), st.data())
def test_the_k_of_a_load_is_that_of_the_dense_table(ks: list[int], data: st.DataObject) -> None:
    dense = [ks[0], *ks]
    requests = data.draw(st.integers(1, len(ks)))
    rows = compress(dense) if data.draw(st.booleans()) else list(enumerate(dense))[1:]
    found = explained.entry(ServingStatus(table=table(*rows)), requests)
    last = len(ks) if found.until_requests is None else found.until_requests
    assert set(dense[found.from_requests : last + 1]) == {found.k} == {dense[requests]}
    assert found.from_requests <= requests <= last
    assert found.from_requests == 1 or dense[found.from_requests - 1] != found.k
    assert found.until_requests is None or dense[found.until_requests + 1] != found.k


def test_a_recording_is_asked_for_one_load(trace: Path) -> None:
    assert re.search(
        r"^at 9 requests: k 5, the table's from 1 to \d+$",
        invoke("--record", str(trace), "--requests", "9"),
        re.MULTILINE,
    )
    told = json.loads(invoke("--record", str(trace), "--requests", "9", "-o", "json"))
    assert told["at"]["requests"] == 9
    assert (told["at"]["k"], told["at"]["bucket"], told["at"]["fromRequests"]) == (5, 8, 1)
