"""What becomes of the records that the step loop leaves behind: counted into windows off its path, a few at a time.

The step loop appends to a bounded queue; the control thread empties it every half second, while the engine waits for
its GPU, and so does a reader of samples before it is answered.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from math import inf
from time import perf_counter, sleep
from typing import Any

from paceline_engine.policy import LivePolicy, Phase
from paceline_engine.protocol import MAX_K, Verification
from paceline_engine.samples import STALL_FACTOR, Recorder, Step

log = logging.getLogger("vllm.paceline")
MAX_RECORDS = 4096
"""Ten seconds of a fast engine, 4 MB: only a control thread that died lets it fill up."""
FEW_RECORDS = 256
"""Waiting, up to which a record may hold on to what each request was told: 64 KB at 256 requests."""
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

    def judged(self, policy: LivePolicy, seconds: float, *, mixed: bool) -> Regime:
        """What a completed step that may be lost to a burst, or during which verification changed, counts as.

        Whether it stood still is the digest's to say, but that is too late for the burst: this is near enough. A
        `mixed` step is as long as its prompts are, and is taken to count.
        """
        changed = self.verification is not policy.verification
        if self.probing and (changed or (not mixed and seconds > STALL_FACTOR * self.shortest)):
            policy.lost()
        elif self.probing and not mixed:
            self.shortest = min(self.shortest, seconds)
        return self.changed() if changed else self


Facts = tuple[Regime | None, int, int, int, Verification | None]
"""Of a step, the same for steps alike: its regime, None where it is not known; requests that sample; those of them that
had a token before; prompt tokens; the verification that leaves it as it is, None where it is looked at anyway."""
InFlight = tuple[Facts, int, list[int] | None, float | None]
"""A step that is scheduled: its facts; tokens of requests that decode; contexts, where they are looked at; when it was
scheduled, None where another step was in flight."""


def tokens_in(told: Iterable[Sequence[Any]]) -> int:
    """Tokens of all requests, as each front end is told of them: of what was cut off or aborted nothing is there."""
    return sum(len(one.new_token_ids) for outputs in told for one in outputs)


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
        """Of each completed step: how it was scheduled; when the one before it ended, and it; tokens emitted, or what
        requests were told; fates of its drafts, as the engine or as the hooks count them; whether the engine is idle;
        whether the step launched last has prompts. One that went the short way lacks the last two, and drafts that were
        accepted among its tokens."""
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
        step: InFlight,
        before: float,
        now: float,
        emitted: int | list[Sequence[Any]],
        fates: Any,
        idle: bool | None = None,
        launched: bool = False,
    ) -> None:
        (regime, sampling, decoding, prompt_tokens, _), tokens, contexts, started = step
        tokens_out = emitted if isinstance(emitted, int) else tokens_in(emitted)
        if idle is None:
            tokens_out += fates.num_accepted_tokens
        self.recorder.generation_tokens += tokens_out
        if contexts:
            self._context = sum(contexts) / len(contexts)
        if regime is not None:
            seconds = max(0.0, now - (before if started is None else started))
            completed = self._step(regime, sampling, decoding, tokens, prompt_tokens, seconds, fates)
            completed.launched = launched
            self.recorder.step(completed, tokens_out)
        self.recorder.tick(now - self._boot, bool(idle))

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
