"""`paceline replay` as it is called: folders it has never seen, mistakes of the person, the JSON."""

from __future__ import annotations

import io
import json
import os
import re
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result
from rich.console import Console
from typer.main import get_command
from typer.testing import CliRunner

from paceline_operator.cli.app import app
from paceline_operator.cli.replay import COLUMNS, OWN_TABLES, _table
from paceline_operator.replay.notes import Note
from paceline_operator.replay.score import Case, overall

GRIDS = OWN_TABLES.parent / "grids"
HEAD = "table_id,load_kind,load,arm,k,tok_s\n"
TABLE = HEAD + "X,batch,4,no_spec,0,100\nX,batch,4,fixed,2,150\n"


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs in this process."""
    monkeypatch.setattr("os.cpu_count", lambda: 1)


def called(*words: object) -> Result:
    return CliRunner().invoke(app, ["replay", *map(str, words)])


def written(tmp_path: Path, *words: object) -> tuple[Result, dict[str, Any]]:
    out = tmp_path / "out.json"
    result = called(*words, "--seed", 0, "--json", out)
    assert result.exit_code == 0, result.output
    return result, json.loads(out.read_text())


def test_a_folder_it_has_never_seen_just_works(tmp_path: Path) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()
    (folder / "a.csv").write_text(TABLE)
    (folder / "b.csv").write_text(HEAD + "Y,batch,4,fixed,1,200\nY,batch,4,fixed,3,no\nY,batch,4,fixed,2,100\n")
    (folder / "broken.csv").write_bytes(b"\0\1\2")
    (folder / "index.csv").write_text("table_id,load,best_k\n")
    (folder / "rates.csv").write_text(HEAD + "Z,qps,4,fixed,1,200\nZ,qps,4,fixed,3,100\n")
    result, body = written(tmp_path, folder)
    assert [(case["table_id"], case["load"]) for case in body["cases"]] == [("X", 4), ("Y", 4)]
    assert body["overall"]["cases"] == 2
    assert [(Path(note["file"]).name, note["line"]) for note in body["problems"]] == [("b.csv", 3), ("broken.csv", 1)]
    assert "rates.csv:2: load in qps" in result.output
    assert "b.csv:3: tok_s 'no' is not a number" in result.output
    assert "decisions" not in body


@pytest.mark.parametrize(("terminal", "shown"), [(False, "w" * 40), (True, "w" * 24)])
def test_a_workload_is_cut_on_a_terminal_alone(terminal: bool, shown: str) -> None:
    out = io.StringIO()
    row = ["X", "w" * 40, *("1" for _ in range(len(COLUMNS) - 2))]
    with redirect_stdout(out):
        _table(Console(file=out, force_terminal=terminal, width=300), [row])
    assert re.findall("w{24,}", out.getvalue()) == [shown]


def test_a_grid_with_a_switch(tmp_path: Path) -> None:
    grid, profile = GRIDS / "h200_llama8b_eagle_small.csv", GRIDS / "workload_acceptance.csv"
    words = ("--grid", grid, "--acceptance", profile, "--switch", "gsm8k,sharegpt", "--load", "steps", "--decisions")
    result, body = written(tmp_path, *words)
    (case,) = body["cases"]
    assert (case["table_id"], case["workload"], case["load"]) == ("h200_llama8b_eagle_small", "gsm8k,sharegpt", None)
    assert [one["load"] for one in case["loads"]] == [1, 8, 64]
    assert body["decisions"]
    assert body["decisions"][0]["message"] in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["/nowhere/at/all.csv"], "nothing to replay"),
        (["--grid", "g.csv"], "--grid and --acceptance go together"),
        (["--switch", "a,b"], "--switch goes with --grid"),
        (["--json", "/nowhere/out.json"], "--json /nowhere/out.json"),
        (["--grid", str(GRIDS / "poor.csv"), "--acceptance", str(GRIDS / "poor.csv")], "nothing to replay"),
        (["--seed", "-1"], "Invalid value for '--seed'"),
    ],
)
def test_a_mistake_is_answered_in_words(words: list[str], said: str) -> None:
    result = called(*words)
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_the_json_is_there_whole_or_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    written(tmp_path, tmp_path / "a.csv")
    (link := tmp_path / "link.json").symlink_to("out.json")
    before, write = (tmp_path / "out.json").read_text(), Path.write_text

    def full(path: Path, text: str) -> int:
        write(path, text[: len(text) // 2])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    result = called(tmp_path / "a.csv", "--seed", 1, "--json", link)
    assert (result.exit_code, "No space left on device" in result.output) == (2, True)
    assert link.read_text() == before
    monkeypatch.setattr(Path, "write_text", write)
    assert called(tmp_path / "a.csv", "--seed", 1, "--json", link).exit_code == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "out.json").read_text()) != json.loads(before)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.csv", "link.json", "out.json"]
    assert called(tmp_path / "a.csv", "--seed", 0, "--json", os.devnull).exit_code == 0
    assert Path(os.devnull).is_char_device()


def test_the_page_names_every_option_and_field() -> None:
    page = (OWN_TABLES.parents[1] / "docs" / "replay.md").read_text(encoding="utf-8")
    stand_in = get_command(app).get_command(None, "replay")  # type: ignore[attr-defined]
    command = stand_in.make_context("replay", [], resilient_parsing=True).command
    options = [name for option in command.params for name in option.opts if name.startswith("--")]
    named = [*(field.name for field in fields(Case)), *(field.name for field in fields(Note)), *overall([])]
    assert {"--grid", "--switch"} <= set(options)
    missing = [name for name in options if f"`{name}" not in page]
    missing += [name for name in named if f"`{name}" not in page and name != "file"]
    assert not missing


def test_what_is_printed_is_one_line_a_case_and_the_sum(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    result, _ = written(tmp_path, tmp_path / "a.csv")
    lines = result.stdout.splitlines()
    assert lines[0].split("\t")[:3] == ["table", "workload", "load"]
    assert lines[1].split("\t")[::2][:2] == ["X", "4"]
    assert lines[-1].startswith("1 case: steady regret ")


def test_each_table_is_told_as_it_ends_and_not_in_the_output(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(TABLE)
    (tmp_path / "b.csv").write_text(TABLE.replace("X,", "Y,"))
    result, _ = written(tmp_path, tmp_path)
    assert [line.partition(":")[0] for line in result.stderr.splitlines()] == ["X", "Y"]
    ends = [line.partition(": ")[2].split(" of ") for line in result.stderr.splitlines()]
    assert ends[-1][0] + " runs" == ends[-1][1]
    assert int(ends[0][0]) * 2 == int(ends[1][0])
    assert " runs" not in result.stdout
