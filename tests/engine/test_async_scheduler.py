"""Live k in vLLM's real AsyncScheduler: k chosen in a step is reserved at once and verified in the next."""

from __future__ import annotations

import json
import os
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.protocol import TOKEN_FILE_CURRENT, Samples, State
from tests.engine.engines import MODEL, ROOT, TOKEN, VLLM, models_folder

pytestmark = pytest.mark.engine

TIMEOUT_SECONDS = 240


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says."""
    folder = tmp_path_factory.mktemp("tokens")
    (folder / TOKEN_FILE_CURRENT).write_text(TOKEN)
    script = Path(__file__).with_name("drive_async_scheduler.py")
    done = subprocess.run(
        [VLLM.with_name("python"), script, models_folder() / MODEL, folder, tmp_path_factory.mktemp("empty")],
        env={**os.environ, "PYTHONPATH": str(ROOT / "engine"), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_without_a_token_the_scheduler_keeps_its_schedule_and_no_port_is_opened(told: dict[str, Any]) -> None:
    assert told["without"] == {"installed": False, "lookup": [0, *[5] * 16], "lookup_type": "list", "threads": []}


def test_k_is_reserved_when_chosen_and_verified_a_step_later(told: dict[str, Any]) -> None:
    steps = told["steps"]
    assert [step["k"] for step in steps] == [k for k in (5, 1, 0, 3) for _ in range(4)]
    assert all(step["reserved"] == step["k"] for step in steps)
    for before, step in pairwise(steps[2:]):  # from the third on both requests decode
        assert step["verified"] == ({"a": before["k"], "b": before["k"]} if before["k"] else {})
    state, samples = State.model_validate(told["state"]), Samples.model_validate(told["samples"])
    assert (state.generation, state.k_in_force, state.steps_by_k, state.policy_errors) == (
        4,
        3,
        dict.fromkeys((5, 1, 0, 3), 4),
        0,
    )
    assert [(cell.k, cell.request_steps, cell.drafts) for cell in samples.acceptance] == [
        (0, 8, 0),
        (1, 8, 8),
        (3, 4, 4),
        (5, 7, 7),
    ]
    assert all(cell.drafted == cell.accepted == (cell.drafts,) * cell.k for cell in samples.acceptance)
    excluded = {why: steps for why, steps in samples.excluded_steps.items() if why != "stalled"}
    assert excluded == {"prefill": 2, "transition": 3}  # whether a step stood still is for the machine to say
    mixed = [cell for cell in samples.cells if cell.prompt]
    assert [(cell.k_drafted, cell.steps, cell.request_steps, cell.first_tokens) for cell in mixed] == [(5, 1, 2, 1)]
    assert all(cell.k_drafted == cell.k_verified for cell in samples.cells)
