"""Pods that come and go by scaling: for a while the load of each is no measure of anything; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Motion:
    """What was seen last."""

    replicas: int = -1
    """spec.replicas; -1: nothing was seen yet."""
    ready: int = 0
    open: bool = False
    """replicas changed, and not so many are ready yet."""
    until: float = 0.0
    """k stays as it is until then (monotonic seconds)."""


def seen(past: Motion, replicas: int, ready: int, now: float, pause: float) -> Motion:
    """After another look. Each step of a scaling (replicas written, a pod that came or went) pauses k for `pause`
    seconds, and no longer: a model may load for minutes, in which k is all that there is."""
    opened = past.replicas not in (-1, replicas) and past.ready > 0
    moving = past.open or opened
    after = replace(past, replicas=replicas, ready=ready, open=moving and ready != replicas)
    return replace(after, until=now + pause) if moving and (opened or ready != past.ready) else after
