"""What the rivals have in common: a dense table, pushed when it changed, and what an engine's samples say.

Each rival is our own implementation of a published rule, under `paceline_operator.replay.contest.Pacer`: it gets what
the plugin answers and nothing else. Where its own system acts every step, it acts here every `PERIOD_SECONDS`, for
which the simulated engine runs one k: it answers as much later as a period has steps, and it pays no price for changing
k each step, which an engine may well ask.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline_engine.protocol import Policy, Probe, Samples
from paceline_operator.replay.contest import Setup

PERIOD_SECONDS = 1.0
CUSTOMARY_K = 3
"""What SGLang's and vLLM's examples start with, and the best single constant over the published tables."""


@dataclass
class Rival:
    """A table in force, and the generation of its last push."""

    setup: Setup
    boot: tuple[int, ...]
    generation: int = 0
    pushed: tuple[tuple[int, ...], Probe | None] | None = field(default=None, repr=False)

    def push(self, table: Sequence[int], probe: Probe | None = None) -> Policy | None:
        """The policy with `table`, or None where it is in force."""
        wanted = (tuple(table), probe)
        if wanted == (self.pushed or (self.boot, None)):
            return None
        self.pushed, self.generation = wanted, self.generation + 1
        return Policy.model_construct(generation=self.generation, table=wanted[0], probe=probe)


def nearest(ladder: Iterable[int], k: int) -> int:
    """The ladder's k that is nearest to `k`; the smaller of two."""
    return min(sorted(ladder), key=lambda other: abs(other - k))


@dataclass(frozen=True)
class Observed:
    """One (load bucket, k) in one period."""

    steps: int
    goodput: float
    """Tokens a second."""


def observed(samples: Samples) -> Mapping[tuple[int, int], Observed]:
    """Goodput by (load bucket, k), from tokens and seconds of decode-only steps."""
    sums: dict[tuple[int, int], tuple[int, int, float]] = {}
    for cell in samples.cells:
        steps, tokens, seconds = sums.get((cell.load, cell.k_drafted), (0, 0, 0.0))
        sums[cell.load, cell.k_drafted] = (steps + cell.steps, tokens + cell.emitted, seconds + cell.seconds)
    return {at: Observed(steps, tokens / seconds) for at, (steps, tokens, seconds) in sums.items() if seconds > 0}
