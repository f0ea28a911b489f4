"""Every step of every k finds a full graph of its own in vLLM's own graph manager, once the plugin has extended it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from paceline_operator.resources.capture import close_sizes
from tests.engine.engines import VLLM, plugin_folder

pytestmark = pytest.mark.engine

LADDER, REQUESTS = (7, 5, 4, 3, 2, 1, 0), 256


def test_every_step_finds_a_graph_of_its_own_k(tmp_path: Path) -> None:
    sizes = close_sizes(LADDER, REQUESTS)
    done = subprocess.run(
        [
            VLLM.with_name("python"), Path(__file__).with_name("drive_graphs.py"), ",".join(map(str, sizes)),
            ",".join(map(str, LADDER)), str(REQUESTS),
        ],
        env={**os.environ, "PYTHONPATH": str(plugin_folder(tmp_path / "plugin")), "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["more"] > 0
    assert told["mixed_alike"]
    assert told["all_captured"], "only what was captured can be replayed"
    missed = {k: [n + 1 for n, tokens in enumerate(found) if not tokens] for k, found in told["before"].items()}
    assert any(missed.values()), "vLLM itself leaves steps without a graph: else this module is not needed any more"
    for k, found in told["after"].items():
        padding = [tokens / ((n + 1) * (int(k) + 1)) - 1 for n, tokens in enumerate(found)]
        assert min(padding) >= 0, f"k={k}: no full graph for {[n + 1 for n, p in enumerate(padding) if p < 0]} requests"
        assert sum(padding) / len(padding) <= 0.06
