"""Runs a Python program again and again with other arguments, its imports made once. Standard library only.

`vllm bench serve` imports for ten seconds of processor time before it sends a request, and an experiment needs it
dozens of times. The engine's own Python runs this file: it runs PROGRAM with `bench serve --help`, which imports all,
and then, for each line of standard input, PROGRAM with the arguments in it, in a process of its own. Linux only.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

DATASETS = "vllm.benchmarks.datasets.datasets"
"""Reads a dataset with pandas, which an engine that serves text does not need and may not have (vLLM 0.32, 0.33)."""
PR_SET_PDEATHSIG = 1
"""From linux/prctl.h."""
HELP = ("bench", "serve", "--help")


def main(program: str) -> None:
    """A line of JSON in ({"arguments": [...], "log": FILE}), the exit status of the run out."""
    _die_with_parent()
    out = os.dup(1)
    _to(os.devnull)
    sys.path[0] = str(Path(program).parent)
    _run(program, HELP)
    datasets: Any = sys.modules.get(DATASETS)
    if datasets is not None and type(datasets.pd).__name__ == "PlaceholderModule":
        datasets.pd = Pandas
    os.write(out, b"ready\n")
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _die_with_parent()
            _to(job["log"])
            sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
            status = _run(program, job["arguments"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        _, ended = os.waitpid(child, 0)
        os.write(out, f"{os.waitstatus_to_exitcode(ended)}\n".encode())


class Pandas:
    """What of pandas is needed to read a file of JSON lines."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self._rows = rows
        self.columns = set().union(*rows)

    @classmethod
    def read_json(cls, path_or_buf: str, lines: bool) -> Pandas:
        """`lines`: it always is."""
        assert lines
        return cls([json.loads(line) for line in Path(path_or_buf).read_text().splitlines() if line.strip()])

    def iterrows(self) -> Iterator[tuple[int, Row]]:
        """Number and row."""
        return ((number, Row(row)) for number, row in enumerate(self._rows))


class Row(dict[str, object]):
    """One line."""

    def to_dict(self) -> dict[str, object]:
        """Itself."""
        return dict(self)


def _run(program: str, arguments: list[str] | tuple[str, ...]) -> int:
    sys.argv = [program, *arguments]
    try:
        runpy.run_path(program, run_name="__main__")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def _to(file: str) -> None:
    sink = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)


if __name__ == "__main__":
    main(sys.argv[1])
