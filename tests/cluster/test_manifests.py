"""The committed manifests on a real API server: accepted as they are, pods within the restricted Pod Security Standard,
and a second apply changes nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_operator.naming import FIELD_MANAGER
from tests.harness.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

EXPECTED = Path(__file__).resolve().parents[1] / "golden" / "manifests" / "expected"
NAMES = [file.stem for file in sorted(EXPECTED.glob("*.yaml"))]


def children(name: str, namespace: str) -> list[dict[str, Any]]:
    """In `namespace`, and without their owner, which these tests do not create."""
    documents = list(yaml.safe_load_all((EXPECTED / f"{name}.yaml").read_text()))
    for document in documents:
        document["metadata"]["namespace"] = namespace
        del document["metadata"]["ownerReferences"]
    return documents


@pytest.fixture(scope="module")
def restricted(control_plane: ControlPlane, module_namespace: str) -> str:
    control_plane.kubectl("label", "namespace", module_namespace, "pod-security.kubernetes.io/enforce=restricted")
    return module_namespace


def apply(cluster: ControlPlane, documents: list[dict[str, Any]]) -> dict[str, str]:
    """Server-side apply as the operator does it; the versions after it, by kind and name."""
    command = ("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "-o", "json", "-f", "-")
    stored = json.loads(cluster.kubectl(*command, input=yaml.safe_dump_all(documents)).stdout)
    items = stored["items"] if stored["kind"] == "List" else [stored]
    return {f"{item['kind']}/{item['metadata']['name']}": version(item["metadata"]) for item in items}


def version(metadata: dict[str, Any]) -> str:
    """What moves with our fields; where there is a generation, the resource version also moves with the status."""
    return str(metadata.get("generation", metadata["resourceVersion"]))


@pytest.mark.parametrize("name", NAMES)
def test_children_are_accepted_and_a_second_apply_writes_nothing(
    control_plane: ControlPlane, restricted: str, name: str
) -> None:
    documents = children(name, restricted)
    first = apply(control_plane, documents)
    assert len(first) == len(documents)
    assert apply(control_plane, documents) == first


@pytest.mark.parametrize("name", NAMES)
def test_pods_are_within_the_restricted_standard(control_plane: ControlPlane, restricted: str, name: str) -> None:
    documents = children(name, restricted)
    apply(control_plane, [document for document in documents if document["kind"] == "ServiceAccount"])
    template = next(document for document in documents if document["kind"] == "Deployment")["spec"]["template"]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    pod["metadata"] = {**template["metadata"], "name": "pod", "namespace": restricted}
    control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=json.dumps(pod))
