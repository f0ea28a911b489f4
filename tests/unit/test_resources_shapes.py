"""Engines over several nodes, pools, plain pods and routes: what each is made of, and who selects whom."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.autoscaling import Autoscaling
from paceline_operator.api.multinode import MultiNode
from paceline_operator.api.routing import Gateway
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import (
    budget,
    httproute,
    inferencepool,
    leaderworkerset,
    network,
    pod,
    scaledobject,
    service,
)
from tests.servings import DEFAULTS, TOKENS, serving, table_of

GROUP: dict[str, Any] = {"tensorParallelSize": 16, "multiNode": {"nodes": 2}}
PICKER = {"endpointPicker": {"name": "epp"}}
GATEWAY = {"parentRefs": [{"name": "gate", "namespace": "edge", "sectionName": "https"}], "hostnames": ["a.example"]}
NOBODY = {"stable": False, "plain": False}


def group(given: SpeculativeServing, track: str = "stable") -> dict[str, Any]:
    template = pod.build(given, table_of(given), DEFAULTS, TOKENS)
    return leaderworkerset.build(given, template, track=track, replicas=3, annotations={"a": "b"})


def templates(given: SpeculativeServing) -> tuple[dict[str, Any], dict[str, Any]]:
    both = group(given)["spec"]["leaderWorkerTemplate"]
    return both["leaderTemplate"], both["workerTemplate"]


def engine(template: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in template["spec"]["containers"] if each["name"] == "engine")
    return found


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """As Kubernetes matches a LabelSelector."""
    among = selector.get("matchExpressions", [])
    assert all(each["operator"] == "In" for each in among)
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        labels.get(each["key"]) in each["values"] for each in among
    )


def test_a_group_is_one_engine_on_the_devices_of_its_nodes() -> None:
    leader, worker = map(engine, templates(serving(engine=GROUP)))
    assert leader["resources"]["limits"] == worker["resources"]["limits"] == {"nvidia.com/gpu": "8"}
    together = ["--nnodes", "2", "--node-rank", "0", "--master-addr", "$(LWS_LEADER_ADDRESS)"]
    assert leader["args"][-6:] == together
    assert worker["args"][-7:] == [*together[:3], "$(LWS_WORKER_INDEX)", *together[4:], "--headless"]
    assert leader["args"][:-6] == worker["args"][:-7]


def test_only_the_leader_serves_is_probed_and_holds_the_token() -> None:
    leader, worker = templates(serving(engine=GROUP))
    for field in ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle"):
        assert field in engine(leader)
        assert field not in engine(worker)
    for trace in ("demo-token-2", naming.ENV_TOKEN_DIRECTORY):
        assert trace in json.dumps(leader)
        assert trace not in json.dumps(worker)
    assert str(CONTROL_PORT) not in json.dumps(worker)
    assert "paceline-plugin" in [container["name"] for container in worker["spec"]["initContainers"]], (
        "the workers are asked to switch how drafts are verified"
    )


def test_the_set_is_kept_together_and_rolls_as_the_spec_says() -> None:
    spec = group(serving(engine=GROUP, rollout={"maxSurge": 1, "maxUnavailable": 0}))["spec"]
    assert spec["replicas"] == 3
    assert spec["leaderWorkerTemplate"]["size"] == 2
    assert spec["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    assert spec["rolloutStrategy"]["rollingUpdateConfiguration"] == {"maxSurge": 1, "maxUnavailable": 0}


def test_a_rack_of_its_own_is_asked_for_by_annotation() -> None:
    key = "topology.kubernetes.io/rack"
    placed = group(serving(engine={**GROUP, "multiNode": {"nodes": 2, "exclusiveTopologyKey": key}}))
    assert placed["metadata"]["annotations"] == {"a": "b", "leaderworkerset.sigs.k8s.io/exclusive-topology": key}
    assert group(serving(engine=GROUP))["metadata"]["annotations"] == {"a": "b"}


@pytest.mark.parametrize("track", ["stable", "canary", "plain"])
def test_no_workload_takes_the_name_of_a_service(track: str) -> None:
    given = serving(engine=GROUP)
    services = {service.build(given)["metadata"]["name"], service.build(given, plain=True)["metadata"]["name"]}
    assert group(given, track)["metadata"]["name"] not in services


def test_the_longest_name_leaves_room_for_what_statefulsets_add() -> None:
    longest = leaderworkerset.name("n" * 36, "plain")
    assert len(f"{longest}-999-") + len("1234567890") <= 63


@pytest.mark.parametrize("removed", ["args", "volumeMounts"])
def test_what_a_pod_template_removes_breaks_nothing(removed: str) -> None:
    changed = {"spec": {"containers": [{"name": "engine", removed: None}], "volumes": None}}
    leader, worker = templates(serving(engine={**GROUP, "podTemplate": changed}))
    assert engine(leader)["args"][-6] == engine(worker)["args"][-7] == "--nnodes"


@pytest.mark.parametrize(
    ("sizes", "valid"), [((16, 1), True), ((8, 2), True), ((2, 1), True), ((3, 1), False), ((1, 1), False)]
)
def test_the_share_of_a_node_is_a_whole_number_of_devices(sizes: tuple[int, int], valid: bool) -> None:
    tensor, pipeline = sizes
    given = serving(engine={**GROUP, "tensorParallelSize": tensor, "pipelineParallelSize": pipeline})
    limit = int(engine(templates(given)[0])["resources"]["limits"]["nvidia.com/gpu"])
    assert (limit * 2 == tensor * pipeline) is valid, "CEL refuses the others"


def test_a_claim_takes_the_place_of_the_count() -> None:
    claimed = serving(
        engine={
            "resources": {"claims": [{"name": "gpus"}], "requests": {"cpu": "4"}},
            "podTemplate": {"spec": {"resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "pair"}]}},
        }
    )
    template = pod.build(claimed, table_of(claimed), DEFAULTS, TOKENS)
    assert engine(template)["resources"] == {"claims": [{"name": "gpus"}], "requests": {"cpu": "4"}}
    assert template["spec"]["resourceClaims"] == [{"name": "gpus", "resourceClaimTemplateName": "pair"}]


def test_who_selects_whom() -> None:
    given = serving(engine=GROUP, routing={"inferencePool": PICKER})
    leader, worker = (template["metadata"]["labels"] for template in templates(given))
    plain = group(given, "plain")["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"]
    canary = group(given, "canary")["spec"]["leaderWorkerTemplate"]["leaderTemplate"]["metadata"]["labels"]
    pods = {"stable": leader, "canary": canary, "plain": plain, "worker": worker}

    def of(selector: dict[str, Any]) -> set[str]:
        return {name for name, labels in pods.items() if selects(selector, labels)}

    pool = inferencepool.build(given)
    assert pool is not None
    assert of({"matchLabels": naming.selector("demo")}) == {"stable", "canary"}
    assert of({"matchLabels": service.build(given)["spec"]["selector"]}) == {"stable", "canary"}
    assert of({"matchLabels": service.build(given, plain=True)["spec"]["selector"]}) == {"plain"}
    assert of(pool["spec"]["selector"]) == {"stable"}
    assert of(network.build(given, DEFAULTS)["spec"]["podSelector"]) == set(pods)
    assert of(budget.build(given)["spec"]["selector"]) == {"stable", "worker"}
    assert of(budget.build(given, plain=True)["spec"]["selector"]) == {"plain"}
    alone = serving()
    assert of(budget.build(alone)["spec"]["selector"]) == {"stable", "canary"}
    assert of(budget.build(alone, plain=True)["spec"]["selector"]) == {"plain"}


def test_the_pods_of_a_group_reach_each_other_and_not_the_control_port() -> None:
    rules = network.build(serving(engine=GROUP), DEFAULTS)["spec"]["ingress"]
    (among,) = rules[2:]
    assert among["from"] == [{"podSelector": {"matchLabels": {naming.LABEL_SERVING: "demo"}}}]
    for protocol in ("TCP", "UDP"):
        spans = [(port["port"], port["endPort"]) for port in among["ports"] if port["protocol"] == protocol]
        assert not any(first <= CONTROL_PORT <= last for first, last in spans)
        assert sum(last - first + 1 for first, last in spans) == 65_534
    assert len(network.build(serving(), DEFAULTS)["spec"]["ingress"]) == 2


def test_a_pool_names_its_picker_and_the_port_of_requests() -> None:
    pool = inferencepool.build(serving(routing={"inferencePool": PICKER}))
    assert pool is not None
    assert pool["spec"]["targetPorts"] == [{"number": naming.SERVING_PORT}]
    assert pool["spec"]["endpointPickerRef"] == {
        "name": "epp", "kind": "Service", "port": {"number": 9002}, "failureMode": "FailClose",
    }  # fmt: skip
    assert inferencepool.build(serving()) is None


def test_a_route_leads_to_the_service_or_to_the_pool() -> None:
    assert httproute.build(serving(), NOBODY) is None
    route = httproute.build(serving(routing={"gateway": GATEWAY}), NOBODY)
    assert route is not None
    assert route["spec"]["parentRefs"] == GATEWAY["parentRefs"]
    assert route["spec"]["hostnames"] == ["a.example"]
    (rule,) = route["spec"]["rules"]
    assert rule == {
        "backendRefs": [{"kind": "Service", "name": "demo", "port": 8000, "weight": 1}],
        "timeouts": {"request": "0s"},
    }
    pooled = httproute.build(serving(routing={"gateway": GATEWAY, "inferencePool": PICKER}), NOBODY)
    assert pooled is not None
    assert pooled["spec"]["rules"][0]["backendRefs"] == [
        {"group": "inference.networking.k8s.io", "kind": "InferencePool", "name": "demo", "weight": 1}
    ]


def test_plain_pods_get_their_share_once_they_answer() -> None:
    given = serving(routing={"gateway": GATEWAY, "plain": {"weightPercent": 25}})

    def weights(**ready: bool) -> list[int]:
        route = httproute.build(given, ready)
        assert route is not None
        assert [ref["name"] for ref in route["spec"]["rules"][0]["backendRefs"]] == ["demo", "demo-plain"]
        return [ref["weight"] for ref in route["spec"]["rules"][0]["backendRefs"]]

    assert weights(stable=True, plain=True) == [75, 25]
    assert weights(stable=True, plain=False) == [100, 0]
    assert weights(stable=False, plain=True) == [0, 100]
    assert weights() == [75, 25]


@given(st.integers(0, 100), st.booleans(), st.booleans())
def test_weights_are_shares_and_never_of_pods_that_are_not_there(percent: int, stable: bool, plain: bool) -> None:
    speculating, without = httproute.weights(percent, stable, plain)
    assert speculating + without == 100
    if stable or plain:
        assert stable or speculating == 0
        assert plain or without == 0
    if stable == plain:
        assert without == percent


@given(st.text(max_size=20))
def test_any_text_is_a_label_key_or_refused(text: str) -> None:
    try:
        found = MultiNode.model_validate({"nodes": 2, "exclusiveTopologyKey": text})
    except ValidationError:
        return
    assert found.exclusive_topology_key == text
    assert text.isascii()
    assert " " not in text


@given(st.lists(st.text(max_size=12), max_size=3))
def test_any_list_of_hosts_is_taken_or_refused(hosts: list[str]) -> None:
    try:
        found = Gateway.model_validate({**GATEWAY, "hostnames": hosts})
    except ValidationError:
        return
    assert all(host.strip("*.-").isascii() and host == host.lower() for host in found.hostnames)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("demo-7d9f8b6c5-x2x4z", True),
        ("demo-canary-7d9f8b6c5-x2x4z", True),
        ("demo-plain-7d9f8b6c5-x2x4z", False),
        ("demo-group-0", True),
        ("demo-group-canary-0", True),
        ("demo-group-plain-0", False),
        ("demo-group-0-1", False),
        ("demo-other-7d9f8b6c5-x2x4z", False),
    ],
)
def test_keda_counts_the_requests_of_the_pods_that_it_scales(name: str, counts: bool) -> None:
    scaling = Autoscaling.model_validate({"mode": "KEDA", "maxReplicas": 3, "keda": {"serverAddress": "http://p"}})
    (pattern,) = set(re.findall(r'pod=~"([^"]+)"', scaledobject.query(scaling, "team-a", "demo")))
    assert (re.fullmatch(pattern, name) is not None) is counts
