"""The ScaledObject, and the query by which KEDA counts requests."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.resources import leaderworkerset, scaledobject
from tests.servings import serving

GROUPS = leaderworkerset.name("demo", naming.TRACK_STABLE)
KEDA: dict[str, Any] = {
    "mode": "KEDA",
    "minReplicas": 2,
    "maxReplicas": 9,
    "targetRunningRequests": 24,
    "keda": {"serverAddress": "http://prometheus:9090"},
}


def spec(**change: Any) -> dict[str, Any]:
    return dict(scaledobject.build(serving(autoscaling={**KEDA, **change}))["spec"])


def test_it_aims_at_the_serving_and_keeps_what_there_is_where_numbers_are_missing() -> None:
    found = spec()
    assert found["scaleTargetRef"] == {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "SpeculativeServing",
        "name": "demo",
    }
    assert (found["minReplicaCount"], found["maxReplicaCount"]) == (2, 9)
    assert found["fallback"] == {"failureThreshold": 3, "replicas": 2, "behavior": "currentReplicasIfHigher"}
    assert found["initialCooldownPeriod"] == serving().spec.engine.startup_timeout_seconds
    (trigger,) = found["triggers"]
    assert (trigger["type"], trigger["metricType"]) == ("prometheus", "AverageValue")
    assert trigger["metadata"]["threshold"] == "24"
    assert trigger["metadata"]["ignoreNullValues"] == "false"
    assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA's metadata are strings"


def test_the_prometheus_of_the_history_serves_keda_too() -> None:
    keda = {**KEDA, "keda": {}}
    made = scaledobject.build(serving(autoscaling=keda, metrics={"prometheus": {"url": "http://history:9090"}}))
    assert made["spec"]["triggers"][0]["metadata"]["serverAddress"] == "http://history:9090"


def test_behaviour_is_handed_on() -> None:
    found = spec(behavior={"scaleUp": {"stabilizationWindowSeconds": 30, "maxStepReplicas": 2}})
    behavior = found["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    step = [{"type": "Pods", "value": 2, "periodSeconds": 60}]
    assert behavior["scaleUp"] == {"stabilizationWindowSeconds": 30, "policies": step}
    assert behavior["scaleDown"]["stabilizationWindowSeconds"] == 300


def test_from_zero_pods_the_router_is_asked_and_one_pod_is_the_fallback() -> None:
    keda = {"serverAddress": "http://prometheus:9090", "wakeUpQuery": "sum(router_waiting)"}
    found = spec(minReplicas=0, keda=keda)
    query = found["triggers"][0]["metadata"]["query"]
    assert query.startswith("(sum(vllm:num_requests_running{")
    assert query.endswith(") or (sum(router_waiting))")
    assert (found["minReplicaCount"], found["fallback"]["replicas"]) == (0, 1)
    own = spec(keda={**keda, "query": "sum(mine)"})
    assert own["triggers"][0]["metadata"]["query"] == "(sum(mine)) or (sum(router_waiting))"


@pytest.mark.parametrize(
    ("pod", "counts"),
    [
        ("demo-7d9c8b6f5-x2k4q", True),
        ("demo-canary-7d9c8b6f5-x2k4q", True),
        ("demo-plain-7d9c8b6f5-x2k4q", False),
        (f"{GROUPS}-0", True),
        ("demo-blue-7d9c8b6f5-x2k4q", False),
        (f"{GROUPS}-0-1", False),
        (f"other-{GROUPS}-0", False),
        ("other-demo-7d9c8b6f5-x2k4q", False),
    ],
)
def test_pods_of_this_serving_are_counted_and_no_others(pod: str, counts: bool) -> None:
    query = scaledobject.query(serving(autoscaling=KEDA).spec.autoscaling, "team-a", "demo")
    namespaces = re.findall(r'namespace="([^"]*)"', query)
    patterns = re.findall(r'pod=~"([^"]*)"', query)
    assert namespaces == ["team-a", "team-a"]
    assert [bool(re.fullmatch(pattern, pod)) for pattern in patterns] == [counts, counts]
