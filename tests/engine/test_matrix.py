"""Method by runner: what the probe says of vLLM's own configurations is what its own code does with another k."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.capabilities import FIXED_K_METHODS
from tests.engine.engines import MODEL, VLLM, models_folder, plugin_folder

pytestmark = pytest.mark.engine

TIMEOUT_SECONDS = 240


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the script says."""
    script = Path(__file__).with_name("drive_matrix.py")
    plugin = plugin_folder(tmp_path_factory.mktemp("injected") / "plugin")
    done = subprocess.run(
        [VLLM.with_name("python"), script, models_folder() / MODEL, tmp_path_factory.mktemp("draft")],
        env={**os.environ, "PYTHONPATH": str(plugin), "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.mark.parametrize(
    ("method", "runner", "live", "says"),
    [
        ("ngram", "V1", True, ""),
        ("ngram_gpu", "V1", False, "asserts that k"),
        ("suffix", "V1", False, "asserts that k"),
        ("draft_model", "V1", True, ""),
        ("eagle", "V1", True, ""),
        ("eagle3", "V1", True, ""),
    ],
)
def test_the_matrix(told: dict[str, Any], method: str, runner: str, live: bool, says: str) -> None:
    found = told["matrix"][method][runner]
    assert "impossible" not in found, found
    assert (found["runner"], found["live"]) == (runner, live)
    assert says in found["reason"]
    assert bool(found["reason"]) is bool(says)
    assert ("V1 model runner" in found["verification"]) is (runner == "V1")
    if live:
        assert found["ladder"] == [5, 3, 1, 0]


def test_methods_said_to_assert_k_do_and_ngram_does_not(told: dict[str, Any]) -> None:
    assert told["asserts_k"] == {"suffix": True, "extract_hidden_states": True, "ngram": False}
    assert {name for name, asserts in told["asserts_k"].items() if asserts} <= FIXED_K_METHODS


def test_a_schedule_that_is_not_there_or_that_vllm_dropped_is_told(told: dict[str, Any]) -> None:
    assert "without num_speculative_tokens_per_batch_size" in told["others"]["no schedule"]["reason"]
    assert "data_parallel_size is 2" in told["others"]["data parallel"]["reason"]


def test_graph_coverage_is_what_vllms_own_tables_answer(told: dict[str, Any]) -> None:
    """Seeded ks up to the largest size that was captured; without a schedule only the one k; with AV every k."""
    found = {name: {int(k): n for k, n in by_k.items()} for name, by_k in told["graphs"].items()}
    assert found["seeded"] == {5: 16, 3: 16, 1: 16, 0: 16}
    assert found["one k"] == {5: 16}
    assert found["adaptive"] == dict.fromkeys((5, 4, 3, 2, 1, 0), 16)
    assert found["V1"] == {5: 16}
    assert found["V1 with a schedule"] == {}


def test_vllms_own_plugins_load_beside_ours(told: dict[str, Any]) -> None:
    """VLLM_PLUGINS unset loads all; set, with our name appended, what it named and ours; without, not ours."""
    resolvers = {"lora_filesystem_resolver", "lora_hf_hub_resolver"}
    assert set(told["plugins"]["unset"]) >= resolvers | {"paceline"}
    assert set(told["plugins"]["lora_filesystem_resolver,paceline"]) == {"lora_filesystem_resolver", "paceline"}
    assert set(told["plugins"]["lora_filesystem_resolver"]) == {"lora_filesystem_resolver"}
