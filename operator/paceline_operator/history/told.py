"""The history in status. Pure."""

from __future__ import annotations

from paceline_operator.api.status_history import HistoryStatus, LoadShare
from paceline_operator.history.load import Absence, Load, Source

HELD = 0.05
"""Relative change below which the status before stays: measured numbers are not rewritten for noise."""


def status(found: Load | Absence, source: Source, before: HistoryStatus | None) -> HistoryStatus:
    """What status is to say; `before` where nothing that matters changed."""
    if isinstance(found, Absence):
        return HistoryStatus(source=source.value, reason=found.reason.value, message=found.message[:1024])
    running = found.running
    new = HistoryStatus(
        source=source.value,
        hours=int(running.hours),
        p50_requests=running.p50,
        p90_requests=running.p90,
        p99_requests=running.p99,
        demand_p90_requests=found.demand.p90,
        shares=[LoadShare(from_requests=load, permille=round(1000 * share)) for load, share in running.shares.items()],
    )
    return before if before is not None and _alike(new, before) else new


def _alike(new: HistoryStatus, old: HistoryStatus) -> bool:
    if (new.source, new.reason) != (old.source, old.reason):
        return False
    numbers = [
        (new.p50_requests, old.p50_requests),
        (new.p90_requests, old.p90_requests),
        (new.p99_requests, old.p99_requests),
        (new.demand_p90_requests, old.demand_p90_requests),
    ]
    shares = {one.from_requests: one.permille for one in old.shares}
    moved = [abs(one.permille - shares.get(one.from_requests, 0)) for one in new.shares]
    return all(_close(*pair) for pair in numbers) and max(moved, default=0) <= 1000 * HELD


def _close(new: int | None, old: int | None) -> bool:
    if new is None or old is None:
        return new is old
    return abs(new - old) <= HELD * max(abs(old), abs(new))
