"""The observed guard on the time to first token, which no model of (k, load) predicts.

Its 95th percentile above the limit in two windows lowers k by a step of the ladder at the present load and above (a
shorter step lets prompts in sooner), twice at most. What was lowered comes back a step at a time after the percentile
has been clear for a while, and after longer each time that was too early.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

WINDOWS = 2
MOST_LOWERED = 2
CLEAR_RATIO = 0.9
"""Of the limit, below which a window is clear."""
CLEAR_SECONDS, LONGEST_CLEAR_SECONDS = 300.0, 4800.0
STUCK_SECONDS = 120.0
"""With everything lowered and the limit still exceeded, after which more replicas are proposed."""


@dataclass(frozen=True)
class Ttft:
    """The guard's state."""

    lowered: int = 0
    """Steps of the ladder."""
    from_load: int = 0
    """Load bucket from which they are taken."""
    breached: int = 0
    """Windows in a row above the limit."""
    clear_since: float | None = None
    changed: float = -math.inf
    wait: float = CLEAR_SECONDS
    """Seconds that must be clear before a step is taken back."""
    worst: float = 0.0
    """Seconds, of the window that lowered last."""
    stuck_since: float | None = None


def advance(past: Ttft, seconds: float | None, limit: float | None, load: int | None, now: float) -> Ttft:
    """One window with a 95th percentile of `seconds` (None: unknown, which changes nothing) at `load`."""
    if limit is None:
        return Ttft()
    if seconds is None or load is None:
        return past
    if seconds > limit:
        count = past.breached + 1
        if count < WINDOWS:
            return replace(past, breached=count, clear_since=None)
        if past.lowered >= MOST_LOWERED:
            since = now if past.stuck_since is None else past.stuck_since
            lower = min(past.from_load, load)
            return replace(past, breached=count, clear_since=None, stuck_since=since, from_load=lower)
        early = past.lowered == 0 and now - past.changed < past.wait
        return Ttft(
            lowered=past.lowered + 1,
            from_load=min(past.from_load, load) if past.lowered else load,
            changed=now,
            wait=min(2 * past.wait, LONGEST_CLEAR_SECONDS) if early else past.wait,
            worst=seconds,
        )
    state = replace(past, breached=0, stuck_since=None)
    if seconds > CLEAR_RATIO * limit or not past.lowered:
        return replace(state, clear_since=None)
    since = now if past.clear_since is None else past.clear_since
    if now - since < past.wait:
        return replace(state, clear_since=since)
    return replace(state, lowered=past.lowered - 1, clear_since=now, changed=now)


def applied(table: tuple[int, ...], ladder: Sequence[int], guard: Ttft) -> tuple[int, ...]:
    """`table` with its ks from `guard.from_load` on lowered along the descending `ladder`."""
    if not guard.lowered:
        return table
    lower = {k: ladder[min(position + guard.lowered, len(ladder) - 1)] for position, k in enumerate(ladder)}
    start = max(1, guard.from_load)
    dense = (*table[:start], *(lower.get(k, k) for k in table[start:]))
    return (dense[min(1, len(dense) - 1)], *dense[1:])
