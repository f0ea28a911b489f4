"""An estimate of survival that is no number: told once, cured as far as something can cure it, never in the way."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline_engine.estimate import REST_STEPS, Estimate


def manager(confidences: Any) -> Any:
    """As much of vLLM's as is looked at: two requests in slots 0 and 1 of three."""
    return SimpleNamespace(
        _stale_confidences=[SimpleNamespace(np=confidences)],
        _stale_idx=0,
        req_states=SimpleNamespace(req_id_to_index={"a": 0, "b": 1}),
    )


def test_only_requests_of_the_step_count_and_what_is_no_number_is_one(caplog: pytest.LogCaptureFixture) -> None:
    confidences = np.full((3, 2), 0.5, dtype=np.float32)
    estimate = Estimate(manager(confidences), None)
    assert not estimate.lost(["a", "b"])
    confidences[2, 1] = np.nan
    assert not estimate.lost(["a", "b"])
    confidences[1, 0] = np.nan
    assert not estimate.lost(["a"])
    with caplog.at_level(logging.WARNING, "vllm.paceline"):
        assert estimate.lost(["a", "b"])
    assert confidences.tolist() == [[0.5, 0.5], [1.0, 0.5], [0.5, 1.0]]
    assert "begins anew" in caplog.text


def test_it_is_said_once_in_a_while_and_each_such_step_verifies_all(caplog: pytest.LogCaptureFixture) -> None:
    confidences = np.zeros((3, 2), dtype=np.float32)
    estimate = Estimate(manager(confidences), SimpleNamespace())
    with caplog.at_level(logging.WARNING, "vllm.paceline"):
        for _ in range(REST_STEPS):
            confidences[0, 0] = np.nan
            assert estimate.lost(["a"])
    assert len(caplog.records) == 1


@pytest.mark.parametrize("odd", [SimpleNamespace(), manager([1.0]), manager(np.full((3, 2), np.nan))])
def test_another_shape_of_manager_is_left_alone(odd: Any) -> None:
    assert not Estimate(odd, None).lost(["unknown"])
