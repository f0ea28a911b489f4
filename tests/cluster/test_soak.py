"""A short form of `make soak`: an operator under churn for minutes, and how growth is told from what comes and goes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.soak_operator import Look, grown, run, told

pytestmark = pytest.mark.cluster

SECONDS = 240.0
STEADY = Look(0.0, 100.0, 40, 5, 120, 0, 0, 10_000, 2, 20_000, 180)


@pytest.mark.long
@pytest.mark.usefixtures("control_plane")
def test_nothing_grows_under_churn(tmp_path: Path) -> None:
    found = run(SECONDS, tmp_path / "plane")
    print(found["figures"])
    assert found["problems"] == []
    assert sum(found["churn"].values()) > SECONDS / 4


def test_what_grows_is_told_from_what_comes_and_goes() -> None:
    hour = [replace(STEADY, at=60.0 * minute, rss_mib=100.0 + minute % 5) for minute in range(60)]
    assert grown(hour) == []
    leaks = [replace(look, rss_mib=100.0 + look.at / 60) for look in hour]
    assert told("rss_mib", leaks)["slope_per_hour"] == 60.0
    assert grown(leaks) == ["rss_mib grew from 122.0 to 152.0"]
    assert grown([replace(look, status_bytes=50_000) for look in hour]) == ["status_bytes was 50000.0"]
