"""Holds one engine and everything it starts, so that nothing outlives `paceline local`, however that ends.

Run as a process of its own, between paceline and the engine: `python -I guard.py PARENT GRACE FOLDER COMMAND...`.
The kernel tells it when its parent dies (also by SIGKILL), and gives it every orphan among its descendants; so it can
end them all: SIGTERM to the engine, and after GRACE seconds SIGKILL to whatever is left. Where the parent is gone it
also removes FOLDER, which holds the token. It prints the engine's process id, and exits with the engine's status.
Standard library only, and Linux only.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
"""From linux/prctl.h."""
STOP = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
DEATH = signal.SIGUSR1
"""That the parent has died. Its id may be seen a moment longer: the first of its threads to end sends this."""
LAST_LOOK_SECONDS = 5.0
"""For killed processes to be gone: a process in the kernel's hands (freeing GPU memory) takes a moment."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; the answer is its exit status, 128 + signal where one ended it."""
    parent, grace, folder, command = int(arguments[0]), float(arguments[1]), arguments[2], arguments[3:]
    signals = STOP | {signal.SIGCHLD, DEATH}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _prctl(PR_SET_PDEATHSIG, DEATH)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM
    engine = _start(command, signals)
    print(engine, flush=True)
    status, deadline, orphan = None, None, False
    try:
        while status is None:
            wait = 3600.0 if deadline is None else deadline - time.monotonic()
            if wait <= 0:
                break
            received = signal.sigtimedwait(signals, wait)
            orphan = orphan or (received is not None and received.si_signo == DEATH)
            if received is not None and received.si_signo in STOP | {DEATH}:
                if deadline is not None:
                    break
                deadline = time.monotonic() + grace
                with suppress(ProcessLookupError):
                    os.kill(engine, signal.SIGTERM)
            status = _reap(engine)
    finally:
        left = _end_all(engine)
        if orphan or os.getppid() != parent:
            _remove(folder)
    status = left if status is None else status
    code = -signal.SIGKILL if status is None else os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _start(command: Sequence[str], blocked: set[signal.Signals]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        os.setsid()  # Ctrl-C in the terminal is for paceline alone, which then stops the engine in order
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, blocked)
        os.dup2(2, 1)  # standard output carries the process id and nothing else
        os.execvp(command[0], list(command))  # noqa: S606 no shell is the point
    except OSError as error:
        os.write(2, f"{command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)


def _reap(engine: int) -> int | None:
    """Collect whatever ended; the wait status of the engine if it is among it."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == engine:
                found = status
    return found


def _end_all(engine: int) -> int | None:
    """Kill what is left, again and again, since a process may fork while it is being looked at."""
    status, deadline = None, time.monotonic() + LAST_LOOK_SECONDS
    while True:
        found = _reap(engine)
        status = found if found is not None else status
        left = descendants(os.getpid())
        if not left or time.monotonic() > deadline:
            return status
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _remove(folder: str) -> None:
    """Again while something is there: who else writes into it may die a moment later."""
    deadline = time.monotonic() + LAST_LOOK_SECONDS
    while os.path.exists(folder) and time.monotonic() < deadline:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


def descendants(root: int) -> list[int]:
    """Ids of all processes below `root`, those that have ended but were not collected included."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with suppress(OSError, ValueError, IndexError):
                # The command's name is in parentheses and may hold anything, parentheses included.
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    found, queue = [], [root]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
