"""The clock, injected: nothing else in the operator asks for the time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Wall clock for people, monotonic clock for decisions (a wall clock that jumps must move nothing)."""

    def now(self) -> datetime:
        """Aware UTC time."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> datetime:
        """Aware UTC time."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never go back."""
        return time.monotonic()


@dataclass
class FakeClock:
    """A clock that stands still until it is told: tests and replays."""

    seconds: float = 0.0
    origin: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def now(self) -> datetime:
        """Origin plus the seconds advanced."""
        return datetime.fromtimestamp(self.origin.timestamp() + self.seconds, UTC)

    def monotonic(self) -> float:
        """Seconds advanced."""
        return self.seconds

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.seconds += seconds


def rfc3339(moment: datetime) -> str:
    """`2026-01-01T00:00:00Z`, the way Kubernetes writes times."""
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"


def moment(text: object) -> datetime | None:
    """What `text` says in RFC 3339; None where it is no time with an offset, whatever it is."""
    try:
        found = datetime.fromisoformat(text) if isinstance(text, str) else None
    except ValueError:
        return None
    return found if found is not None and found.utcoffset() is not None else None
