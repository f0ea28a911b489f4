"""What a decision about replicas is told (Terms, Sight), what it carries on (Past), what it answers (Decision).

Seconds are of a monotonic clock given by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_operator.api.conditions import Reason


@dataclass(frozen=True)
class Terms:
    """What the spec asks. `target_requests` and `token_limit_seconds`: at least one of them."""

    minimum: int
    maximum: int
    target_requests: int | None = None
    """A pod's."""
    token_limit_seconds: float | None = None
    """Time per output token."""
    up_window_seconds: float = 0.0
    down_window_seconds: float = 300.0
    up_step: int = 4
    down_step: int = 1
    patience_seconds: float = 1800.0
    """For which a pod may take to become ready."""
    gap_seconds: float = 60.0
    """Without numbers, after which what was seen before says nothing of a window."""
    min_gain: float = 0.01
    """Share by which another k must be better for the tuner to move."""


@dataclass(frozen=True)
class Pace:
    """What a measured k gives at the present load: numbers of one engine."""

    k: int
    goodput: float
    """Tokens per second."""
    token_seconds: float
    """Time per output token of a request."""


@dataclass(frozen=True)
class Sight:
    """What this pass saw."""

    replicas: int
    """spec.replicas."""
    pods: int
    ready: int
    answering: int = 0
    """Engines whose requests are known."""
    requests: float | None = None
    """Running and waiting, of all that answer together; None: unknown."""
    unknown: tuple[Reason, str] = (Reason.NO_PODS, "no engine was read")
    """Why, where `requests` is None."""
    load: int | None = None
    """Load bucket of the present load; None: idle or unknown."""
    table: Mapping[int, int] = field(default_factory=dict)
    """Load bucket -> k in force."""
    paces: tuple[Pace, ...] = ()
    """Of the measured ks at the present load."""
    steerable: bool = False
    """k follows the tuner: mode Auto, tier Live, not frozen."""
    measuring: bool = False
    """Steerable, and not every k is measured at the present load yet."""
    token_seconds: Mapping[int, float] = field(default_factory=dict)
    """Load -> least time per output token that k can reach there, where measured."""
    late_first_tokens: bool = False
    """The time to first token exceeds its limit although the tuner has lowered k as far as it does."""
    frozen: str = ""
    """Why nothing may move, a rollout; empty where it may."""

    @property
    def k(self) -> int | None:
        """In force at the present load."""
        return self.table.get(self.load) if self.load is not None else None


@dataclass(frozen=True)
class Past:
    """What is carried from pass to pass. A new one after a restart of the operator: windows then begin anew."""

    totals: tuple[tuple[float, float], ...] = ()
    """(when, requests), oldest first, as long as the longer window."""
    since: float | None = None
    """From when on numbers came without a gap."""
    table: Mapping[int, int] = field(default_factory=dict)
    k_first_since: float | None = None
    """From when on more pods are wanted, and wait for k."""
    pods: tuple[int, int, int] = (-1, -1, -1)
    """replicas, pods, ready."""
    pods_since: float = -math.inf
    """When one of them changed."""
    bought: tuple[int, float] = (-1, -math.inf)
    """Replicas, and when they became so many."""


@dataclass(frozen=True)
class Decision:
    """`replicas` wanted, and why. `holding`: the numbers to decide by are missing."""

    replicas: int
    reason: Reason
    message: str
    past: Past
    holding: bool = False
