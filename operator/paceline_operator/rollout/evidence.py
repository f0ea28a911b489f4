"""What was seen of a canary and of the pods beside it, over the same time. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Watch:
    """What one process saw since the canary became ready. Lost with it, and gathered anew by the next."""

    revision: str = ""
    """The canary's."""
    cursors: Mapping[str, str] = field(default_factory=dict)
    """Pod -> cursor for its next `GET /samples`: not the tuner's, which rests meanwhile."""
