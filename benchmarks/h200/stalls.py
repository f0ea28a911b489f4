"""Where an engine stands still: the stacks of all its threads, into its log, while a step takes far too long.

It costs the step loop nothing: a thread of its own looks at a counter.
"""

from __future__ import annotations

import faulthandler
import sys
import threading
import time
from collections.abc import Callable

LOOK_SECONDS = 0.2
STALL_SECONDS = 1.0
"""A step of these models takes at most a twentieth of it."""
AGAIN_SECONDS = 1.0


class Watch(threading.Thread):
    """Watches a count of steps; None means that nothing is to be done, and standing still is right."""

    def __init__(self, count: Callable[[], int | None]) -> None:
        super().__init__(name="stalls", daemon=True)
        self._count = count

    def run(self) -> None:
        """Until the process ends."""
        seen, since = self._count(), time.monotonic()
        while True:
            time.sleep(LOOK_SECONDS)
            now, count = time.monotonic(), self._count()
            if count is None or count != seen:
                seen, since = count, now
            elif now - since >= STALL_SECONDS:
                print(f"stall: no step since {now - since + STALL_SECONDS:.1f} s or more, after {count}", flush=True)
                faulthandler.dump_traceback(sys.stderr, all_threads=True)
                since = now + AGAIN_SECONDS - STALL_SECONDS
