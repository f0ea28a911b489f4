"""Rivals that never learn: vLLM's table of batch sizes, as its authors published it.

vLLM reads the table at every step by the number of scheduled requests, prefill chunks included; the simulated engine
has no prefill. A k that the ladder does not have becomes the nearest that it has.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from benchmarks.tuner.rival import Rival, nearest
from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.replay.contest import Setup

PULL_REQUEST = ((1, 3), (64, 2), (256, 0))
"""https://github.com/vllm-project/vllm/pull/32374: "1-16": 3, "64-128": 2, "256-4096": 0; gaps inherit the k before."""
DOCUMENTED = ((1, 3), (65, 1), (129, 0))
"""https://docs.vllm.ai/en/latest/features/speculative_decoding/dynamic_speculative_decoding/: [1, 64, 3], [65, 128, 1],
[129, 512, 0]."""


@dataclass
class Schedule(Rival):
    """A dense table for ever."""

    @classmethod
    def of(cls, setup: Setup, rows: tuple[tuple[int, int], ...]) -> Schedule:
        """`rows`: (from batch size, k), ascending, the first from 1."""
        starts = [start for start, _ in rows]
        ks = [nearest(setup.ladder, k) for _, k in rows]
        dense = tuple(ks[max(0, bisect_right(starts, n) - 1)] for n in range(setup.max_num_seqs + 1))
        return cls(setup, dense)

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        """Nothing to push."""
        return None
