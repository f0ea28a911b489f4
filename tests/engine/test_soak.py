"""Half a minute of what `make soak` does for ten: policies that change all the time, and nothing fails or is lost."""

from __future__ import annotations

import pytest

from tests.engine.engines import RealEngine
from tests.engine.soaking import lost, soak

pytestmark = pytest.mark.engine


def test_changes_under_load_fail_no_request_and_lose_no_sample(engine: RealEngine) -> None:
    result = soak(engine, seconds=30, seed=7, every=0.5)
    assert result["failed_requests"] == 0, result["failures"]
    assert lost(result) == []
    assert (result["refused"], result["policy_errors"]) == (0, 0)
    assert result["changes"] >= 50
    assert result["requests"] > 10
