"""Published tables: what is read, what is left out, and that no file can stop the rest."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.speculation import Method
from paceline_operator.cli.replay import OWN_TABLES
from paceline_operator.replay.notes import Note, folded
from paceline_operator.replay.tables import Found, Point, Table, method_of, read

HEAD = "table_id,method,workload,load_kind,load,arm,k,tok_s,acceptance_len,valid_output,notes"


def found(tmp_path: Path, content: str | bytes, name: str = "t.csv") -> Found:
    path = tmp_path / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read([path])


def table(tmp_path: Path, *rows: str) -> Found:
    return found(tmp_path, "\n".join([HEAD, *rows]) + "\n")


def reasons(notes: list[Note]) -> list[str]:
    return [f"{note.line}: {note.reason}" for note in notes]


def test_the_projects_tables_are_the_cases_of_their_own_index() -> None:
    """best_k.csv lists every case of these files with its arms and its best k."""
    with (OWN_TABLES / "best_k.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["use_as_test"] in ("k choice", "pairwise")]
    listed = {(row["table_id"], row["workload"], int(row["load"])): row for row in rows}
    got = read([OWN_TABLES])
    assert not got.problems
    cases = {(one.table_id, one.workload, load): arms for one in got.tables for load, arms in one.points.items()}
    assert cases.keys() == listed.keys()
    for key, arms in cases.items():
        assert len(arms) == int(listed[key]["n_fixed_arms"])
        assert max(point.tok_s for point in arms.values()) == float(listed[key]["best_tok_s"])


@pytest.mark.parametrize("delimiter", [";", "\t"])
def test_values_between_semicolons_or_tabs_and_comments(tmp_path: Path, delimiter: str) -> None:
    rows = ["# measured, by hand", "load,k,tok_s", "8,0,100", "# the second day", "8,2,150"]
    got = found(tmp_path, "\n".join(row if row[0] == "#" else row.replace(",", delimiter) for row in rows))
    assert not got.problems
    assert not got.skipped
    assert got.tables[0].points == {8: {0: Point(100, 1.0, False), 2: Point(150, None, False)}}


def test_a_header_alone_is_told_of(tmp_path: Path) -> None:
    got = found(tmp_path, HEAD + "\n\n")
    assert reasons(got.problems) == ["None: a header without rows"]


def test_a_table_is_read_whatever_its_dress(tmp_path: Path) -> None:
    """A byte order mark, CRLF, quoted commas and line ends, other columns and orders, whole numbers with a point."""
    rows = [
        "k,load,tok_s,Arm,extra,table_id,workload,acceptance_len",
        '0,16.0,100,no_spec,"a, b",X,"code, long",',
        '2.0,16,150.5,fixed,"two\r\nlines",X,"code, long",2.1',
        "",
        '4,1.6e1,120,FIXED,,X,"code, long",',
    ]
    got = found(tmp_path, "\ufeff" + "\r\n".join(rows) + "\r\n")
    points = {0: Point(100, 1.0, True), 2: Point(150.5, 2.1, False), 4: Point(120, None, False)}
    assert got.tables == [Table(str(tmp_path / "t.csv"), "X", "code, long", Method.EAGLE, {16: points})]
    assert not got.problems


def test_rows_that_are_no_candidates_are_told_and_left(tmp_path: Path) -> None:
    got = table(
        tmp_path,
        "X,eagle,w,batch,4,no_spec,0,100,,,",
        "X,eagle,w,batch,4,fixed,1,400,,no: below the block size,",
        "X,eagle,w,batch,4,adaptive,<=7,900,,,",
        "X,eagle,w,batch,4,policy,3,900,,,",
        "X,eagle,w,batch,4,fixed,full block,900,,,",
        "X,eagle,w,qps,4,fixed,3,900,,,",
        "X,eagle,w,batch,4,fixed,3,200,,yes,",
        "X,eagle,w,batch,8,fixed,3,300,,,",
    )
    assert not got.problems
    assert [list(arms) for arms in got.tables[0].points.values()] == [[0, 3]]
    assert reasons(got.skipped) == [
        "3: k=1 is no candidate: valid_output is 'no: below the block size'",
        "4: arm 'adaptive' is no fixed k",
        "5: arm 'policy' is no fixed k",
        "6: a fixed arm without a number: k is 'full block'",
        "7: load in qps: tok/s follows the arrivals there, not k",
        "None: X w: fewer than two valid fixed arms at load 8",
    ]


def test_rows_that_cannot_be_are_named_with_their_line(tmp_path: Path) -> None:
    got = table(
        tmp_path,
        "X,eagle,w,batch,4,no_spec,0,100,,,",
        "X,eagle,w,batch,4,fixed,1,,,,",
        "X,eagle,w,batch,4,fixed,1,nan,,,",
        "X,eagle,w,batch,4,fixed,1,-5,,,",
        "X,eagle,w,batch,4,fixed,1.5,200,,,",
        "X,eagle,w,batch,4,fixed,-1,200,,,",
        "X,eagle,w,batch,0,fixed,1,200,,,",
        "X,eagle,w,batch,many,fixed,1,200,,,",
        "X,eagle,w,batch,4,no_spec,3,200,,,",
        "X,eagle,code, long,batch,4,fixed,1,200,,,noted",
        "X,eagle,w,batch,4,fixed,2,150,9.5,,",
        "X,eagle,w,batch,4,fixed,2,160,,,",
    )
    assert list(got.tables[0].points[4].items()) == [(0, Point(100, 1.0, True)), (2, Point(150, None, False))]
    assert sorted(reasons(got.problems), key=lambda text: int(text.split(":")[0])) == [
        "3: no tok_s",
        "4: tok_s 'nan' is not a number",
        "5: tok_s '-5' cannot be at load 4",
        "6: k '1.5' is not a whole number from 0 to 64",
        "7: k '-1' is not a whole number from 0 to 64",
        "8: load '0' is not a whole number from 1 to 65536",
        "9: load 'many' is not a number",
        "10: no_spec with k=3: a drafter is there or is not",
        "11: 12 values under 11 columns: a value without quotes?",
        "12: acceptance_len 9.5 is not between 1 and k+1 = 3; acceptance counts as unknown",
    ]
    assert reasons(got.skipped) == ["13: k=2 at load 4 a second time: the first counts"]


def test_a_quote_that_never_closes_is_named_and_loses_no_row_before_it(tmp_path: Path) -> None:
    rows = [
        "X,,w,,4,no_spec,off,90,,,",
        "X,,w,,4,fixed,1,95,,not checked,",
        'X,,w,,4,fixed,2,97,,,"open',
        "X,,w,,4,fixed,3,99,,,",
    ]
    got = table(tmp_path, *rows)
    assert list(got.tables[0].points[4]) == [0, 1]
    assert reasons(got.problems) == ["4: not CSV: unexpected end of data"]


@pytest.mark.parametrize("kind", ["qps", "request_rate", "req/s", "requests per second", "requests_per_sec", "RPS"])
def test_arrivals_are_no_load(tmp_path: Path, kind: str) -> None:
    assert not table(tmp_path, f"X,,w,{kind},4,fixed,1,95,,,", f"X,,w,{kind},4,fixed,2,97,,,").tables


@pytest.mark.parametrize("kind", ["batch", "client_concurrency", "requests_per_step", "", "integrated"])
def test_requests_at_once_are_a_load(tmp_path: Path, kind: str) -> None:
    assert table(tmp_path, f"X,,w,{kind},4,fixed,1,95,,,", f"X,,w,{kind},4,fixed,2,97,,,").tables


def test_k0_of_a_speculative_engine_counts_before_an_engine_without_a_drafter(tmp_path: Path) -> None:
    rows = ["X,,w,,4,no_spec,0,100,,,", "X,,w,,4,fixed,0,90,,,", "X,,w,,4,fixed,1,95,,,"]
    for order in (rows, rows[::-1]):
        got = table(tmp_path, *order)
        assert got.tables[0].points[4][0] == Point(90, 1.0, False)
        assert len(got.skipped) == 1
        assert not got.problems


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "1: empty"),
        (b"\n\n", "1: empty"),
        (b"\x89PNG\r\n\0\0", "2: binary, not text"),
        (HEAD.encode() + b"\nX,\xff", "2: not UTF-8 (byte 0xff)"),
        (b"table_id,load,arm,k\nX,1,fixed,1", "1: not a k-choice table: no column tok_s"),
    ],
)
def test_a_file_that_cannot_be_read_is_named_and_the_rest_goes_on(tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    (tmp_path / "b.csv").write_text(f"{HEAD}\nX,,w,,4,fixed,0,90,,,\nX,,w,,4,fixed,1,95,,,\n")
    got = read([tmp_path, tmp_path / "absent.csv"])
    assert [one.table_id for one in got.tables] == ["X"]
    assert reasons(got.problems) == [told, "None: cannot be read: No such file or directory"]
    assert got.problems[0].file.endswith("a.csv")


def test_a_case_of_two_files_counts_once(tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(f"{HEAD}\nX,,w,,4,fixed,0,90,,,\nX,,w,,4,fixed,1,95,,,\n")
    got = read([tmp_path, tmp_path / "a.csv"])
    assert len(got.tables) == 1
    assert reasons(got.skipped) == [f"None: X at load 4 was read from {tmp_path / 'a.csv'} already"]


def test_other_files_of_a_folder_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "grid.csv").write_text("concurrency,k,steps,step_ms,tok_s,tok_per_req_step\n1,0,1,1,1,1\n")
    (tmp_path / "profile.csv").write_text("dataset,method,k,survival\na,eagle,1,0.5\n")
    (tmp_path / "best.csv").write_text("table_id,load,best_k\nX,1,2\n")
    got = read([tmp_path])
    assert [note.reason.split(":")[0] for note in got.skipped] == [
        "not a k-choice table",
        "a step-cost grid",
        "an acceptance profile",
    ]
    assert not got.problems


@pytest.mark.parametrize(
    ("words", "method"),
    [("eagle topk=1", "eagle"), ("EAGLE3", "eagle3"), ("ngram-gpu", "ngram_gpu"), ("dflash2", "dflash"), ("", "eagle")],
)
def test_a_method_in_the_files_own_words(words: str, method: str) -> None:
    assert method_of(words) == method


def test_notes_of_one_reason_are_one() -> None:
    notes = [Note("a", 2, "x"), Note("a", 3, "y"), Note("a", 9, "x"), Note("b", 1, "x")]
    assert list(map(str, folded(notes))) == ["a:2: x (and 1 more line)", "a:3: y", "b:1: x"]


values = st.one_of(
    st.text(max_size=12),
    st.integers(-3, 70).map(str),
    st.floats().map(repr),
    st.sampled_from(["fixed", "no_spec", "adaptive", "no", "yes", "qps", "batch", "1e999", "0x10", "1_0", "٣", "16.0"]),
)


@given(rows=st.lists(st.lists(values, min_size=0, max_size=13), max_size=12), bom=st.booleans())
def test_no_row_raises_and_what_is_read_can_be(
    tmp_path_factory: pytest.TempPathFactory, rows: list[list[str]], bom: bool
) -> None:
    out = io.StringIO(newline="")
    csv.writer(out).writerows([HEAD.split(","), *rows])
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes((("\ufeff" if bom else "") + out.getvalue()).encode("utf-8", "surrogatepass"))
    for one in read([path]).tables:
        for load, arms in one.points.items():
            assert 1 <= load <= 65_536
            assert len(arms) >= 2
            for k, point in arms.items():
                assert 0 <= k <= 64
                assert 1e-3 <= point.tok_s / load <= 2e4
                assert point.length is None or 1 <= point.length <= k + 1


@given(content=st.binary(max_size=200), head=st.booleans())
def test_no_bytes_raise(tmp_path_factory: pytest.TempPathFactory, content: bytes, head: bool) -> None:
    path = tmp_path_factory.mktemp("t") / "t.csv"
    path.write_bytes((HEAD.encode() + b"\n" if head else b"") + content)
    read([path])
