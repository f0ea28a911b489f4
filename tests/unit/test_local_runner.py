"""What is read of an engine's log, and what the guard's exit status says."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.local.runner import GUARD, TAIL_BYTES, last_line, tail


def guard(parent: int, *command: str) -> subprocess.CompletedProcess[str]:
    """The guard around `command`, as the runner starts it."""
    arguments = [sys.executable, "-I", GUARD, str(parent), "5", "/nonexistent", *command]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (("sh", "-c", "exit 0"), 0),
        (("sh", "-c", "exit 3"), 3),
        (("sh", "-c", "kill -KILL $$"), 137),
        (("/no/such/program",), 127),
    ],
)
def test_the_guard_exits_with_the_engines_status_and_tells_its_process_id(
    command: tuple[str, ...], status: int
) -> None:
    done = guard(os.getpid(), *command)
    assert done.returncode == status
    assert done.stdout.strip().isdigit()


def test_the_guard_says_why_a_program_cannot_be_run() -> None:
    assert "/no/such/program: No such file or directory" in guard(os.getpid(), "/no/such/program").stderr


def test_the_guard_of_a_parent_that_is_gone_starts_nothing(tmp_path: Path) -> None:
    done = guard(os.getppid(), "touch", str(tmp_path / "started"))
    assert (done.returncode, done.stdout) == (143, "")
    assert not (tmp_path / "started").exists()


def test_the_last_line_is_readable(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_text("first\n\x1b[32mloading\x1b[0m:  10%\rloading:  20%\n\n")
    assert tail(log) == ["first", "loading:  20%"]
    assert last_line(log) == "loading:  20%"


def test_only_the_end_of_a_long_log_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("x" * 10 * TAIL_BYTES + "\nend\n")
    assert tail(log)[-1] == "end"
    assert sum(map(len, tail(log))) <= TAIL_BYTES


@given(st.binary(max_size=300))
def test_no_content_of_a_log_breaks_it(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    log = tmp_path_factory.mktemp("log") / "log"
    log.write_bytes(content)
    assert all(line == line.strip() and line for line in tail(log))
