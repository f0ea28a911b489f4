"""One writer at a time, on any file system that several pods can mount: a file that its owner touches now and then.

No flock: not every network file system has it. Whether an owner lives is judged by whether its file changes while one
watches, so that clocks need not agree.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

log = logging.getLogger(__name__)
BEAT_SECONDS = 10.0
STALE_SECONDS = 150.0
"""Without a beat. NFS clients may show a file's times a minute late."""
LOOK_SECONDS = 2.0
SETTLE_SECONDS = 3.0
"""Two that take over a dead owner's lock at once both write it: whose text is there after this time has it."""


class Lock:
    """`with Lock(path, owner)`: waits until it is ours. `owner` names the pod: the same name is the same pod, whose
    earlier process is dead."""

    def __init__(
        self,
        path: Path,
        owner: str,
        *,
        beat: float = BEAT_SECONDS,
        stale: float = STALE_SECONDS,
        look: float = LOOK_SECONDS,
        settle: float = SETTLE_SECONDS,
        sleep: Callable[[float], None] = time.sleep,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path, self._owner = path, owner
        self._text = f"{owner} {uuid.uuid4().hex}"
        self._beat, self._stale, self._look, self._settle = beat, stale, look, settle
        self._sleep, self._now = sleep, now
        self._over = threading.Event()
        self._lost = threading.Event()

    @property
    def lost(self) -> bool:
        """Somebody took it from us, thinking us dead: stop writing."""
        return self._lost.is_set()

    def __enter__(self) -> Self:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        seen, since = "", self._now()
        while not self._create():
            state = self._state()
            if state != seen:
                if state.split(" ")[0] != seen.split(" ")[0]:
                    log.info("Waiting for another puller: owner=%s lock=%s", state.split(" ")[0], self._path)
                seen, since = state, self._now()
            mine = state.split(" ")[0] == self._owner
            dead = mine or self._now() - since > self._stale
            if state and dead and self._take_over(state, 0.0 if mine else self._settle):
                break
            self._sleep(self._look)
        threading.Thread(target=self._keep, name="paceline-lock", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._mine():
            with suppress(OSError):
                self._path.unlink()

    def _create(self) -> bool:
        try:
            with self._path.open("x") as file:
                file.write(self._text)
        except FileExistsError:
            return False
        return True

    def _take_over(self, state: str, settle: float) -> bool:
        mine = self._path.with_name(f"{self._path.name}.{uuid.uuid4().hex}")
        mine.write_text(self._text)
        if self._state() != state:
            mine.unlink()
            return False
        log.warning("Taking over the lock of a puller that is gone: owner=%s", state.split(" ")[0])
        mine.rename(self._path)
        self._sleep(settle)
        return self._mine()

    def _state(self) -> str:
        """`<owner> <nonce> <time of the last beat>`; empty where there is no lock."""
        try:
            return f"{self._path.read_text()} {self._path.stat().st_mtime_ns}"
        except OSError:
            return ""

    def _mine(self) -> bool:
        return self._state().rpartition(" ")[0] == self._text

    def _keep(self) -> None:
        while not self._over.wait(self._beat):
            if not self._mine():
                if not self._over.is_set():
                    self._lost.set()
                return
            with suppress(OSError):
                os.utime(self._path)
