"""Times as Kubernetes writes them, there and back."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.clock import moment, rfc3339


@given(st.datetimes(datetime(1970, 1, 1), timezones=st.just(UTC)))
def test_what_is_written_is_read_to_the_second(at: datetime) -> None:
    assert moment(rfc3339(at)) == at.replace(microsecond=0)


def test_fractions_and_offsets_are_read() -> None:
    assert moment("2026-01-01T01:00:00.5+01:00") == datetime(2026, 1, 1, microsecond=500_000, tzinfo=UTC)


@pytest.mark.parametrize("text", [None, 5, "", "soon", "2026-01-01T00:00:00", "2026-01-01", "2026-13-01T00:00:00Z"])
def test_what_is_no_time_with_an_offset_is_none(text: object) -> None:
    assert moment(text) is None


@given(st.text() | st.none() | st.integers() | st.binary())
def test_nothing_makes_it_stumble(text: object) -> None:
    found = moment(text)
    assert found is None or found.tzinfo is not None
