"""May pods be restarted now? Maintenance windows and the budget of a day. Pure: the time is given."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from zoneinfo import ZoneInfo

from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Day, Rollout, Window

DAYS = tuple(Day)
"""In the order of datetime.weekday()."""
DAY = timedelta(hours=24)


class Closed(NamedTuple):
    """Why not now."""

    reason: Reason
    message: str
    until: datetime | None
    """When it opens, where that is known."""


def closed(rollout: Rollout, *, own: bool, restarts: Sequence[datetime], now: datetime) -> Closed | None:
    """None where a change may start. `own`: it is the operator's; `restarts`: when earlier ones of these started."""
    if own and (spent := _spent(rollout, restarts, now)):
        return spent
    windows = rollout.maintenance_windows
    if not windows or not (own or rollout.windows_for_user_changes):
        return None
    if any(is_open(window, now) for window in windows):
        return None
    opens = min(next_start(window, now) for window in windows)
    whose = "a change of the operator's own" if own else "the change"
    message = f"{whose} waits for the maintenance window that opens at {opens.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return Closed(Reason.OUTSIDE_WINDOW, message, opens)


def is_open(window: Window, now: datetime) -> bool:
    """Whether `now` is in the window, the start included and the end not."""
    length = timedelta(minutes=window.duration_minutes)
    return any(start <= now < start + length for start in _starts(window, now, -8, 1))


def next_start(window: Window, now: datetime) -> datetime:
    """The first start after `now`, UTC."""
    return min(start for start in _starts(window, now, 0, 9) if start > now)


def _starts(window: Window, now: datetime, first: int, last: int) -> list[datetime]:
    """Starts on the local days from `first` to `last`, counted from today's, in UTC: on two days of the year a local
    day is not 24 hours long. A window is at most a week long, and each starts at least once in eight days."""
    zone = ZoneInfo(window.time_zone)
    today = now.astimezone(zone).date()
    hour, minute = map(int, window.start.split(":"))
    days = (today + timedelta(days=offset) for offset in range(first, last + 1))
    wanted = [day for day in days if not window.days or DAYS[day.weekday()] in window.days]
    return [datetime(d.year, d.month, d.day, hour, minute, tzinfo=zone).astimezone(UTC) for d in wanted]


def _spent(rollout: Rollout, restarts: Sequence[datetime], now: datetime) -> Closed | None:
    lately = sorted(at for at in restarts if now - at < DAY)
    if len(lately) < rollout.restarts_per_day:
        return None
    frees = lately[len(lately) - rollout.restarts_per_day] + DAY if rollout.restarts_per_day else None
    when = f"; the next may start at {frees.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}" if frees else ""
    message = f"{len(lately)} of rollout.restartsPerDay {rollout.restarts_per_day} were used in the last 24 hours{when}"
    return Closed(Reason.BUDGET_SPENT, message, frees)
