"""An experiment with real engines in real pods: the operator runs it to its end, and the command line reports it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_operator import naming
from tests.e2e.scene import Object, Scene
from tests.e2e.serving import manifest
from tests.harness.node import Node

pytestmark = [pytest.mark.node, pytest.mark.engine, pytest.mark.long]

END_SECONDS = 900.0
EXPERIMENT = {
    "apiVersion": naming.API_VERSION,
    "kind": naming.KIND_EXPERIMENT,
    "metadata": {"name": "worth-it"},
    "spec": {
        "servingRef": {"name": "chat"},
        "load": {"concurrency": [2], "prompts": {"random": {"inputTokens": 32}}, "outputTokens": 24},
        "duration": {"seconds": 10},
        "budgetGpuMinutes": 60,
    },
}


def test_baseline_and_serving_in_pods(node: Node, node_namespace: str, tmp_path: Path) -> None:
    scene = Scene(node, node_namespace, "chat", alone=True, lease_seconds=60)
    scene.install()
    serving = manifest("chat", tuning={"intervalSeconds": 2})
    serving["spec"]["replicas"] = 0  # two cores carry one engine
    with scene.operator() as operator:
        for body in (serving, EXPERIMENT):
            scene.kubectl("apply", "-f", "-", input=json.dumps(body))

        def status() -> Object:
            found: Object = json.loads(scene.kubectl("get", naming.PLURAL_EXPERIMENT, "worth-it", "-o=json"))
            return dict(found.get("status", {}))

        try:
            scene.wait("the end", lambda: status().get("phase") == "Completed" or None, END_SECONDS, operator)
        except TimeoutError as error:
            error.add_note(json.dumps(status(), indent=1))
            raise
        found = status()
        print(json.dumps(found, indent=1))
        assert (found["windows"], found["plannedWindows"]) == (4, 4), found["missing"]
        pods = json.loads(scene.kubectl("get", "pods", f"-l={naming.LABEL_EXPERIMENT}", "-o=json"))["items"]
        assert pods == []
        data = json.loads(scene.kubectl("get", "configmap", "worth-it-result-serving", "-o=json"))["data"]
        result = json.loads(data["serving.json"])
        assert [one["acceptance"]["drafts"] > 0 for one in result["windows"]] == [True, True]
        assert all(one["warmed"] and one["server"]["ttft"] for one in result["windows"])
        assert result["methods"]["versions"]["vllm"].startswith("0.32")
    told = subprocess.run(
        [*node.prefix, Path(sys.prefix) / "bin" / "paceline", "experiment", "report",
         f"{node_namespace}/worth-it", "-o", tmp_path / "report"],
        env=os.environ | {"KUBECONFIG": str(node.kubeconfig), "PACELINE_CACHE": str(tmp_path)},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert told.returncode == 0, told.stdout + told.stderr
    assert "serving: " in told.stdout
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000
