"""What the real API server refuses, and how it names the field. A table: more rows than 300 lines hold otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kubernetes import client

from paceline_operator.examined import examine
from paceline_operator.naming import API_VERSION, GROUP, KIND_SERVING, PLURAL_SERVING, VERSION
from paceline_operator.preflight.matrix import Rule
from tests.cluster.bundles import Bundle, accepted, bad_specs
from tests.cluster.transitions import Journey, journeys
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import EAGLE, EXPERIMENT, PROFILE, ROWS, VARIANT, Change, causes, create, merged, thing
from tests.rules import REFUSALS, spec_of

pytestmark = pytest.mark.cluster


@pytest.fixture
def objects(crds: ControlPlane) -> client.CustomObjectsApi:
    return client.CustomObjectsApi(crds.api)


REFUSED = [
    # what, kind, change, field, words of the message
    ("no model", KIND_SERVING, {"model": None}, "spec.model", "Required"),
    ("no method", KIND_SERVING, {"speculation": {"method": None}}, "spec.speculation.method", "Required"),
    ("unknown method", KIND_SERVING, {"speculation": {"method": "medusa"}}, "spec.speculation.method", "ngram"),
    (
        "source without scheme",
        KIND_SERVING,
        {"model": {"source": "Qwen/Qwen3-8B"}},
        "spec.model.source",
        "should match",
    ),
    (
        "revision of a path",
        KIND_SERVING,
        {"model": {"source": "/models/x", "revision": "main"}},
        "spec.model.revision",
        "hf:// sources",
    ),
    (
        "method without its draft",
        KIND_SERVING,
        {"speculation": {"method": "eagle3"}},
        "spec.speculation.draft",
        "needs a draft",
    ),
    (
        "draft of a method without one",
        KIND_SERVING,
        {"speculation": {"draft": {"source": "hf://a/b"}}},
        "spec.speculation.draft",
        "remove speculation.draft",
    ),
    (
        "window of another method",
        KIND_SERVING,
        merged(EAGLE, {"speculation": {"ngram": {}}}),
        "spec.speculation.ngram",
        "ngram_gpu",
    ),
    (
        "window upside down",
        KIND_SERVING,
        {"speculation": {"ngram": {"promptLookupMin": 9}}},
        "spec.speculation.ngram.promptLookupMin",
        "must not exceed promptLookupMax",
    ),
    (
        "k too large",
        KIND_SERVING,
        {"speculation": {"maxTokens": 33}},
        "spec.speculation.maxTokens",
        "less than or equal to 32",
    ),
    (
        "k of zero at boot",
        KIND_SERVING,
        {"speculation": {"maxTokens": 0}},
        "spec.speculation.maxTokens",
        "greater than or equal to 1",
    ),
    ("k as text", KIND_SERVING, {"speculation": {"maxTokens": "5"}}, "spec.speculation.maxTokens", "integer"),
    ("k with a fraction", KIND_SERVING, {"speculation": {"maxTokens": 2.5}}, "spec.speculation.maxTokens", "integer"),
    (
        "adaptive verification of ngram",
        KIND_SERVING,
        {"speculation": {"adaptiveVerification": "Enabled"}},
        "spec.speculation.adaptiveVerification",
        "draft probabilities",
    ),
    (
        "adaptive verification without graphs",
        KIND_SERVING,
        merged(EAGLE, {"speculation": {"adaptiveVerification": "Enabled"}, "engine": {"enforceEager": True}}),
        "spec.speculation.adaptiveVerification",
        "CUDA graphs",
    ),
    ("negative replicas", KIND_SERVING, {"replicas": -1}, "spec.replicas", "greater than or equal to 0"),
    (
        "tensor parallel CPU",
        KIND_SERVING,
        {"engine": {"device": "CPU", "tensorParallelSize": 2}},
        "spec.engine.device",
        "CPU engine",
    ),
    ("image with a space", KIND_SERVING, {"engine": {"image": "vllm: latest"}}, "spec.engine.image", "should match"),
    ("unknown dtype", KIND_SERVING, {"engine": {"dtype": "int3"}}, "spec.engine.dtype", "bfloat16"),
    ("an empty argument", KIND_SERVING, {"engine": {"extraArgs": [""]}}, "spec.engine.extraArgs[0]", "at least 1"),
    (
        "a variable twice",
        KIND_SERVING,
        {"engine": {"env": [{"name": "A"}, {"name": "A"}]}},
        "spec.engine.env[1]",
        "Duplicate",
    ),
    (
        "a variable that is none",
        KIND_SERVING,
        {"engine": {"env": [{"name": "A-B"}]}},
        "spec.engine.env[0].name",
        "should match",
    ),
    ("Manual without a table", KIND_SERVING, {"tuning": {"mode": "Manual"}}, "spec.tuning.table", "needs tuning.table"),
    ("a table in mode Auto", KIND_SERVING, {"tuning": {"table": ROWS}}, "spec.tuning.table", "mode Manual only"),
    ("an empty table", KIND_SERVING, {"tuning": {"mode": "Manual", "table": []}}, "spec.tuning.table", "at least 1"),
    (
        "a table without a beginning",
        KIND_SERVING,
        {"tuning": {"mode": "Manual", "table": ROWS[1:]}},
        "spec.tuning.table",
        "start with",
    ),
    (
        "a table out of order",
        KIND_SERVING,
        {"tuning": {"mode": "Manual", "table": [ROWS[0], ROWS[2], ROWS[1]]}},
        "spec.tuning.table",
        "must ascend",
    ),
    (
        "a table with a row twice",
        KIND_SERVING,
        {"tuning": {"mode": "Manual", "table": [ROWS[0], ROWS[1], ROWS[1]]}},
        "spec.tuning.table",
        "each number once",
    ),
    (
        "a table above maxTokens",
        KIND_SERVING,
        {"speculation": {"maxTokens": 4}, "tuning": {"mode": "Manual", "table": ROWS}},
        "spec.tuning.table",
        "above speculation.maxTokens",
    ),
    ("a ladder without 0", KIND_SERVING, {"tuning": {"ladder": [5, 2]}}, "spec.tuning.ladder", "must contain 0"),
    ("a ladder with a k twice", KIND_SERVING, {"tuning": {"ladder": [5, 0, 0]}}, "spec.tuning.ladder[2]", "Duplicate"),
    (
        "a ladder above maxTokens",
        KIND_SERVING,
        {"tuning": {"ladder": [6, 0]}},
        "spec.tuning.ladder",
        "above speculation.maxTokens",
    ),
    (
        "a ladder longer than the batch",
        KIND_SERVING,
        {"tuning": {"ladder": [2, 1, 0]}, "engine": {"maxNumSeqs": 2}},
        "spec.tuning.ladder",
        "longer than engine.maxNumSeqs",
    ),
    (
        "no way to replace a pod",
        KIND_SERVING,
        {"rollout": {"maxUnavailable": 0}},
        "spec.rollout.maxUnavailable",
        "both be 0",
    ),
    ("no load", EXPERIMENT, {"load": None}, "spec.load", "Required"),
    ("a load of nothing", EXPERIMENT, {"load": {"concurrency": []}}, "spec.load.concurrency", "at least 1"),
    (
        "two sources of prompts",
        EXPERIMENT,
        {"load": {"prompts": {"configMap": {"name": "a", "key": "b"}}}},
        "spec.load.prompts",
        "exactly one source",
    ),
    (
        "random and recorded lengths",
        EXPERIMENT,
        {"load": {"prompts": {"lengths": {"name": "a", "key": "b"}}}},
        "spec.load.prompts",
        "exactly one source of prompts: random, lengths",
    ),
    (
        "more talks than requests",
        EXPERIMENT,
        {"load": {"multiTurnPercent": 101}},
        "spec.load.multiTurnPercent",
        "less than or equal to 100",
    ),
    (
        "a variant that changes two things",
        EXPERIMENT,
        {"variants": [{"name": "a", "change": {"maxTokens": 3, "enforceEager": True}}]},
        "spec.variants[0].change",
        "exactly one thing",
    ),
    (
        "a variant that changes nothing",
        EXPERIMENT,
        {"variants": [{"name": "a", "change": {}}]},
        "spec.variants[0].change",
        "exactly one",
    ),
    (
        "the baseline as a variant",
        EXPERIMENT,
        {"variants": [merged(VARIANT, {"name": "baseline"})]},
        "spec.variants[0].name",
        "taken",
    ),
    (
        "an unknown parent",
        EXPERIMENT,
        {"variants": [merged(VARIANT, {"parent": "x"})]},
        "spec.variants",
        "another variant",
    ),
    (
        "its own parent",
        EXPERIMENT,
        {"variants": [merged(VARIANT, {"parent": "k3"})]},
        "spec.variants[0].parent",
        "own parent",
    ),
    ("a fault without its time", EXPERIMENT, {"duration": {"timesToFault": 3}}, "spec.duration", "secondsToFault"),
    ("measured once", EXPERIMENT, {"repetitions": 1}, "spec.repetitions", "greater than or equal to 2"),
    ("a digest that is none", PROFILE, {"key": {"modelDigest": "latest"}}, "spec.key.modelDigest", "should match"),
    ("a key without its draft", PROFILE, {"key": {"method": "eagle3"}}, "spec.key.draftDigest", "belongs to the key"),
    ("a time that is none", PROFILE, {"measuredAt": "yesterday"}, "spec.measuredAt", "date-time"),
    (
        "fewer positions than k",
        PROFILE,
        {"acceptance": [{"k": 2, "requestSteps": 9, "drafts": 9, "drafted": [9], "accepted": [9, 4]}]},
        "spec.acceptance[0].drafted",
        "each position",
    ),
    (
        "fewest pods above most",
        KIND_SERVING,
        {"autoscaling": {"minReplicas": 3, "maxReplicas": 2}},
        "spec.autoscaling.minReplicas",
        "must not exceed maxReplicas",
    ),
    (
        "an autoscaler without a bound",
        KIND_SERVING,
        {"autoscaling": {"mode": "Builtin", "targetRunningRequests": 8}},
        "spec.autoscaling.maxReplicas",
        "need autoscaling.maxReplicas",
    ),
    (
        "an autoscaler without a target",
        KIND_SERVING,
        {"autoscaling": {"mode": "Builtin", "maxReplicas": 2}},
        "spec.autoscaling.targetRunningRequests",
        "or slo.tpotMilliseconds",
    ),
    (
        "an autoscaler that cannot count requests",
        KIND_SERVING,
        {
            "engine": {"plugin": {"injection": "None"}},
            "autoscaling": {"mode": "Builtin", "maxReplicas": 2, "targetRunningRequests": 8},
        },
        "spec.autoscaling.mode",
        "counts requests through the plugin",
    ),
    (
        "zero pods that nothing wakes",
        KIND_SERVING,
        {"autoscaling": {"mode": "Builtin", "minReplicas": 0, "maxReplicas": 2, "targetRunningRequests": 8}},
        "spec.autoscaling.minReplicas",
        "cannot wake from zero pods",
    ),
    (
        "zero pods that KEDA cannot wake",
        KIND_SERVING,
        {
            "autoscaling": {
                "mode": "KEDA",
                "minReplicas": 0,
                "maxReplicas": 2,
                "targetRunningRequests": 8,
                "keda": {"serverAddress": "http://prometheus:9090"},
            }
        },
        "spec.autoscaling.keda.wakeUpQuery",
        "only the router or gateway sees a request",
    ),
    (
        "KEDA without its Prometheus",
        KIND_SERVING,
        {"autoscaling": {"mode": "KEDA", "maxReplicas": 2, "targetRunningRequests": 8}},
        "spec.autoscaling.keda.serverAddress",
        "or metrics.prometheus.url",
    ),
    (
        "KEDA without a target",
        KIND_SERVING,
        {"autoscaling": {"mode": "KEDA", "maxReplicas": 2, "keda": {"serverAddress": "http://prometheus:9090"}}},
        "spec.autoscaling.targetRunningRequests",
        "mode KEDA needs",
    ),
]


@pytest.mark.parametrize(
    ("kind", "change", "field", "words"), [row[1:] for row in REFUSED], ids=[f"{row[1]}: {row[0]}" for row in REFUSED]
)
def test_refused(
    objects: client.CustomObjectsApi, module_namespace: str, kind: str, change: Change, field: str, words: str
) -> None:
    assert not examine(thing(kind, change)).accepted, "preflight says the same"
    with pytest.raises(client.ApiException) as refusal:
        create(objects, module_namespace, thing(kind, change))
    named = [line for line in causes(refusal.value).splitlines() if line.startswith(f"{field}: ")]
    assert any(words in line for line in named), causes(refusal.value)


@pytest.mark.parametrize("name", ["a" * 41, "8chat", "chat.v2", "chat-"])
def test_a_name_that_children_could_not_carry_is_refused(
    objects: client.CustomObjectsApi, module_namespace: str, name: str
) -> None:
    assert not examine(thing(KIND_SERVING, {}, name)).accepted
    with pytest.raises(client.ApiException) as refusal:
        create(objects, module_namespace, thing(KIND_SERVING, {}, name))
    assert "metadata.name: " in causes(refusal.value)


def test_an_unknown_field_is_reported_and_pruned(objects: client.CustomObjectsApi, namespace: str) -> None:
    body = thing(KIND_SERVING, {"speculation": {"maxToken": 3}})
    assert not examine(body).accepted
    with pytest.raises(client.ApiException) as refusal:
        create(objects, namespace, body)
    assert 'unknown field "spec.speculation.maxToken"' in json.loads(refusal.value.body)["message"]
    stored: dict[str, Any] = objects.create_namespaced_custom_object(GROUP, VERSION, namespace, PLURAL_SERVING, body)
    assert "maxToken" not in stored["spec"]["speculation"]


def serving(spec: Change) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND_SERVING, "metadata": {"name": "chat"}, "spec": spec}


@pytest.mark.parametrize("journey", journeys(), ids=lambda journey: str(journey.field.path))
def test_preflight_answers_as_api_server_and_operator_do(
    objects: client.CustomObjectsApi, module_namespace: str, journey: Journey
) -> None:
    """All values of all fields that are tried on an operator, good and bad ones."""
    alone = Bundle("", (journey,))
    for spec in (alone.base, alone.first, alone.second, *bad_specs(journey)):
        found, refusal = examine(serving(spec)), ""
        try:
            create(objects, module_namespace, serving(spec), dry_run="All")
        except client.ApiException as error:
            refusal = str(error.body)
        assert found.accepted is (not refusal and accepted(spec)), (spec, refusal, found.remarks)


@pytest.mark.parametrize("rule", REFUSALS, ids=lambda rule: rule.id)
def test_preflight_refuses_what_the_matrix_does(rule: Rule) -> None:
    spec = spec_of(rule).spec.model_dump(by_alias=True, exclude_unset=True, exclude_none=True, mode="json")
    found = examine(serving(spec))
    assert not found.accepted
    assert any(f"spec.{rule.field}" in remark.message for remark in found.remarks), found.remarks
