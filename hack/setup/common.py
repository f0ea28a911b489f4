"""What the set-up scripts share: the cache folder, a lock between clones, a command shown by its progress."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COMPLETE = ".complete"
"""Marker file, written last: a folder without it is the rest of an interrupted build."""
TAIL = 40
"""Lines of output shown of a command that failed."""


def cache_folder() -> Path:
    """`$PACELINE_CACHE`, else `$XDG_CACHE_HOME/paceline`, else `~/.cache/paceline`; made if absent."""
    base = os.environ.get("PACELINE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "paceline")
    try:
        folder = Path(base).expanduser().absolute()
    except RuntimeError as error:  # the home of a user who does not exist
        sys.exit(f"{base} is no folder: {error} Set PACELINE_CACHE to a folder of yours")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def say(text: str) -> None:
    """One line, at once."""
    print(text, flush=True)


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold `path` as a lock between processes; the kernel releases it with the process, however that ends."""
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting: another set-up holds {path}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(
    title: str,
    command: Sequence[str | Path],
    *,
    count: str = "",
    total: int = 0,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> None:
    """Run `command` with its output folded into one line of progress.

    Lines that match `count` are counted up to `total`. Exits with the end of the output where the command fails, unless
    `check` is false.
    """
    began = time.monotonic()
    done = threading.Event()
    counted = 0

    def progress() -> None:
        live = sys.stdout.isatty()
        while not done.wait(0.5 if live else 20):
            share = f" {counted}/{total}" if total and counted < total else ""
            print(f"{title}{share} {time.monotonic() - began:.0f} s", end="\r" if live else "\n", flush=True)

    tail: deque[str] = deque(maxlen=TAIL)
    reporter = threading.Thread(target=progress, daemon=True)
    with subprocess.Popen(
        [str(part) for part in command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=None if env is None else {**os.environ, **env},
    ) as process:
        assert process.stdout is not None
        reporter.start()
        try:
            for line in process.stdout:
                tail.append(line)
                counted += bool(count and re.search(count, line))
            code = process.wait()
        except BaseException:
            process.kill()
            raise
        finally:
            done.set()
            reporter.join()
    if code and check:
        sys.exit(f"{''.join(tail)}{title}: FAILED with exit status {code}: {' '.join(str(part) for part in command)}")
    say(f"{title}: done in {time.monotonic() - began:.0f} s")
