"""Preflight with a real pod: a draft that does not know its target's tokens is told before its engine starts."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from paceline_engine.preflight.check import FAILED_STATUS
from paceline_engine.preflight.headers import Tensor
from paceline_operator.resources.preflight import CONTAINER
from tests.e2e.scene import Scene
from tests.e2e.serving import manifest
from tests.harness.model_files import lay, write
from tests.harness.node import Node
from tests.harness.nodeconfig import ADDRESS
from tests.harness.processes import Daemon, wait_until

pytestmark = [pytest.mark.node, pytest.mark.engine]

PORT = 8901
SECONDS = 120.0
WEIGHTS = 64 * 2**20
MODELS = {
    "target": {"of": "qwen3-0.6b", "tokens": "qwen"},
    "draft": {"of": "qwen3-0.6b", "tokens": "qwen", "change": {"vocab_size": 152064, "num_hidden_layers": 2}},
}


def test_a_pair_that_does_not_fit_is_told_and_nothing_is_downloaded(
    node: Node, node_namespace: str, tmp_path: Path
) -> None:
    scene = Scene(node, node_namespace, "looked-at")
    hub, counts = _hub(node, tmp_path)
    try:
        scene.install()
        with scene.operator() as operator:
            scene.kubectl("apply", "-f", "-", input=json.dumps(_serving()))
            scene.wait("the word", lambda: scene.condition("PreflightPassed")[0] == "False", SECONDS, operator, hub)
            message = next(one["message"] for one in scene.status()["conditions"] if one["type"] == "PreflightPassed")
            assert "vocabulary: the target has 151936 tokens and the draft 152064" in message
            assert "use_heterogeneous_vocab" in message, "the remedy"
            assert json.loads(counts.read_text())["bytes"] < WEIGHTS / 8
            (state,) = [one for one in scene.pod()["status"]["initContainerStatuses"] if one["name"] == CONTAINER]
            ended = state["state"].get("terminated") or state["lastState"]["terminated"]
            assert ended["exitCode"] == FAILED_STATUS
            (engine,) = scene.pod()["status"]["containerStatuses"]
            assert not engine.get("started")
            assert engine["restartCount"] == 0
    finally:
        hub.stop()


def _hub(node: Node, folder: Path) -> tuple[Daemon, Path]:
    models, counts = lay(folder / "hub", MODELS), folder / "counts.json"
    for name in MODELS:
        write(models / name / "model.safetensors", [Tensor("model.layers.0.x", "U8", (WEIGHTS,))])
    command = [sys.executable, "-m", "tests.fakehub", ADDRESS, str(PORT), str(models), str(counts), "0"]
    hub = Daemon("hub", [*node.prefix, *command], node.logs_dir, folder=Path(__file__).parents[2])
    wait_until(lambda: "ready" in hub.tail() or None, "the hub", timeout_seconds=30, daemons=[hub])
    return hub, counts


def _serving() -> dict[str, Any]:
    body = manifest("looked-at", tuning={"intervalSeconds": 2, "ladder": [4, 1, 0]})
    spec = body["spec"]
    spec["model"] = {"source": "hf://test/target"}
    spec["speculation"] = {"method": "draft_model", "draft": {"source": "hf://test/draft"}, "maxTokens": 4}
    spec["engine"]["env"].append({"name": "HF_ENDPOINT", "value": f"http://{ADDRESS}:{PORT}"})
    return body
