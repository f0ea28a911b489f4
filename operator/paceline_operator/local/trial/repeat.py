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
from pathlib import Path

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
    os.write(out, b"ready\n")
    for line in sys.stdin:
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            _die_with_parent()
            _to(job["log"])
            status = _run(program, job["arguments"])
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
        _, ended = os.waitpid(child, 0)
        os.write(out, f"{os.waitstatus_to_exitcode(ended)}\n".encode())


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
