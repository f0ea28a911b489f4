"""Child processes that end with their parent, and waiting with a reason."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
TAIL_LINES = 25
UNLESS_ORPHAN = 'test "$PPID" = "$1" || exit 1; shift; exec "$@"'
"""A parent that dies before the death signal is set sends none: then the child must not start at all."""


class Daemon:
    """A running program. Its log is `<logs>/<name>.log`; the kernel kills it when the thread that started it ends."""

    def __init__(
        self,
        name: str,
        command: Sequence[str | Path],
        logs: Path,
        *,
        stdin: int = subprocess.DEVNULL,
        folder: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = tuple(command)
        self.log = logs / f"{name}.log"
        with self.log.open("ab") as output:
            # A session of its own: Ctrl-C in the terminal goes to the tests alone, which then stop their daemons.
            self.process = subprocess.Popen(
                [
                    "setpriv",
                    "--pdeathsig",
                    "KILL",
                    "sh",
                    "-c",
                    UNLESS_ORPHAN,
                    "sh",
                    str(os.getpid()),
                    *map(str, command),
                ],
                stdin=stdin,
                cwd=folder,
                env=None if env is None else {**os.environ, **env},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def check(self) -> None:
        """Raise RuntimeError with the end of its log if it has exited."""
        code = self.process.poll()
        if code is not None:
            raise RuntimeError(f"{self.name} exited with status {code}; the end of {self.log}:\n{self.tail()}")

    def tail(self) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-TAIL_LINES:])

    def stop(self, *, grace_seconds: float = 5.0) -> None:
        """SIGTERM, then SIGKILL after `grace_seconds`; 0 kills at once."""
        if self.process.poll() is None and grace_seconds > 0:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(grace_seconds)
        self.process.kill()
        self.process.wait()


def wait_until(
    probe: Callable[[], T | None],
    what: str,
    *,
    timeout_seconds: float,
    daemons: Sequence[Daemon] = (),
    every_seconds: float = 0.05,
) -> T:
    """First answer of `probe` that is neither None nor False.

    Raises TimeoutError that names `what` and the last exception of the probe, if any; RuntimeError when one of
    `daemons`, without which the wait is in vain, has exited.
    """
    deadline = time.monotonic() + timeout_seconds
    last = ""
    while True:
        try:
            answer = probe()
        except Exception as error:
            answer, last = None, f" (last error: {type(error).__name__}: {error})"
        if answer is not None and answer is not False:
            return answer
        for daemon in daemons:
            daemon.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_seconds:.0f} s for {what}{last}")
        time.sleep(every_seconds)
