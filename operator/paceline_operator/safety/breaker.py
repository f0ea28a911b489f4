"""The crash-loop breaker: service first. Two deaths of speculative engines within a window, and all pods boot without
speculation; only then is a remedy looked for, on one pod. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

DEATHS = 2
"""That open it: one may be chance, and a third costs every user another restart of minutes."""
WINDOW = timedelta(minutes=30)
"""Long enough for two restarts of a large model, which take minutes each, and the time to failure in between."""


class Breaker(StrEnum):
    """Closed: engines speculate. Open: they do not, until the ladder found what stays up."""

    CLOSED = "Closed"
    OPEN = "Open"


@dataclass(frozen=True)
class Death:
    """One end of a speculative engine that counts."""

    at: datetime
    pod: str
    fingerprint: str


def opens(deaths: Sequence[Death], now: datetime) -> list[Death]:
    """The deaths that open it, newest first; empty where they are too few. Those of the future (a clock that went back)
    count: they happened."""
    recent = sorted((one for one in deaths if now - one.at <= WINDOW), key=lambda one: one.at, reverse=True)
    return recent[:DEATHS] if len(recent) >= DEATHS else []


def words(deaths: Sequence[Death]) -> str:
    """Why it is open, in one line."""
    named = ", ".join(f"{one.pod} at {one.at.isoformat(timespec='seconds')} ({one.fingerprint})" for one in deaths)
    return f"{len(deaths)} speculative engines died within {WINDOW.seconds // 60} minutes: {named}"
