"""How large: the measurement on H200s, or a rehearsal of the same scripts on a CPU (`PACELINE_BENCH=cpu`).

A rehearsal proves that the scripts run. Its figures mean nothing: a toy model, ngram drafts, no graphs, the V1 runner.
"""

from __future__ import annotations

import os
from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Shapes, loads and durations."""

    cpu: bool
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocabulary: int
    ladder: tuple[int, ...]
    """Boot k first; graphs are captured for each."""
    rates: tuple[float, ...]
    """Synthetic acceptance: share of drafts accepted up to each position."""
    seqs: int
    loads: tuple[int, ...]
    cost_loads: dict[int, int]
    """Load -> steps of a window in which arms are compared: about a second."""
    rounds: dict[int, int]
    """Load -> forth-and-back rounds of the plugin's arms: more where windows differ more."""
    boot_rounds: int
    """The same for the engines of their own, in windows of half the length."""
    changes: int
    sweep_seconds: float
    verification_seconds: float
    visit_seconds: float
    pinned_seconds: float
    """One of the two windows of every fixed k at each load."""
    verification_visit_seconds: tuple[float, float]
    """Up and down."""
    reply_tokens: int
    """Of a request of the closed loop: short enough that prompts come in between, as they do in life."""
    boot_limit: float

    @property
    def static_k(self) -> int:
        """The fixed k that arms are compared at."""
        return 3


H200 = Scale(
    cpu=False, hidden=4096, inner=14336, layers=32, heads=32, kv_heads=8, vocabulary=128256,
    ladder=(7, 5, 4, 3, 2, 1, 0), rates=(0.78, 0.60, 0.46, 0.36, 0.28, 0.22, 0.17), seqs=256,
    loads=(1, 8, 32, 64, 128, 256),
    cost_loads={1: 160, 64: 90, 256: 34}, rounds={1: 4, 64: 14, 256: 6}, boot_rounds=3, changes=200, sweep_seconds=1.6,
    verification_seconds=0.9, visit_seconds=30.0, pinned_seconds=3.0, verification_visit_seconds=(9.0, 24.0),
    reply_tokens=512, boot_limit=330.0,
)  # fmt: skip
CPU = Scale(
    cpu=True, hidden=512, inner=1024, layers=8, heads=8, kv_heads=8, vocabulary=512,
    ladder=(5, 3, 1, 0), rates=(0.78, 0.60, 0.46, 0.36, 0.28), seqs=8,
    loads=(1, 4), cost_loads={1: 30, 4: 30}, rounds={1: 2, 4: 2}, boot_rounds=1, changes=12,
    sweep_seconds=0.5, verification_seconds=0.5, visit_seconds=6.0, pinned_seconds=0.7,
    verification_visit_seconds=(4.0, 4.0), reply_tokens=200, boot_limit=150.0,
)  # fmt: skip
SCALE = CPU if os.environ.get("PACELINE_BENCH") == "cpu" else H200
