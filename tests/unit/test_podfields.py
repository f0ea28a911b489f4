"""Overrides of pods are held to Kubernetes' own fields before an API server sees them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_operator.cli.app import app
from paceline_operator.cli.podfields import mistakes
from tests.servings import MINIMAL


def of_spec(spec: Any) -> list[str]:
    return list(mistakes({"podTemplate": {"spec": spec}}))


def of_engine(**fields: Any) -> list[str]:
    return of_spec({"containers": [{"name": "engine", **fields}]})


@pytest.mark.parametrize(
    "spec",
    [
        None,
        {"nodeSelector": {"gpu": "h200"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]},
        {"securityContext": None, "overhead": {"cpu": 1}},
        {"volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "8Gi"}}]},
        {"volumes": [{"name": "shm", "emptyDir": {"sizeLimit": 8}}]},
        {"containers": [{"name": "engine", "resources": {"limits": {"cpu": 8, "memory": "16Gi"}}}]},
        {"containers": [{"name": "engine", "livenessProbe": {"httpGet": {"path": "/health", "port": 8000}}}]},
        {"containers": [{"name": "engine", "livenessProbe": {"httpGet": {"path": "/health", "port": "http"}}}]},
        {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}}},
    ],
)
def test_what_pods_have_is_passed(spec: Any) -> None:
    assert of_spec(spec) == []


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"nodeselector": {}}, "spec.nodeselector: pods have no such field: it is nodeSelector"),
        ({"gpus": 1}, "spec.gpus: pods have no such field"),
        ({"nodeSelector": {"gpu": 1}}, "spec.nodeSelector[gpu] is 1, which is no str: put it in quotes"),
        ({"nodeSelector": ["gpu"]}, "spec.nodeSelector must be a map"),
        ({"tolerations": {"key": "gpu"}}, "spec.tolerations must be a list"),
        ({"tolerations": ["gpu"]}, "spec.tolerations[0] must be a map"),
        ({"hostNetwork": "true"}, "spec.hostNetwork is 'true', which is no bool"),
        ({"terminationGracePeriodSeconds": "30"}, "spec.terminationGracePeriodSeconds is '30', which is no int"),
        ({"terminationGracePeriodSeconds": True}, "spec.terminationGracePeriodSeconds is True, which is no int"),
        ({"overhead": {"cpu": True}}, "spec.overhead[cpu] is True, which is no str: put it in quotes"),
    ],
)
def test_what_pods_have_not_is_named(spec: Any, said: str) -> None:
    assert of_spec(spec) == [f"spec.engine.podTemplate.{said}"]


def test_items_are_named_and_other_free_fields_are_looked_at() -> None:
    (found,) = of_engine(env=[{"name": "LEVEL", "value": 3}])
    assert found.endswith("spec.containers[engine].env[LEVEL].value is 3, which is no str: put it in quotes")
    (found,) = mistakes({"resources": {"request": {"cpu": 1}}})
    assert found == "spec.engine.resources.request: pods have no such field"
    assert list(mistakes({"resources": {"requests": {"cpu": 1, "memory": "1Gi"}, "claims": [{"name": "gpu"}]}})) == []
    (found,) = mistakes({"podTemplate": {"metadata": {"annotations": {"a": 1}}}})
    assert found.startswith("spec.engine.podTemplate.metadata.annotations[a] is 1")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["spec", "metadata", "containers", "name", "env", "x"]), inner, max_size=3
            )
        ),
        max_leaves=12,
    )
)
def test_no_shape_makes_it_stumble(value: Any) -> None:
    for text in mistakes({"podTemplate": value, "resources": value}):
        assert text.startswith("spec.engine.")


def test_preflight_refuses_it(tmp_path: Path) -> None:
    file = tmp_path / "serving.yaml"
    template = {"spec": {"nodeSelectr": {"gpu": "h200"}}}
    file.write_text(yaml.safe_dump({**MINIMAL, "spec": {**MINIMAL["spec"], "engine": {"podTemplate": template}}}))
    result = CliRunner().invoke(app, ["preflight", "-f", str(file), "-o", "json"])
    assert result.exit_code == 1
    (document,) = json.loads(result.output)
    assert not document["accepted"]
    assert "nodeSelectr: pods have no such field" in document["remarks"][0]["message"]
