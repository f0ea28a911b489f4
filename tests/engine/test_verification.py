"""Adaptive verification as asked for, by vLLM's own manager and through its own executor, on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.engine.engines import ROOT, VLLM

pytestmark = pytest.mark.engine

TIMEOUT_SECONDS = 240
K = 5


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """What the script says."""
    done = subprocess.run(
        [VLLM.with_name("python"), Path(__file__).with_name("drive_verification.py"), "1"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "engine"), "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def best(told: dict[str, Any], requests: int, draft: Any, verify: Any) -> int:
    """The budget of full steps, worked out beside vLLM: expected tokens over milliseconds, first maximum."""
    survival = np.cumprod(np.asarray(told["confidences"][:requests], dtype=np.float32).astype(np.float64), axis=1)
    order = np.sort(survival.ravel())[::-1]
    rates = [
        (requests + order[:chosen].sum()) / (draft[requests] + verify[requests + chosen])
        for chosen in range(min(requests * K, 300 - requests) + 1)
    ]
    return int(np.argmax(np.round(rates, 12)))


def test_as_booted_is_vllms_own_choice_and_comes_back_bit_for_bit(told: dict[str, Any]) -> None:
    found = told["by_policy"]
    booted = found["budgets"]["booted"]
    assert booted == found["budgets"]["again"] == [best(found, n, *found["tables"]) for n in found["sizes"]]
    assert found["restored"]


def test_all_is_every_draft_that_the_sampler_can_hold(told: dict[str, Any]) -> None:
    found = told["by_policy"]
    assert found["budgets"]["all"] == [min(n * K, 300 - n) for n in found["sizes"]]


def test_a_cap_is_never_exceeded(told: dict[str, Any]) -> None:
    capped = told["by_policy"]["budgets"]["capped"]
    assert max(capped) == 20


def test_other_costs_move_the_choice_as_they_should(told: dict[str, Any]) -> None:
    found = told["by_policy"]
    verify = [4.001 if tokens <= 1 else 4.064 if tokens <= 64 else 4.512 for tokens in range(513)]  # padded upwards
    assert found["budgets"]["cheap"] == [best(found, n, [0.5] * 65, verify) for n in found["sizes"]]
    assert sum(found["budgets"]["cheap"]) > sum(found["budgets"]["booted"])


def test_an_estimate_that_is_no_number_is_no_reason_to_verify_nothing_and_begins_anew(told: dict[str, Any]) -> None:
    found = told["unknown"]
    assert found["vllm"] == 1, "vLLM by itself verifies one draft of a batch, even where all pay: it has mended that?"
    assert (found["All"], found["Adaptive"], found["at all"]) == (200, 200, 200)
    assert found["Capped"] == 20
    assert all(found["numbers"])
    assert found["start"] == [0.5, -0.2]
    assert found["again"] == found["of another"] == found["known"] < 200


def test_counts_are_those_of_the_steps(told: dict[str, Any]) -> None:
    found = told["by_policy"]
    assert found["drafted"] == len(found["budgets"]) * K * sum(found["sizes"])
    assert found["verified"] == sum(map(sum, found["budgets"].values()))


def test_two_ranks_agree_in_every_step_of_200_changes_with_steps_in_flight(told: dict[str, Any]) -> None:
    found = told["under_load"]
    assert found["found"]
    assert len(found["steps"]) == 200
    for step in found["steps"]:
        first, second = step["budgets"]
        assert first == second <= step["most"]
        if step["mode"] == "All":
            assert first == step["most"]
        if step["cap"] is not None:
            assert first <= step["cap"]
    assert len({step["budgets"][0] for step in found["steps"]}) > 20
    assert found["restored"]
    state = found["state"]
    assert (state["mode"], state["generation"], state["ranks"], state["error"]) == ("Adaptive", 201, 2, "")


def test_replies_are_there_with_those_of_the_step_they_were_in_front_of(told: dict[str, Any]) -> None:
    """Nobody waited: the change of step n is known when step n is read, one step after it was sent."""
    assert told["under_load"]["order"] == [
        "generation 0",
        "step 0",
        "generation 1",
        "step 1",
        "generation 2",
        "step 2",
        "generation 3",
    ]
    assert all(before != after for before, after in pairwise(told["under_load"]["order"]))
