"""What engines and loads wrote does nothing to the terminal that shows it."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from typer.testing import CliRunner

from paceline_operator.cli import incidents
from paceline_operator.cli.get import laid_out
from paceline_operator.experiment import enginelog
from paceline_operator.safety.incident import clean, kept_lines, printable

EVIL = "a\x1b[2J\x1b[31mb\x1b]0;title\x07c\x9b2J\r\nd\x00"


@given(st.text() | st.text(alphabet="\x1b[]0;mJ\x07\\ab\n"))
def test_any_text_is_one_line_that_can_be_printed(text: str) -> None:
    assert printable(text).isprintable() or not printable(text)
    assert printable(printable(text)) == printable(text)


def test_sequences_go_whole_and_what_is_around_them_stays() -> None:
    assert printable(EVIL) == "abc 2J  d "
    assert printable("  File “x”, line 3 – ok") == "  File “x”, line 3 – ok"


def test_log_lines_are_kept_without_them() -> None:
    lines, _ = kept_lines('  File "\x1b[31mx.py", line 3, in f\nValueError: \x1b[2Jno\n')
    assert lines == ('  File "x.py", line 3, in f', "ValueError: no")
    assert "\x1b" not in clean(EVIL)


def test_names_of_kernels_are_without_them() -> None:
    head = "\x1b[0;36m(EngineCore)\x1b[0;0m WARNING 01-02 00:00:05 [jit_monitor.py:1]"
    line = f"{head} Triton kernel JIT compilation during inference: \x1b[2Jk\x1b]0;x\x07ernel"
    (found,), _ = enginelog.read([line], datetime(2026, 1, 1, tzinfo=UTC))
    assert found.kernel == "kernel"


def test_a_table_shows_none() -> None:
    out = io.StringIO()
    Console(file=out, width=200).print(laid_out(("A",), [(EVIL,)]))
    assert "abc" in out.getvalue()
    assert not set("\x1b\x07\x9b\x00\r") & set(out.getvalue())


@pytest.mark.parametrize("verb", ["list", "show"])
def test_stored_incidents_show_none(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record: dict[str, Any] = {"id": EVIL, "at": "now", "pod": EVIL, "title": EVIL, "log": [EVIL], "table": {EVIL: 1}}
    monkeypatch.setattr(incidents, "_records", lambda *_: ([record], {}))
    found = CliRunner().invoke(incidents.incidents, [verb, "chat"])
    assert found.exit_code == 0, found.output
    assert "abc" in found.output
    assert not set("\x1b\x07\x9b\x00\r") & set(found.output)
