"""Grids and profiles: what is read, and the truth that follows."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.speculation import Method
from paceline_operator.cli.replay import OWN_TABLES
from paceline_operator.replay import grids
from paceline_operator.replay.ask import Question, material
from paceline_operator.replay.grids import Read, read_acceptance, read_grid

GRIDS = OWN_TABLES.parent / "grids"
GRID = "concurrency,k,steps,step_ms,tok_s,tok_per_req_step\n"
PROFILE = "dataset,target,method,k,requests,drafts,mean_acceptance_length,survival\n"


def test_step_cost_times_acceptance_is_the_truth() -> None:
    files = (GRIDS / "h200_llama8b_eagle_small.csv", GRIDS / "workload_acceptance.csv")
    got = material(Question(grid=files[0], acceptance=files[1]))
    assert not got.problems
    assert [(one.table_id, one.workload) for one in got.courses] == [
        ("h200_llama8b_eagle_small", "gsm8k"),
        ("h200_llama8b_eagle_small", "sharegpt"),
    ]
    course = got.courses[0]
    assert course.setup.ladder == (7, 5, 4, 3, 2, 1, 0)
    assert course.setup.method is Method.EAGLE
    truth = dict(course.truths)["gsm8k"]
    assert truth[64][0].rate(64) == pytest.approx(64 / 0.0066002)
    assert truth[64][2].rate(64) == pytest.approx(64 * (1 + 0.6857 + 0.4480) / 0.0091138)
    best = {load: max(arms, key=lambda k: arms[k].rate(load)) for load, arms in truth.items()}
    assert best == {1: 3, 8: 3, 64: 1}, "what the source of the profiles says too"


def test_a_switch_is_one_course_of_both_workloads() -> None:
    files = (GRIDS / "h200_llama8b_eagle_small.csv", GRIDS / "workload_acceptance.csv")
    got = material(Question(grid=files[0], acceptance=files[1], switch=("gsm8k", "sharegpt")))
    assert [one.workload for one in got.courses] == ["gsm8k,sharegpt"]
    assert [name for name, _ in got.courses[0].truths] == ["gsm8k", "sharegpt"]


def test_only_the_methods_rows_are_taken() -> None:
    got = Read()
    read_acceptance(GRIDS / "workload_acceptance.csv", "ngram", got)
    assert got.survivals["gsm8k"][1] == (0.1095,)
    read_acceptance(GRIDS / "workload_acceptance.csv", "mtp", got)
    assert [note.reason for note in got.problems] == ["no rows of method mtp: there is eagle, ngram"]


def test_the_poor_profile_makes_k0_the_best_at_high_load() -> None:
    got = material(Question(grid=GRIDS / "h200_dense32b_eagle.csv", acceptance=GRIDS / "poor.csv"))
    truth = dict(got.courses[0].truths)["poor"]
    best = {load: max(arms, key=lambda k: arms[k].rate(load)) for load, arms in truth.items()}
    assert [load for load, k in best.items() if k == 0] == [192, 256]


def test_lines_that_cannot_be_are_named(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text(
        GRID + "1,0,9,5.0,,\n1,1,9,x,,\n1,1,9,6,,\n1,1,9,7,,\n1.5,1,9,6,,\n0,1,9,6,,\n1,2,9,-6,,\n"
    )
    (tmp_path / "a.csv").write_text(
        PROFILE
        + "c,,eagle,1,,,,0.7\nc,,eagle,2,,,,0.7\nc,,eagle,2,,,,0.5 0.7\nc,,eagle,2,,,,0.5 none\nd,,ngram,2,,,,\n"
    )
    got = material(Question(grid=tmp_path / "g.csv", acceptance=tmp_path / "a.csv"))
    assert [f"{Path(note.file).name}:{note.line} {note.reason}" for note in got.problems] == [
        "g.csv:3 step_ms 'x' is not a number",
        "g.csv:5 k=1 at 1 requests a second time: the first counts",
        "g.csv:6 concurrency '1.5' is not a whole number from 1 to 65536",
        "g.csv:7 concurrency '0' is not a whole number from 1 to 65536",
        "g.csv:8 step_ms '-6' cannot be",
        "a.csv:3 survival has 1 shares for k=2",
        "a.csv:4 survival must be shares from 0 to 1 that do not rise",
        "a.csv:5 survival 'none' is not a number",
    ]
    assert [course.setup.ladder for course in got.courses] == [(1, 0)]


def test_ks_that_are_not_everywhere_are_no_candidates(tmp_path: Path) -> None:
    (tmp_path / "g.csv").write_text(
        GRID + "1,0,9,5,,\n1,1,9,6,,\n1,2,9,7,,\n1,3,9,8,,\n8,0,9,5,,\n8,1,9,6,,\n8,2,9,7,,\n"
    )
    (tmp_path / "a.csv").write_text(PROFILE + "c,,eagle,1,,,,0.7\n")
    got = material(Question(grid=tmp_path / "g.csv", acceptance=tmp_path / "a.csv"))
    assert got.courses[0].setup.ladder == (1, 0)
    assert [note.reason for note in got.skipped] == ["c: not every load or profile has k 2, 3: no candidate"]


@pytest.mark.parametrize(
    ("question", "said"),
    [
        (Question(grid=Path("g")), "--grid and --acceptance go together"),
        (Question(acceptance=Path("a")), "--grid and --acceptance go together"),
        (Question(switch=("a", "b")), "--switch goes with --grid"),
        (Question(grid=Path("g"), acceptance=Path("a"), switch=("a",)), "--switch takes two or more workloads"),
    ],
)
def test_a_question_without_meaning_is_answered_in_words(question: Question, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        material(question)


def test_an_unknown_workload_is_answered_with_those_that_are_there() -> None:
    files = (GRIDS / "h200_llama8b_eagle_small.csv", GRIDS / "workload_acceptance.csv")
    with pytest.raises(ValueError, match=r"no workload code among .* there is gsm8k, sharegpt"):
        material(Question(grid=files[0], acceptance=files[1], switch=("gsm8k", "code")))


cell = st.one_of(st.text(max_size=8), st.integers(-2, 80).map(str), st.floats().map(repr))


@given(rows=st.lists(st.lists(cell, max_size=8), max_size=8))
def test_no_rows_raise(tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("g")
    body = "\n".join(",".join(row) for row in rows)
    (folder / "g.csv").write_bytes((GRID + body).encode("utf-8", "surrogatepass"))
    (folder / "a.csv").write_bytes((PROFILE + body).encode("utf-8", "surrogatepass"))
    got = Read()
    read_grid(folder / "g.csv", got)
    read_acceptance(folder / "a.csv", "eagle", got)
    if got.grid and got.survivals:
        list(grids.courses(folder / "g.csv", got, "eagle", ("walk",), (), 10.0))
