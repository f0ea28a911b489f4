"""What all children have in common, and each child's own promise."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client
from pydantic import ValidationError

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming, resources
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.hashing import TEMPLATE_VERSION, template_hash
from tests.servings import DEFAULTS, TOKENS, serving, table_of

ORDER = ["Secret", "ServiceAccount", "NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment"]
SPECS: list[dict[str, Any]] = [
    {},
    {"engine": {"device": "CPU"}, "speculation": {"method": "ngram", "draft": None}},
    {"engine": {"plugin": {"injection": "None"}, "tensorParallelSize": 8}, "replicas": 0},
    {"model": {"source": "oci://r.example/a:1", "tokenSecretName": "hub"}, "rollout": {"maxSurge": 1}},
]


def render(given: SpeculativeServing) -> dict[str, dict[str, Any]]:
    children = resources.render(given, table_of(given), DEFAULTS, TOKENS)
    return {child["kind"]: child for child in children}


def nulls(value: Any, path: str = "") -> list[str]:
    match value:
        case dict():
            return [found for key, item in value.items() for found in nulls(item, f"{path}.{key}")]
        case list():
            return [found for index, item in enumerate(value) for found in nulls(item, f"{path}[{index}]")]
        case _:
            return [path] if value is None else []


@pytest.mark.parametrize("spec", SPECS)
def test_every_child_is_owned_labelled_and_without_status_or_null(spec: dict[str, Any]) -> None:
    for child in render(serving(**spec)).values():
        metadata = child["metadata"]
        assert metadata["namespace"] == "team-a"
        assert metadata["name"].startswith("demo")
        assert metadata["labels"].items() >= naming.labels("demo").items()
        (owner,) = metadata["ownerReferences"]
        assert owner == {
            "apiVersion": "paceline.dev/v1alpha1",
            "kind": "SpeculativeServing",
            "name": "demo",
            "uid": "5d0c",
            "controller": True,
            "blockOwnerDeletion": True,
        }
        assert "status" not in child
        assert nulls(child) == []


@pytest.mark.parametrize("spec", SPECS)
def test_every_child_has_only_fields_that_kubernetes_has(spec: dict[str, Any]) -> None:
    for kind, child in render(serving(**spec)).items():
        getattr(client, f"V1{kind}").model_validate(child)


def test_a_field_that_kubernetes_has_not_would_be_seen() -> None:
    child = render(serving())["Deployment"]
    child["spec"]["template"]["spec"]["containers"][0]["probe"] = {}
    with pytest.raises(ValidationError, match="probe"):
        client.V1Deployment.model_validate(child)


def test_children_come_in_the_order_in_which_they_need_each_other() -> None:
    assert list(render(serving())) == ORDER


@given(st.integers(0, 100), st.integers(1, 300), st.integers(1, 12), st.sampled_from(["GPU", "CPU"]))
def test_rendering_is_a_function(replicas: int, max_num_seqs: int, k: int, device: str) -> None:
    def once() -> str:
        engine = {"maxNumSeqs": max_num_seqs, "device": device}
        return json.dumps(render(serving(replicas=replicas, engine=engine, speculation={"maxTokens": k})))

    assert once() == once()


def test_children_share_no_part_that_a_caller_could_change_for_another() -> None:
    children = render(serving())
    before = copy.deepcopy(children)
    for child in children.values():
        child["metadata"]["labels"]["x"] = "y"
        child["metadata"]["ownerReferences"].clear()
    assert render(serving()) == before


def test_the_secret_is_immutable_and_named_by_its_key_version() -> None:
    secret = render(serving())["Secret"]
    assert secret["metadata"]["name"] == "demo-token-2"
    assert secret["immutable"] is True
    assert secret["stringData"] == {"current": TOKENS.current, "previous": TOKENS.previous}
    mounted = render(serving())["Deployment"]["spec"]["template"]["spec"]["volumes"]
    assert "demo-token-2" in json.dumps(mounted)


def test_tokens_are_in_the_secret_alone_and_in_no_repr() -> None:
    children = render(serving())
    children.pop("Secret")
    for token in (TOKENS.current, str(TOKENS.previous)):
        assert token not in json.dumps(children)
        assert token not in repr(TOKENS)


def test_the_control_port_is_not_in_the_service_and_only_for_the_operator() -> None:
    children = render(serving())
    (port,) = children["Service"]["spec"]["ports"]
    assert port["port"] == naming.SERVING_PORT
    everyone, operator = children["NetworkPolicy"]["spec"]["ingress"]
    assert "from" not in everyone
    assert [port["port"] for port in everyone["ports"]] == [naming.SERVING_PORT]
    assert [port["port"] for port in operator["ports"]] == [CONTROL_PORT]
    (peer,) = operator["from"]
    assert peer["podSelector"]["matchLabels"] == dict(DEFAULTS.operator_labels)
    assert peer["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": DEFAULTS.operator_namespace}


def test_everything_selects_the_pods_and_none_of_it_by_a_version() -> None:
    children = render(serving())
    pod_labels = children["Deployment"]["spec"]["template"]["metadata"]["labels"]
    own = children["Deployment"]["spec"]["selector"]["matchLabels"]
    assert own == {**naming.selector("demo"), naming.LABEL_TRACK: naming.TRACK_STABLE}
    assert pod_labels.items() >= own.items()
    selectors = [
        children["Service"]["spec"]["selector"],
        children["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"],
    ]
    policy = children["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"]
    assert policy == {naming.LABEL_SERVING: "demo"}, "pods of all tracks and all nodes"
    assert pod_labels.items() >= policy.items()
    for selector in selectors:
        assert selector == naming.selector("demo")
        assert pod_labels.items() >= selector.items()


def test_a_single_replica_never_blocks_a_drain() -> None:
    spec = render(serving(replicas=1))["PodDisruptionBudget"]["spec"]
    assert spec["maxUnavailable"] == 1
    assert "minAvailable" not in spec


def test_replicas_and_strategy_are_the_specs() -> None:
    spec = render(serving(replicas=3, rollout={"maxSurge": 1, "maxUnavailable": 0}))["Deployment"]["spec"]
    assert spec["replicas"] == 3
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_the_hash_says_its_version_and_follows_the_template() -> None:
    deployment = render(serving())["Deployment"]
    annotation = deployment["metadata"]["annotations"][naming.ANNOTATION_TEMPLATE_HASH]
    template = deployment["spec"]["template"]
    assert template["metadata"]["labels"].pop(naming.LABEL_TRACK) == naming.TRACK_STABLE
    assert annotation == template_hash(template), "the label of its track is no part of it"
    assert annotation.startswith(f"{TEMPLATE_VERSION}:")
    assert template_hash(dict(reversed(template.items()))) == annotation
    assert template_hash({**template, "x": 1}) != annotation
