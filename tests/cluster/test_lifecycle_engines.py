"""What engines answer, in conditions: the plugin's own control server stands in for them, the rest is real."""

from __future__ import annotations

import random
from contextlib import ExitStack
from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from tests.cluster.operators import KEY, Operator, Place
from tests.cluster.stand_ins import OTHER_TEXT, SPEC, VLLM_TEXT, AtRest, control, metrics, pod_of, run_pod, token

pytestmark = pytest.mark.cluster

MANUAL = {**SPEC, "tuning": {**SPEC["tuning"], "mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]}}
SECRET = f"chat-token-{key_version(KEY.encode())}"


@pytest.fixture
def address() -> str:
    """Of loopback, and nobody else's: the ports are fixed."""
    return f"127.{random.randint(64, 250)}.{random.randint(1, 250)}.{random.randint(1, 250)}"


def test_a_table_is_pushed_acknowledged_replaced_and_told_when_the_engine_is_lost(
    place: Place, operator: Operator, address: str
) -> None:
    place.serve("chat", **MANUAL)
    parts, pod = AtRest(), pod_of(place, "chat")
    series = ("paceline_table_generation", place.namespace, pod, "chat")
    with control(address, parts, (token(place, SECRET),)):
        run_pod(place, pod, address)
        place.condition("chat", "MetricsAvailable", "MetricsFound")
        place.condition("chat", "Tuned", "Manual")
        assert parts.policy.plan.generation == 1
        assert set(parts.policy.plan.table) == {3}
        status = (place.get(naming.KIND_SERVING, "chat") or {})["status"]
        assert (status["policyGeneration"], status["acknowledgedPods"], status["tier"]) == (1, 1, "Live")
        assert status["table"] == [{"fromRequests": 1, "k": 3}]
        assert place.conditions("chat")["Ready"]["status"] == "True"
        place.patch(naming.KIND_SERVING, "chat", {"spec": {"tuning": {"table": [{"fromRequests": 1, "k": 1}]}}})
        place.wait("the new table", lambda: parts.policy.plan.generation == 2)
        place.wait("its acknowledgement", lambda: _status(place)["policyGeneration"] == 2)
        assert set(parts.policy.plan.table) == {1}
        assert _status(place)["verification"]["mode"] == "AbsentAtBoot"
        place.wait("the engine's series", lambda: operator.metrics().get(series) == 2.0)
    lost = place.condition("chat", "MetricsAvailable", "PodNotAnswering")
    assert "last answer at" in lost["message"]
    assert "generation 2" in lost["message"]
    (event,) = place.wait("the event", lambda: place.events("EngineLost"))
    assert event["message"].startswith(f"{pod}: PodNotAnswering")
    metrics = operator.metrics()
    assert series not in metrics
    assert metrics[("paceline_up", *series[1:])] == 0.0
    place.kubectl("delete", naming.PLURAL_SERVING, "chat")
    place.wait("its series to go", lambda: ("paceline_up", *series[1:]) not in operator.metrics())


def _status(place: Place) -> dict[str, Any]:
    return dict((place.get(naming.KIND_SERVING, "chat") or {}).get("status", {}))


@pytest.mark.parametrize("absence", ["PodNotAnswering", "PluginAbsent", "EngineSeriesMissing", "TokenRefused"])
def test_each_absence_holds_k_for_its_own_reason(place: Place, address: str, absence: str) -> None:
    place.serve("chat", **MANUAL)
    good = token(place, SECRET)
    parts = AtRest()
    with ExitStack() as there:
        if absence == "PluginAbsent":
            there.enter_context(metrics(address, VLLM_TEXT))
        elif absence == "EngineSeriesMissing":
            there.enter_context(metrics(address, OTHER_TEXT))
        elif absence == "TokenRefused":
            there.enter_context(control(address, parts, (b"another token",)))
        run_pod(place, pod_of(place, "chat"), address)
        condition = place.condition("chat", "MetricsAvailable", absence)
        assert condition["status"] == "False"
        held = place.conditions("chat")["Tuned"]
        assert (held["status"], held["reason"]) == ("Unknown", "Holding")
        assert place.conditions("chat")["Ready"]["status"] == "True", "engines serve without being tuned"
        assert parts.policy.plan.generation == 0
        assert _status(place)["policyGeneration"] == 0
    well = AtRest()
    with control(address, well, (good,)):
        place.condition("chat", "MetricsAvailable", "MetricsFound")
        place.condition("chat", "Tuned", "Manual")
        assert well.policy.plan.generation == 1


def test_a_refused_token_makes_the_secret_anew_and_only_once(place: Place, operator: Operator, address: str) -> None:
    place.serve("chat", **MANUAL)
    before = place.child("Secret", SECRET)
    with control(address, AtRest(), (b"another token",)):
        run_pod(place, pod_of(place, "chat"), address)
        place.wait(
            "a new Secret", lambda: place.child("Secret", SECRET)["metadata"]["uid"] != before["metadata"]["uid"]
        )
        after = place.child("Secret", SECRET)
        assert (after["data"], after["immutable"]) == (before["data"], True)
        place.wait("the event", lambda: place.events("TokenRefused"))
        held = ("paceline_held_seconds_total", "TokenRefused")
        before_them = operator.metrics()[held]
        place.wait("more passes", lambda: operator.metrics()[held] >= before_them + 3)
        assert place.child("Secret", SECRET)["metadata"] == after["metadata"]


def test_a_pod_that_loads_its_model_is_warming_up(place: Place, address: str) -> None:
    place.serve("chat", **SPEC)
    run_pod(place, pod_of(place, "chat"), address, ready=False)
    place.condition("chat", "MetricsAvailable", "EngineWarmingUp")
    place.condition("chat", "Available", "ReplicasUnavailable")
