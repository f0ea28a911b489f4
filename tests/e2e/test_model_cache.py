"""The model cache with real pods: a Job brings a real model from a hub in the node's network, and a real vLLM serves it
from the claim without asking the hub for anything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.naming import LABEL_COMPONENT
from tests.e2e.hub import ENDPOINT, SOURCE, served
from tests.e2e.scene import Scene
from tests.e2e.serving import manifest
from tests.harness.node import Node

pytestmark = [pytest.mark.node, pytest.mark.engine]

COMMIT = "c" * 40
SECONDS_A_MEGABYTE = 0.05
"""270 MB take 14 s: long enough to be seen on their way."""
PULL_SECONDS, START_SECONDS = 90.0, 180.0


def test_a_model_is_downloaded_once_and_served_from_the_claim(node: Node, node_namespace: str, tmp_path: Path) -> None:
    scene = Scene(node, node_namespace, "cached")
    hub, counts = served(node, tmp_path, SECONDS_A_MEGABYTE)
    try:
        _volume(scene, tmp_path)
        scene.install()
        with scene.operator() as operator:
            scene.kubectl("apply", "-f", "-", input=json.dumps(_serving()))
            on_its_way = scene.wait("progress", lambda: _progress(scene), PULL_SECONDS, operator, hub)
            assert on_its_way["revision"] == COMMIT
            scene.wait("the weights", lambda: scene.condition("ModelAvailable")[0] == "True", PULL_SECONDS, hub)
            asked = json.loads(counts.read_text())
            assert (asked["listing"], asked["bytes"] > 2**27) == (1, True), asked
            (artefact,) = scene.status()["modelCache"]["artefacts"]
            assert (artefact["phase"], artefact["revision"], artefact["bytes"]) == ("Ready", COMMIT, asked["bytes"])
            scene.wait("Ready", lambda: scene.condition("Ready")[0] == "True", START_SECONDS, operator)
            (said,) = _pulled(scene.pod())["artefacts"]
            assert (said["phase"], said["revision"]) == ("Ready", COMMIT)
            assert json.loads(counts.read_text()) == asked, "the engine's pod asked the hub"
            with scene.load(1) as report:
                scene.wait("an answer", lambda: scene.state()["stepsByK"] or None, 60, operator)
            assert report["failures"] == []
            assert report["answered"] > 0
    finally:
        hub.stop()


def _volume(scene: Scene, folder: Path) -> None:
    """Nothing provisions volumes here: a folder of the host is what the operator's claim binds."""
    held = folder / "claim"
    held.mkdir(mode=0o777)
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": scene.namespace},
        "spec": {
            "capacity": {"storage": "2Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": str(held)},
            "persistentVolumeReclaimPolicy": "Retain",
        },
    }
    scene.kubectl("apply", "-f", "-", input=json.dumps(volume))


def _serving() -> dict[str, Any]:
    body = manifest("cached", tuning={"intervalSeconds": 2, "ladder": [4, 1, 0]})
    spec = body["spec"]
    spec["model"] = {"source": SOURCE, "cache": {"claim": {"size": "1Gi"}, "download": "Job"}}
    spec["engine"]["preflight"] = "Disabled"  # every byte of the hub is counted here, and it reads ahead
    spec["engine"]["env"].append(ENDPOINT)
    template = spec["engine"]["podTemplate"]["spec"]
    # The puller runs in the engine's image, which here is the host's own /usr.
    (engine,) = template["containers"]
    mounts = [mount for mount in engine["volumeMounts"] if mount["name"] != "models"]
    template["initContainers"] = [{"name": "paceline-pull", "volumeMounts": mounts}]
    return body


def _progress(scene: Scene) -> dict[str, Any] | None:
    """What status tells of a download that goes on."""
    found: list[dict[str, Any]] = scene.status().get("modelCache", {}).get("artefacts", [])
    return next((one for one in found if one["phase"] == "Downloading" and 0 <= one["progressPercent"] < 100), None)


def _pulled(pod: dict[str, Any]) -> dict[str, Any]:
    """What the puller in an engine's pod said last."""
    assert pod["metadata"]["labels"][LABEL_COMPONENT] == "engine"
    found = next(one for one in pod["status"]["initContainerStatuses"] if one["name"] == "paceline-pull")
    said: dict[str, Any] = json.loads(found["state"]["terminated"]["message"])
    return said
