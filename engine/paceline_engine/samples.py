"""Step samples: counted by the digest into windows of about a second, handed to readers by cursor.

The digest adds to the open window and appends sealed ones to a bounded queue, which the control thread moves into the
history. A reader can wait or vanish without the engine noticing, and memory stays bounded.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf

from paceline_engine.policy import Phase
from paceline_engine.protocol import LAUNCHED, Gauges, Samples, Verification, context_bucket, load_bucket, prompt_bucket
from paceline_engine.windows import CROWDED, MAX_CELLS, AcceptanceKey, CostKey, CostSum, Window

WINDOW_SECONDS = 1.0
IDLE_WINDOW_SECONDS = 0.2
"""An engine that falls idle seals what it has, so that readers see its last steps; not more often than this, or
trickling requests would empty the ring of its history."""
RING_WINDOWS = 600
"""Ten minutes of a busy engine: longer than any pause of a reader that is still alive."""
RING_CELLS = 20_000
"""Cost cells of all windows in the ring, 14 MB: beyond it the ring is shorter. Thirty a window are many."""
STALL_FACTOR = 4.0
"""A step that takes so many times the median of its cell stood still for something else: a kernel compiled at its first
use, another process. Steps of one cell differ by the widths of its buckets: a load's is less than twice, that of prompt
tokens four times, but of only a part of the step."""
OTHER_CELL_FACTOR = 10.0
"""The same for the first step of a cell, which is measured by the last step of another: from k=0 to k=7 at 256 requests
it is 7 (H200, benchmarks/results/h200/2026-11-29/sweep.csv)."""
TURNOVER_STEPS = 8
"""Within which a request that ended is followed by another, where clients wait for answers before they ask again."""
TURNOVER_SHARE = 1 / 4
"""Of the requests, that may have ended in these steps for the load to be the same: about the width of a bucket."""
IDLE = "idle"
"""Why the first step of an engine that had nothing to do does not count."""
STALL_CREDIT = 8.0
STALL_SHARE = 1 / 16
"""Of a cell's steps, so many in a row and this share in the long run are set aside as stalls at most. What happens more
often is how long steps take now."""


@dataclass(slots=True)
class Step:
    """Facts of one completed step."""

    sampling: int
    """Requests that got a token."""
    k: int
    phase: Phase
    k_before: int
    """k that was configured when the drafts verified in this step were made."""
    verified: int
    """Draft tokens verified per request, rounded."""
    context: float
    """Mean tokens a request has computed so far."""
    verification: Verification
    """How drafts were verified when it was scheduled."""
    excluded: str
    """Why it is in no cost cell; empty where it is."""
    seconds: float
    """How long it took."""
    prompt_tokens: int = 0
    """Computed in it."""
    launched: bool = False
    """Whether the step launched last before this one completed has prompts."""
    first_tokens: int = 0
    """Requests that ended their prompt in it."""
    request_steps: int = 0
    """Requests whose drafts are counted in the next two; 0 where they are not."""
    drafted: Sequence[int] = ()
    accepted: Sequence[int] = ()
    """Draft tokens by position."""


class Pace:
    """What a step of one cost cell usually takes, in constant memory."""

    __slots__ = ("_credit", "_fresh", "_usual")

    def __init__(self, usual: float) -> None:
        """`usual`: a first guess, in seconds."""
        self._usual = usual
        self._fresh = True
        self._credit = STALL_CREDIT

    def stalled(self, seconds: float) -> bool:
        """Whether a step took far longer than those before it, and that is not the new normal."""
        if seconds > STALL_FACTOR * self._usual:
            if self._credit >= 1:
                self._credit -= 1
                return True
            self._usual *= STALL_FACTOR
            return False
        if self._fresh:
            self._usual, self._fresh = seconds, False
        else:  # the median, followed: as many steps lie above where it rests as below
            self._usual *= 1.05 if seconds > self._usual else 1 / 1.05
        self._credit = min(STALL_CREDIT, self._credit + STALL_SHARE)
        return False


class Recorder:
    """The counting end. `now` is engine uptime in seconds throughout."""

    def __init__(self) -> None:
        self.sealed: deque[Window] = deque()
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self._open = Window(0.0)
        self._paces: dict[CostKey, Pace] = {}
        self._last = inf
        """Seconds of the last step that counted."""
        self._lately: deque[int] = deque(maxlen=TURNOVER_STEPS)
        """Requests of the last steps."""
        self._key: CostKey | None = None
        """Of the last step; None when a window begins. The next two are its cell and its pace."""
        self._cost: CostSum | None = None
        self._pace = Pace(inf)

    def step(self, step: Step, emitted: int) -> bool:
        """Count a completed step that gave `emitted` tokens; whether it is in a cost cell."""
        window = self._open
        load = self._load(step)
        if step.sampling:
            by_k = window.steps_by_k if step.phase is Phase.TABLE else window.probe_steps_by_k
            by_k[step.k] = by_k.get(step.k, 0) + 1
        if step.request_steps:
            fate = window.fate(AcceptanceKey(step.k_before, load, step.verification))
            fate.request_steps += step.request_steps
            fate.add_positions(step.drafted, step.accepted)
        excluded = step.excluded
        if not excluded:
            probe = step.phase is Phase.PROBE
            context, prompt = context_bucket(step.context), prompt_bucket(step.prompt_tokens)
            if not prompt and step.launched:
                prompt = LAUNCHED
            key = CostKey(load, context, step.k, step.verified, probe, step.verification, prompt)
            if key != self._key:  # mostly it is: steps come in runs
                self._key, self._cost, self._pace = key, None, self._pace_of(key)
            if self._pace.stalled(step.seconds):
                excluded = "stalled"
            elif cost := self._cost or window.cost(key):  # not before: a cell of stalled steps alone would be empty
                self._cost = cost
                self._last = step.seconds
                cost.step(step.sampling, step.seconds, emitted, step.prompt_tokens, step.first_tokens)
                return True
            else:
                excluded = CROWDED
        self.exclude(excluded, 1)
        return False

    def _load(self, step: Step) -> int:
        """Load bucket: by the most requests of lately, if all but a few of them are still there.

        Requests that end are followed a step or two later. Steps in between, one of which launches the prompts, belong
        to the same load: at 256 requests most steps are of 255 or fewer.
        """
        if step.excluded == IDLE:
            self._lately.clear()
        self._lately.append(step.sampling)
        most = max(self._lately)
        return load_bucket(most if most - step.sampling <= TURNOVER_SHARE * most else step.sampling)

    def exclude(self, reason: str, steps: int) -> None:
        """Count steps that are in no cost cell."""
        self._open.excluded[reason] = self._open.excluded.get(reason, 0) + steps

    def _pace_of(self, key: CostKey) -> Pace:
        pace = self._paces.get(key)
        if pace is None:
            if len(self._paces) >= MAX_CELLS:
                self._paces.clear()
            pace = self._paces[key] = Pace(self._last * OTHER_CELL_FACTOR / STALL_FACTOR)
        return pace

    def tick(self, now: float, idle: bool) -> None:
        """Seal the window if it is time; called after every completed step.

        Where nobody takes sealed windows over, the open one grows instead: nothing is lost, and memory stays bounded.
        """
        due = now - self._open.start >= (IDLE_WINDOW_SECONDS if idle else WINDOW_SECONDS)
        if due and len(self.sealed) < 2 * RING_WINDOWS:
            self._open.end = now
            self.sealed.append(self._open)
            self._open = Window(now)
            self._key = None


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
        self._cells = 0
        """Cost cells in the ring."""
        self._told_lost = 0

    @property
    def lost_windows(self) -> int:
        """Windows that readers were told they had lost, since boot."""
        return self._told_lost

    def collect(self) -> None:
        """Take over what is sealed. Called every half second."""
        with self._lock:
            self._collect()

    def _collect(self) -> None:
        sealed = self._recorder.sealed
        while sealed:
            self._ring.append(sealed.popleft())
            self._cells += len(self._ring[-1].cells)
            while len(self._ring) > RING_WINDOWS or self._cells > RING_CELLS:
                oldest = self._ring.popleft()
                self._cells -= len(oldest.cells)
                self._base.add(oldest)
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
            lost = 0 if start is None else max(0, self._folded - start)
            self._told_lost += lost
            if start is None:
                total.start = 0.0
                total.add(self._base)
        for window in windows:
            total.add(window)
        return Samples(
            boot_id=self._boot_id,
            cursor=f"{self._boot_id}:{end}",
            reset=start is None,
            lost_windows=lost,
            from_seconds=total.start,
            to_seconds=max(total.start, total.end),
            cells=tuple(cost.cell(key) for key, cost in sorted(total.cells.items())),
            acceptance=tuple(fate.cell(at) for at, fate in sorted(total.acceptance.items())),
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
