"""Step samples: counted by the step loop into windows of about a second, handed to readers by cursor.

The step loop only ever adds to its open window and appends sealed ones to a bounded queue; the control thread moves
them into the history. So a reader can wait or vanish without the engine noticing, and memory stays bounded.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from itertools import islice

from paceline_engine.policy import Phase
from paceline_engine.protocol import Gauges, Samples, context_bucket, load_bucket
from paceline_engine.windows import AcceptanceSum, CostKey, CostSum, Window

WINDOW_SECONDS = 1.0
IDLE_WINDOW_SECONDS = 0.2
"""An engine that falls idle seals what it has, so that readers see its last steps; not more often than this, or
trickling requests would empty the ring of its history."""
RING_WINDOWS = 600
"""Ten minutes of a busy engine: longer than any pause of a reader that is still alive."""


@dataclass(slots=True)
class Step:
    """Facts of one scheduled step."""

    output: object
    """The scheduler's own output object: what the completion is recognised by."""
    started: float
    """When it was scheduled, seconds of the step loop's clock."""
    overlapped: bool
    """Whether another step was in flight when this one was scheduled."""
    sampling: int
    """Requests that get a token."""
    decoding: int
    """Of these, those that had one before, so that something could be drafted for them."""
    k: int
    phase: Phase
    k_before: int
    """k that was configured when the drafts verified in this step were made."""
    verified: int
    """Draft tokens verified per request, rounded."""
    context: float
    """Mean tokens a request has computed so far."""
    excluded: str
    """Why it is in no cost cell; empty where it is."""
    seconds: float = 0.0
    """How long it took; known when it completes."""


class Recorder:
    """The step loop's end. `now` is engine uptime in seconds throughout."""

    def __init__(self) -> None:
        self.sealed: deque[Window] = deque(maxlen=2 * RING_WINDOWS)
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._open = Window(0.0)

    def acceptance(self, step: Step) -> AcceptanceSum:
        """Where the drafts verified in `step` are counted."""
        at = (step.k_before, load_bucket(step.sampling))
        found = self._open.acceptance.get(at)
        if found is None:
            found = self._open.acceptance[at] = AcceptanceSum()
        return found

    def step(self, step: Step, emitted: int) -> None:
        """Count a completed step that gave `emitted` tokens."""
        window = self._open
        if step.sampling:
            by_k = window.steps_by_k if step.phase is Phase.TABLE else window.probe_steps_by_k
            by_k[step.k] = by_k.get(step.k, 0) + 1
        if step.excluded:
            window.excluded[step.excluded] = window.excluded.get(step.excluded, 0) + 1
            return
        probe = step.phase is Phase.PROBE
        key = CostKey(load_bucket(step.sampling), context_bucket(step.context), step.k, step.verified, probe)
        cost = window.cells.get(key)
        if cost is None:
            cost = window.cells[key] = CostSum()
        cost.step(step.sampling, step.seconds, emitted)

    def tick(self, now: float, idle: bool) -> None:
        """Seal the window if it is time; called after every completed step."""
        if now - self._open.start >= (IDLE_WINDOW_SECONDS if idle else WINDOW_SECONDS):
            self._open.end = now
            self.sealed.append(self._open)
            self._open = Window(now)


class History:
    """The readers' end: a ring of sealed windows, and the sum of all that left it."""

    def __init__(self, recorder: Recorder, boot_id: str) -> None:
        self._recorder = recorder
        self._boot_id = boot_id
        self._lock = threading.Lock()
        self._base = Window(0.0)
        self._folded = 0
        """Windows in the base: the number of the oldest in the ring."""
        self._ring: deque[Window] = deque()

    def collect(self) -> None:
        """Take over what the step loop sealed. Called every half second, so that its queue never overflows."""
        with self._lock:
            self._collect()

    def _collect(self) -> None:
        sealed = self._recorder.sealed
        while sealed:
            self._ring.append(sealed.popleft())
            if len(self._ring) > RING_WINDOWS:
                self._base.add(self._ring.popleft())
                self._folded += 1

    def since(self, cursor: str | None, gauges: Gauges) -> Samples:
        """All sealed windows from `cursor` on; everything since boot where it is none of this process."""
        with self._lock:
            self._collect()
            end = self._folded + len(self._ring)
            start = self._number(cursor, end)
            skip = max(0, (start or 0) - self._folded)
            windows = list(islice(self._ring, skip, None))
            begin = windows[0].start if windows else self._ring[-1].end if self._ring else 0.0
            total = Window(begin)
            if start is None:
                total.start = 0.0
                total.add(self._base)
        for window in windows:
            total.add(window)
        return Samples(
            boot_id=self._boot_id,
            cursor=f"{self._boot_id}:{end}",
            reset=start is None,
            lost_windows=0 if start is None else max(0, self._folded - start),
            from_seconds=total.start,
            to_seconds=max(total.start, total.end),
            cells=tuple(cost.cell(key) for key, cost in sorted(total.cells.items())),
            acceptance=tuple(fate.cell(*at) for at, fate in sorted(total.acceptance.items())),
            excluded_steps=total.excluded,
            steps_by_k=total.steps_by_k,
            probe_steps_by_k=total.probe_steps_by_k,
            gauges=gauges,
        )

    def _number(self, cursor: str | None, end: int) -> int | None:
        """The window a cursor of this process stands at; None for any other text."""
        boot_id, _, number = (cursor or "").rpartition(":")
        if boot_id != self._boot_id or not (number.isascii() and number.isdecimal() and len(number) <= 15):
            return None
        return int(number) if int(number) <= end else None
