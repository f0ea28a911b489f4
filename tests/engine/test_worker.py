"""What the plugin changes in a worker's live objects, on vLLM's own classes: every step of every k finds a full graph
of its own, and what adaptive verification compiles at its first cut is compiled before."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.resources.capture import close_sizes
from tests.engine.engines import VLLM, plugin_folder

pytestmark = pytest.mark.engine

LADDER, REQUESTS = (7, 5, 4, 3, 2, 1, 0), 256


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says."""
    sizes = close_sizes(LADDER, REQUESTS)
    plugin = plugin_folder(tmp_path_factory.mktemp("injected") / "plugin")
    done = subprocess.run(
        [
            VLLM.with_name("python"), Path(__file__).with_name("drive_worker.py"), ",".join(map(str, sizes)),
            ",".join(map(str, LADDER)), str(REQUESTS),
        ],
        env={**os.environ, "PYTHONPATH": str(plugin), "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_every_step_finds_a_graph_of_its_own_k(told: dict[str, Any]) -> None:
    assert told["more"] > 0
    assert told["mixed_alike"]
    assert told["all_captured"], "only what was captured can be replayed"
    missed = {k: [n + 1 for n, tokens in enumerate(found) if not tokens] for k, found in told["before"].items()}
    assert any(missed.values()), "vLLM itself leaves steps without a graph: else this module is not needed any more"
    for k, found in told["after"].items():
        padding = [tokens / ((n + 1) * (int(k) + 1)) - 1 for n, tokens in enumerate(found)]
        assert min(padding) >= 0, f"k={k}: no full graph for {[n + 1 for n, p in enumerate(padding) if p < 0]} requests"
        assert sum(padding) / len(padding) <= 0.06


def test_the_cut_of_drafts_is_warmed_for_one_request_and_for_more(told: dict[str, Any]) -> None:
    assert told["warmed"] == [[1, 1], [2, 3], [8, 12]]
