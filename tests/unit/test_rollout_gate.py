"""When pods may be restarted: windows of the week in any time zone, and the budget of a day."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Day, Rollout, Window
from paceline_operator.rollout.gate import closed, is_open, next_start

MONDAY = datetime(2026, 3, 2, tzinfo=UTC)


def window(start: str, minutes: int, zone: str = "UTC", days: list[str] | None = None) -> Window:
    return Window.model_validate({"start": start, "durationMinutes": minutes, "timeZone": zone, "days": days or []})


@pytest.mark.parametrize(
    ("given_window", "hours", "expected"),
    [
        (window("02:00", 60), 2.0, True),
        (window("02:00", 60), 3.0, False),
        (window("02:00", 60), 1.99, False),
        (window("23:00", 120), 0.5, True),  # from the day before
        (window("02:00", 60, days=["Tuesday"]), 2.0, False),
        (window("02:00", 60, days=["Tuesday"]), 26.0, True),
        (window("02:00", 60, "Asia/Tokyo"), -7.0, True),  # 17:00 UTC on Sunday
        (window("00:00", 10_080, days=["Monday"]), 24.0 * 6.9, True),
    ],
)
def test_a_window_is_open_from_its_start_to_its_end(given_window: Window, hours: float, expected: bool) -> None:
    assert is_open(given_window, MONDAY + timedelta(hours=hours)) is expected


def test_local_time_is_kept_where_clocks_change() -> None:
    berlin = window("04:00", 30, "Europe/Berlin")
    assert is_open(berlin, datetime(2026, 3, 28, 3, 10, tzinfo=UTC))  # UTC+1
    assert is_open(berlin, datetime(2026, 3, 29, 2, 10, tzinfo=UTC))  # UTC+2
    assert not is_open(berlin, datetime(2026, 3, 29, 3, 10, tzinfo=UTC))


@given(
    start=st.times(),
    minutes=st.integers(1, 10_080),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "America/St_Johns", "Pacific/Kiritimati", "Australia/Lord_Howe"]),
    days=st.sets(st.sampled_from(list(Day))),
    offset=st.integers(0, 3 * 365 * 24 * 60),
)
def test_every_window_opens_within_eight_days_and_is_open_then(
    start: datetime, minutes: int, zone: str, days: set[Day], offset: int
) -> None:
    found, now = window(f"{start:%H:%M}", minutes, zone, sorted(days)), MONDAY + timedelta(minutes=offset)
    opens = next_start(found, now)
    assert now < opens <= now + timedelta(days=8, hours=2)
    assert is_open(found, opens)
    assert is_open(found, opens + timedelta(minutes=minutes, seconds=-1))


def test_a_zone_that_is_none_is_refused_by_name() -> None:
    for zone in ("Europe/Nowhere", "../etc/passwd", "Europe"):
        with pytest.raises(ValidationError, match="IANA"):
            window("02:00", 60, zone)


def test_the_budget_is_of_any_24_hours_and_of_the_operators_own_changes() -> None:
    rollout, now = Rollout(restarts_per_day=2), MONDAY
    earlier = [now - timedelta(hours=hours) for hours in (1, 23)]
    spent = closed(rollout, own=True, restarts=earlier, now=now)
    assert spent is not None
    assert (spent.reason, spent.until) == (Reason.BUDGET_SPENT, now + timedelta(hours=1))
    assert closed(rollout, own=True, restarts=earlier, now=now + timedelta(hours=1)) is None
    assert closed(rollout, own=False, restarts=earlier, now=now) is None
    none = closed(Rollout(restarts_per_day=0), own=True, restarts=[], now=now)
    assert none is not None
    assert none.until is None


@given(st.lists(st.integers(0, 48 * 60), max_size=12), st.integers(0, 5), st.integers(0, 48 * 60))
def test_no_day_has_more_restarts_than_its_budget(minutes: list[int], budget: int, at: int) -> None:
    now = MONDAY + timedelta(minutes=at)
    restarts = [MONDAY + timedelta(minutes=one) for one in minutes if one <= at]
    lately = sum(now - one < timedelta(hours=24) for one in restarts)
    found = closed(Rollout(restarts_per_day=budget), own=True, restarts=restarts, now=now)
    assert (found is not None) == (lately >= budget)
    if found is not None and found.until is not None:
        assert closed(Rollout(restarts_per_day=budget), own=True, restarts=restarts, now=found.until) is None
