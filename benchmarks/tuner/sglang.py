"""SGLang's adaptive speculation: the number of drafts follows a moving average of the accepted length.

Rule and constants of python/sglang/srt/speculative/adaptive_spec_params.py (strategy `ema`, the default;
https://docs.sglang.io/advanced_features/adaptive_speculative_decoding.html). A slot of batch sizes has candidate steps.
Every `UPDATE_INTERVAL` batches, after `WARMUP_BATCHES`: candidates down while the average is at or below the one before
minus a half (for candidate 0: a half) plus the slot's hysteresis; else candidates up while it is above the present one
minus a half. At 0 nothing is drafted and nothing learnt, so the next interval tries the next candidate.

Not as in SGLang: an interval of five batches is a period here; a batch size is not padded to its CUDA graph's;
candidates that the ladder does not have are left out (where none is left, the nearest k that it has).
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import pairwise

from benchmarks.tuner.rival import CUSTOMARY_K, Rival, nearest
from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.replay.contest import Setup

EMA_ALPHA, UPDATE_INTERVAL, WARMUP_BATCHES = 0.2, 5, 10
SLOTS: dict[int, tuple[tuple[int, ...], float]] = {
    1: ((1, 3, 5, 7), -0.25),
    8: ((0, 1, 3), 0.0),
    32: ((0, 1), 0.0),
    64: ((0,), 0.0),
}
"""Smallest batch size -> candidate steps, and the hysteresis on the way down."""


@dataclass
class Slot:
    """State of one slot."""

    candidates: tuple[int, ...]
    down: float
    steps: int
    ema: float
    batches: int = 0

    def update(self, accepted: float, batches: int) -> None:
        """`batches` verified batches at the present steps, with `accepted` drafts a request on average."""
        if self.steps > 0:
            self.ema = accepted + (1 - EMA_ALPHA) ** batches * (self.ema - accepted)
        before, self.batches = max(0, self.batches - WARMUP_BATCHES), self.batches + batches
        if (self.batches - WARMUP_BATCHES) // UPDATE_INTERVAL > before // UPDATE_INTERVAL:
            self._move()

    def _move(self) -> None:
        at = start = self.candidates.index(self.steps)
        if self.steps == 0:
            self.steps = self.candidates[min(at + 1, len(self.candidates) - 1)]
            if self.steps > 0 and self.ema < 0:
                self.ema = self.steps - 1.0
            return
        while at > 0:
            below = self.candidates[at - 1]
            if self.ema > (below - 0.5 if below else 0.5) + self.down:
                break
            at -= 1
        while at >= start and at + 1 < len(self.candidates) and self.ema > self.candidates[at] - 0.5:
            at += 1
        self.steps = self.candidates[at]


@dataclass
class SglangEma(Rival):
    """All slots."""

    slots: dict[int, Slot] = field(default_factory=dict)

    @classmethod
    def of(cls, setup: Setup) -> SglangEma:
        """Start at the customary number of steps, or in the middle of a slot's candidates."""
        slots: dict[int, Slot] = {}
        for start, (wanted, down) in SLOTS.items():
            candidates = tuple(k for k in wanted if k in setup.ladder) or (nearest(setup.ladder, wanted[0]),)
            steps = CUSTOMARY_K if CUSTOMARY_K in candidates else candidates[len(candidates) // 2]
            slots[start] = Slot(candidates, down, steps, steps - 1.0)
        rival = cls(setup, (), slots=slots)
        rival.boot = rival.dense()
        return rival

    def dense(self) -> tuple[int, ...]:
        """The table of the moment."""
        table: list[int] = []
        for start, end in pairwise((*self.slots, self.setup.max_num_seqs + 1)):
            table += [self.slots[start].steps] * (end - start)
        return (table[0], *table)[: self.setup.max_num_seqs + 1]

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        """Feed each slot what its present steps brought."""
        starts = list(self.slots)
        for cell in samples.acceptance:
            slot = self.slots[starts[max(0, bisect_right(starts, cell.load) - 1)]]
            if cell.k == slot.steps and cell.request_steps:
                slot.update(sum(cell.accepted) / cell.request_steps, round(cell.request_steps / max(1, cell.load)))
        return self.push(self.dense())
