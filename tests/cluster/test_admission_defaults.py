"""What the real API server takes, and the defaults it fills in: the ones that pydantic has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from paceline_operator.api.experiment import ExperimentSpec
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.api.serving import ServingSpec
from paceline_operator.naming import API_VERSION, KIND_SERVING
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import EAGLE, EXPERIMENT, PROFILE, ROWS, SPECS, VARIANT, Change, create, merged, thing

pytestmark = pytest.mark.cluster

ACCEPTED = [
    ("three lines", KIND_SERVING, {}, {"replicas": 1, "suspend": False}),
    ("draft model", KIND_SERVING, EAGLE, {"speculation": {"maxTokens": 5, "adaptiveVerification": "Auto"}}),
    (
        "suffix on a CPU",
        KIND_SERVING,
        {"speculation": {"method": "suffix"}, "engine": {"device": "CPU"}},
        {"engine": {"maxNumSeqs": 256}},
    ),
    (
        "window half said",
        KIND_SERVING,
        {"speculation": {"ngram": {"promptLookupMax": 8}}},
        {"speculation": {"ngram": {"promptLookupMin": 2, "promptLookupMax": 8}}},
    ),
    ("mtp with no draft", KIND_SERVING, {"speculation": {"method": "mtp", "adaptiveVerification": "Enabled"}}, {}),
    ("a manual table", KIND_SERVING, {"tuning": {"mode": "Manual", "table": ROWS}}, {"tuning": {"table": ROWS}}),
    (
        "a ladder",
        KIND_SERVING,
        {"tuning": {"ladder": [5, 3, 1, 0]}},
        {"tuning": {"probing": {"mode": "Auto", "maxSharePercent": 5}}},
    ),
    ("scaled to zero", KIND_SERVING, {"replicas": 0, "slo": {"tpotMilliseconds": 40}}, {"replicas": 0}),
    ("the longest name", KIND_SERVING, {}, {"rollout": {"maxSurge": 0, "maxUnavailable": 1}}),
    (
        "free resources and template",
        KIND_SERVING,
        {
            "engine": {
                "resources": {"limits": {"nvidia.com/gpu": 2}},
                "podTemplate": {"spec": {"priorityClassName": "x"}},
            }
        },
        {
            "engine": {
                "resources": {"limits": {"nvidia.com/gpu": 2}},
                "podTemplate": {"spec": {"priorityClassName": "x"}},
            }
        },
    ),
    (
        "no plugin, environment and arguments",
        KIND_SERVING,
        {"engine": {"plugin": {"injection": "None"}, "env": [{"name": "A"}], "extraArgs": ["--seed", "1"]}},
        {"engine": {"plugin": {"injection": "None"}, "env": [{"name": "A", "value": ""}]}},
    ),
    ("baseline and serving", EXPERIMENT, {}, {"duration": {"seconds": 120}, "repetitions": 2, "budgetGpuMinutes": 240}),
    (
        "variants in a row",
        EXPERIMENT,
        {"variants": [VARIANT, {"name": "eager", "parent": "k3", "change": {"enforceEager": True}}]},
        {
            "variants": [
                merged(VARIANT, {"parent": "serving"}),
                {"name": "eager", "parent": "k3", "change": {"enforceEager": True}},
            ]
        },
    ),
    ("a multiple of the time to a fault", EXPERIMENT, {"duration": {"timesToFault": 15, "secondsToFault": 60}}, {}),
    (
        "cost and acceptance",
        PROFILE,
        {"acceptance": [{"k": 2, "requestSteps": 9, "drafts": 8, "drafted": [8, 7], "accepted": [4, 1]}]},
        {"workload": "unknown", "key": {"tensorParallelSize": 1, "maxCaptureSize": 0}},
    ),
]
EXAMPLES = [
    pytest.param(document, id=f"{path.name}: {document['kind']}")
    for path in sorted((Path(__file__).parents[2] / "examples").glob("**/*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
    if document.get("apiVersion") == API_VERSION and document["kind"] in SPECS
]
TYPES = {KIND_SERVING: ServingSpec, EXPERIMENT: ExperimentSpec, PROFILE: ProfileSpec}


@pytest.mark.parametrize(
    ("kind", "change", "expected"), [row[1:] for row in ACCEPTED], ids=[f"{row[1]}: {row[0]}" for row in ACCEPTED]
)
def test_accepted_with_the_defaults_that_pydantic_has(
    crds: ControlPlane, module_namespace: str, kind: str, change: Change, expected: Change
) -> None:
    body = thing(kind, change, "c" * 40)
    stored = create(client.CustomObjectsApi(crds.api), module_namespace, body, dry_run="All")["spec"]
    assert merged(stored, expected) == stored
    assert TYPES[kind].model_validate(stored) == TYPES[kind].model_validate(body["spec"])


@pytest.mark.parametrize("document", EXAMPLES)
def test_every_example_is_accepted(crds: ControlPlane, module_namespace: str, document: dict[str, Any]) -> None:
    create(client.CustomObjectsApi(crds.api), module_namespace, document, dry_run="All")
