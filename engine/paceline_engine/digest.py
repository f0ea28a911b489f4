"""What becomes of the records that the step loop leaves behind: counted into windows off its path, a few at a time.

The step loop appends to a bounded queue; the control thread empties it every half second, while the engine waits for
its GPU, and so does a reader of samples before it is answered.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from math import inf
from time import perf_counter, sleep
from typing import Any

from paceline_engine.policy import Phase
from paceline_engine.protocol import MAX_K, Verification
from paceline_engine.samples import Recorder, Step

log = logging.getLogger("vllm.paceline")
MAX_RECORDS = 4096
"""Ten seconds of a fast engine, 4 MB: only a control thread that died lets it fill up."""
FEW_RECORDS = 256
"""Waiting, up to which a record may hold on to every request's tokens: 50 KB at 256 requests."""
SLICE_RECORDS = 16
"""Digested in a row, 0.2 ms: for no longer does the step loop wait for Python's lock."""
PAUSE_SECONDS = 0.0005
MISSED, PREFILL = "missed", "prefill"


class Regime:
    """What the steps of a run have in common. Never changed, but for `shortest`."""

    __slots__ = ("counted", "excluded", "k", "k_before", "phase", "probing", "shortest", "verification")

    def __init__(
        self,
        k: int,
        phase: Phase,
        k_before: int,
        verification: Verification,
        excluded: str,
        *,
        counted: bool = True,
    ) -> None:
        """`k_before`: configured when the drafts verified were made. `excluded`: why it is in no cost cell, or empty.

        `counted`: whether it is known how its drafts were verified.
        """
        self.k = k
        self.phase = phase
        self.k_before = k_before
        self.verification = verification
        self.excluded = excluded
        self.counted = counted
        self.probing = phase is Phase.PROBE and not excluded
        """Whether its steps are what a burst is for."""
        self.shortest = inf
        """Seconds of the shortest step of the burst."""

    def changed(self) -> Regime:
        """Of a step during which the way to verify changed."""
        excluded = self.excluded or "transition"
        return Regime(self.k, self.phase, self.k_before, self.verification, excluded, counted=False)


class Digest:
    """Records in, counts in the recorder out. `records` and the two `missed` belong to the step loop."""

    def __init__(
        self,
        recorder: Recorder,
        *,
        clock: Callable[[], float] = perf_counter,
        pause: Callable[[float], None] = sleep,
    ) -> None:
        """`clock`: the step loop's."""
        self.recorder = recorder
        self.records: deque[tuple[Any, ...]] = deque()
        """Of each completed step: its regime, None where it is not known; requests that sampled; those of them that had
        a token before; tokens computed for those; prompt tokens; contexts of all, where they were looked at; when it
        began and ended; tokens emitted, or the lists of these; fates of its drafts, as the engine or as the hooks count
        them; whether the engine is idle."""
        self.missed_steps = 0
        self.missed_tokens = 0
        """Steps, and their tokens, that found the queue full."""
        self.failures = 0
        """Records that could not be digested."""
        self._told_steps = self._told_tokens = 0
        self._clock = clock
        self._pause = pause
        self._boot = clock()
        self._context = 0.0
        self._lock = threading.Lock()

    @property
    def uptime(self) -> float:
        """Seconds since this was made."""
        return self._clock() - self._boot

    def run(self) -> None:
        """Digest what is there now; never raises."""
        with self._lock:
            for at in range(len(self.records)):
                if at and not at % SLICE_RECORDS:
                    self._pause(PAUSE_SECONDS)
                try:
                    self._take(*self.records.popleft())
                except Exception:
                    self.failures += 1
                    if self.failures == 1:
                        log.exception("Paceline: a step cannot be counted; said once, /state counts them")
            self._admit()

    def _admit(self) -> None:
        steps, tokens = self.missed_steps, self.missed_tokens
        if steps > self._told_steps:
            self.recorder.exclude(MISSED, steps - self._told_steps)
            self.recorder.generation_tokens += tokens - self._told_tokens
            self._told_steps, self._told_tokens = steps, tokens

    def _take(
        self,
        regime: Regime | None,
        sampling: int,
        decoding: int,
        tokens: int,
        prompt_tokens: int,
        contexts: list[int] | None,
        since: float,
        now: float,
        emitted: int | list[list[int]],
        fates: Any,
        idle: bool,
    ) -> None:
        if not isinstance(emitted, int):
            emitted = sum(map(len, emitted))
        self.recorder.generation_tokens += emitted
        if contexts:
            self._context = sum(contexts) / len(contexts)
        if regime is not None:
            step = self._step(regime, sampling, decoding, tokens, prompt_tokens, max(0.0, now - since), fates)
            self.recorder.step(step, emitted)
        self.recorder.tick(now - self._boot, idle)

    def _step(
        self,
        regime: Regime,
        sampling: int,
        decoding: int,
        tokens: int,
        prompt_tokens: int,
        seconds: float,
        fates: Any,
    ) -> Step:
        verified = int((tokens - decoding) / decoding + 0.5) if decoding else 0
        excluded = regime.excluded or (PREFILL if verified > MAX_K else "")
        step = Step(
            sampling=sampling,
            k=regime.k,
            phase=regime.phase,
            k_before=regime.k_before,
            verified=verified,
            context=0.0 if excluded else self._context,
            verification=regime.verification,
            excluded=excluded,
            seconds=seconds,
            prompt_tokens=prompt_tokens,
            first_tokens=sampling - decoding,
        )
        if not (regime.counted and decoding):
            return step
        if fates is None:  # nothing was verified
            return replace(step, request_steps=decoding)
        if isinstance(fates, tuple):
            drafted, accepted = fates
        elif hasattr(fates, "num_draft_tokens_per_pos"):
            drafted, accepted = fates.num_draft_tokens_per_pos, fates.num_accepted_tokens_per_pos
        else:
            return step
        return replace(step, request_steps=decoding, drafted=drafted, accepted=accepted)
