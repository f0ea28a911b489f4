"""The crash-loop breaker: service first. Two deaths of speculative engines within a window, and all pods boot without
speculation; only then is a remedy looked for, on one pod. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

DEATHS = 2
"""That open it: one may be chance, and a third costs every user another restart of minutes."""
WINDOW = timedelta(minutes=30)
"""Long enough for two restarts of a large model, which take minutes each, and the time to failure in between."""


@dataclass(frozen=True)
class Death:
    """One end of a speculative engine that counts."""

    at: datetime
    pod: str
    fingerprint: str


def opens(deaths: Sequence[Death], now: datetime, crashes: int = DEATHS, window: timedelta = WINDOW) -> list[Death]:
    """The deaths that open it, newest first; empty where they are fewer than `crashes`. Those of the future (a clock
    that went back) count: they happened."""
    recent = sorted((one for one in deaths if now - one.at <= window), key=lambda one: one.at, reverse=True)
    return recent[:crashes] if len(recent) >= crashes else []


def words(deaths: Sequence[Death], window: timedelta = WINDOW) -> str:
    """Why it is open, in one line."""
    named = ", ".join(f"{one.pod} at {one.at.isoformat(timespec='seconds')} ({one.fingerprint})" for one in deaths)
    return f"{len(deaths)} speculative engines died within {window.total_seconds() / 60:.0f} minutes: {named}"
