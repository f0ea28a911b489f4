"""The committed manifests on a real API server: accepted as they are, pods within the restricted Pod Security Standard,
and a second apply changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from paceline_operator.drift import digest
from paceline_operator.kinds import OPTIONAL
from paceline_operator.naming import FIELD_MANAGER
from tests.harness.controlplane import ControlPlane
from tests.harness.optional import install, remove

pytestmark = pytest.mark.cluster

CLASSES = [
    {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "serving"},
        "value": 1000,
    },
    {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    },
]
EXPECTED = Path(__file__).resolve().parents[1] / "golden" / "manifests" / "expected"
NAMES = [file.stem for file in sorted(EXPECTED.glob("*.yaml"))]


@cache
def read(name: str) -> str:
    """A golden file as JSON: parsing all of them takes seconds."""
    return json.dumps(list(yaml.load_all((EXPECTED / f"{name}.yaml").read_text(), yaml.CSafeLoader)))


def children(name: str, namespace: str) -> list[dict[str, Any]]:
    """In `namespace`, and without their owner, which these tests do not create."""
    documents: list[dict[str, Any]] = json.loads(read(name))
    for document in documents:
        document["metadata"]["namespace"] = namespace
        del document["metadata"]["ownerReferences"]
    return documents


@pytest.fixture(scope="module")
def restricted(control_plane: ControlPlane, module_namespace: str) -> Iterator[str]:
    """A namespace for restricted pods alone, in a cluster that has all optional kinds and the classes of examples."""
    control_plane.kubectl("label", "namespace", module_namespace, "pod-security.kubernetes.io/enforce=restricted")
    install(control_plane, *OPTIONAL)
    control_plane.kubectl("apply", "-f", "-", input=listed(CLASSES))
    yield module_namespace
    control_plane.kubectl("delete", "-f", "-", input=listed(CLASSES))
    remove(control_plane, *OPTIONAL)


def listed(documents: list[dict[str, Any]]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": documents})


def apply(cluster: ControlPlane, documents: list[dict[str, Any]]) -> dict[str, str]:
    """Server-side apply as the operator does it; the versions after it, by kind and name."""
    command = ("apply", "--server-side", f"--field-manager={FIELD_MANAGER}", "-o", "json", "-f", "-")
    stored = json.loads(cluster.kubectl(*command, input=listed(documents)).stdout)
    items = stored["items"] if stored["kind"] == "List" else [stored]
    return {f"{item['kind']}/{item['metadata']['name']}": version(item) for item in items}


def version(item: dict[str, Any]) -> str:
    """What moves with our fields; where there is a generation, the resource version also moves with the status. That of
    a claim moves with its controller, too."""
    metadata = item["metadata"]
    if item["kind"] == "PersistentVolumeClaim":
        return digest(item)
    return str(metadata.get("generation", metadata["resourceVersion"]))


@pytest.fixture(scope="module")
def applied(control_plane: ControlPlane, restricted: str) -> dict[str, str]:
    """All of them, in one command: each takes half a second."""
    documents = [document for name in NAMES for document in children(name, restricted)]
    versions = apply(control_plane, documents)
    assert len(versions) == len(documents), "no two have the same name"
    return versions


def test_a_second_apply_writes_nothing(control_plane: ControlPlane, restricted: str, applied: dict[str, str]) -> None:
    again = apply(control_plane, [document for name in NAMES for document in children(name, restricted)])
    assert {key: value for key, value in again.items() if applied[key] != value} == {}


@pytest.mark.usefixtures("applied")  # pods need their service accounts
def test_pods_are_within_the_restricted_standard(control_plane: ControlPlane, restricted: str) -> None:
    pods = []
    for name in NAMES:
        found = [template for document in children(name, restricted) for template in templates(document)]
        assert found, name
        for number, template in enumerate(found):
            metadata = {**template["metadata"], "name": f"{name}-{number}", "namespace": restricted}
            pods.append({"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata})
    command = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    done = control_plane.kubectl(*command, input=listed(pods))
    assert len(done.stdout.splitlines()) == len(pods)


def templates(document: dict[str, Any]) -> list[dict[str, Any]]:
    """Of the pods that a manifest makes."""
    spec = document.get("spec", {})
    if document["kind"] == "LeaderWorkerSet":
        both = spec["leaderWorkerTemplate"]
        return [both["leaderTemplate"], both["workerTemplate"]]
    return [spec["template"]] if document["kind"] in ("Deployment", "Job") else []


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("LeaderWorkerSet", "spec.leaderWorkerTemplate.sise"),
        ("LeaderWorkerSet", "spec.rolloutStrategy.rollingUpdateConfiguration.maxUnavailble"),
        ("InferencePool", "spec.endpointPickerRef.portNumber"),
        ("InferencePool", "spec.extensionRef"),
        ("HTTPRoute", "spec.rules.0.backendRefs.0.wait"),
        ("HTTPRoute", "spec.parents"),
        ("ScaledObject", "spec.minReplicas"),
    ],
)
def test_a_typo_in_an_optional_kind_would_be_refused(
    control_plane: ControlPlane, restricted: str, kind: str, path: str
) -> None:
    every = [document for name in NAMES for document in children(name, restricted)]
    document = next(each for each in every if each["kind"] == kind)
    at: Any = document
    *way, last = (int(part) if part.isdigit() else part for part in path.split("."))
    for part in way:
        at = at[part]
    at[last] = "x"
    command = ("apply", "--server-side", "--dry-run=server", "-f", "-")
    refused = control_plane.kubectl(*command, input=json.dumps(document), check=False)
    assert refused.returncode != 0
    assert str(last) in refused.stderr
