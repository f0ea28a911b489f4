"""The control port, asked from outside the engine: single requests, the operator's poll, and a row of pushes."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

POLL_SECONDS = 1.0
PAUSE_SECONDS = 0.2
"""Between two pushes."""
CONFIRM_SECONDS = 0.012
"""Between two looks whether a push is in force: below the rate that the port admits."""


@dataclass(frozen=True)
class Control:
    """One engine's control port on this machine."""

    port: int
    token: str

    def __call__(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """One request; raises on any status but 200, with the engine's own words."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode() if body else None,
            method=method,
            headers={"Authorization": f"Bearer {self.token}"},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                found: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from None
        return found

    @contextmanager
    def polled(self) -> Iterator[None]:
        """Read state and samples once a second meanwhile, as the operator does; a shut port is passed over."""
        stop = threading.Event()

        def poll() -> None:
            cursor = ""
            while not stop.wait(POLL_SECONDS):
                with suppress(OSError, RuntimeError, ValueError):
                    self("GET", "/state")
                    cursor = self("GET", f"/samples?cursor={cursor}")["cursor"]

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def pusher(self, bodies: Sequence[dict[str, Any]], *, confirm: bool = False) -> subprocess.Popen[str]:
        """A process that pushes `bodies` one by one; `confirm`: and waits until every rank verifies as asked."""
        process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdin is not None
        process.stdin.write(json.dumps({"port": self.port, "token": self.token, "bodies": bodies, "confirm": confirm}))
        process.stdin.close()
        return process


def _push_all() -> None:
    task = json.load(sys.stdin)
    control = Control(task["port"], task["token"])
    for body in task["bodies"]:
        row = {"generation": body["generation"], "k": body["table"][0], "start": time.perf_counter()}
        control("PUT", "/policy", body)
        row["acknowledged"] = time.perf_counter()
        while task["confirm"]:
            found = control("GET", "/state")["adaptiveVerification"]
            if found and found["generation"] >= body["generation"]:
                row |= {"applied": time.perf_counter(), "mode": found["mode"], "ranks": found["ranks"]}
                row["error"] = found["error"]
                break
            if time.perf_counter() - row["start"] > 10:
                break
            time.sleep(CONFIRM_SECONDS)
        print(json.dumps(row), flush=True)
        time.sleep(PAUSE_SECONDS)


if __name__ == "__main__":
    _push_all()
