"""Overrides that weaken engine pods are recognised; what is rendered without them is not among them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight.legality import check
from paceline_operator.preflight.security import Weakness, weaknesses
from paceline_operator.resources import pod
from tests.servings import DEFAULTS, TOKENS, serving, table_of


def found(given: SpeculativeServing) -> tuple[Weakness, ...]:
    return weaknesses(pod.build(given, table_of(given), DEFAULTS, TOKENS), given.spec.engine)


def of_pod(**spec: Any) -> SpeculativeServing:
    return serving(engine={"podTemplate": {"spec": spec}})


def of_engine(**container: Any) -> SpeculativeServing:
    return of_pod(containers=[{"name": "engine", **container}])


@pytest.mark.parametrize(
    "engine",
    [
        {},
        {"device": "CPU"},
        {"plugin": {"injection": "None"}},
        {"extraArgs": ["--seed", "1", "--no-trust-remote-code", "--tokenizer=t"]},
        {"env": [{"name": "VLLM_ALLOW_RUNTIME_LORA_UPDATING", "value": "0"}, {"name": "TOKENIZERS_PARALLELISM"}]},
        {"podTemplate": {"spec": {"tolerations": [{"operator": "Exists"}], "priorityClassName": "p"}}},
        {"podTemplate": {"spec": {"volumes": [{"name": "cache", "persistentVolumeClaim": {"claimName": "c"}}]}}},
    ],
)
def test_what_is_rendered_is_safe(engine: dict[str, Any]) -> None:
    assert found(serving(engine=engine)) == ()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        (of_pod(shareProcessNamespace=True), "engine.podTemplate.spec.shareProcessNamespace"),
        (of_pod(automountServiceAccountToken=True), "engine.podTemplate.spec.automountServiceAccountToken"),
        (of_pod(serviceAccountName="admin"), "engine.podTemplate.spec.serviceAccountName"),
        (
            of_pod(volumes=[{"name": "t", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
            "engine.podTemplate.spec.volumes[t]",
        ),
        (of_engine(envFrom=[{"secretRef": {"name": "s"}}]), "engine.podTemplate.spec.containers[engine].envFrom"),
        (
            of_engine(securityContext={"readOnlyRootFilesystem": False}),
            "engine.podTemplate.spec.containers[engine].securityContext.readOnlyRootFilesystem",
        ),
        (serving(engine={"extraArgs": ["--trust_remote_code"]}), "engine.extraArgs[--trust-remote-code]"),
        (serving(engine={"extraArgs": ["--trust-remote"]}), "engine.extraArgs[--trust-remote-code]"),
        (
            serving(engine={"extraArgs": ["--allowed-local-media-path=/"]}),
            "engine.extraArgs[--allowed-local-media-path]",
        ),
        (serving(engine={"extraArgs": ["--api-key", "k"]}), "engine.extraArgs[--api-key]"),
        (
            serving(engine={"env": [{"name": "VLLM_ALLOW_INSECURE_SERIALIZATION", "value": "1"}]}),
            "engine.env[VLLM_ALLOW_INSECURE_SERIALIZATION]",
        ),
        (serving(engine={"env": [{"name": "HF_TOKEN", "value": "hf_x"}]}), "engine.env[HF_TOKEN]"),
    ],
)
def test_what_weakens_it_is_named_by_its_field(given: SpeculativeServing, field: str) -> None:
    (weakness,) = found(given)
    assert weakness.field == field
    assert not weakness.restricted


def test_no_secret_is_repeated() -> None:
    given = serving(engine={"env": [{"name": "API_KEY", "value": "hush"}], "extraArgs": ["--api-key=hush"]})
    assert len(found(given)) == 2
    assert "hush" not in repr(found(given))


FIELDS = st.sampled_from(
    ["spec", "securityContext", "containers", "initContainers", "volumes", "name", "capabilities", "add", "drop"]
)
FIELDS |= st.sampled_from(["seccompProfile", "type", "ports", "hostPort", "projected", "sources", "sysctls", "envFrom"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["engine", "ALL", "Unconfined", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=12,
)


@given(st.dictionaries(FIELDS, JSON, max_size=4))
def test_any_template_is_borne(template: dict[str, Any]) -> None:
    weaknesses(template, serving().spec.engine)
    given = serving(engine={"podTemplate": template})
    if not check(given.spec):
        assert all(one.field.startswith("engine.") and one.weakens for one in found(given))


def test_preflight_is_told_of_where_it_is_weaker_than_its_engine() -> None:
    weak = {"name": "paceline-preflight", "securityContext": {"readOnlyRootFilesystem": False}}
    fields = [one.field for one in found(of_pod(initContainers=[weak]))]
    assert fields == [
        "engine.podTemplate.spec.initContainers[paceline-preflight].securityContext.readOnlyRootFilesystem"
    ]
