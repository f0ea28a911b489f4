"""Where engines are found in pods, and which token each is shown."""

from __future__ import annotations

from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.keys import KeyRing, key_version
from paceline_operator.observe import engines, surroundings, targets
from paceline_operator.tuning.model import Memory
from tests.fakes import FakeEngines, FakeKube

SERVING = {"metadata": {"name": "demo", "namespace": "team", "uid": "u"}}
NEW, OLD = b"n" * 32, b"o" * 32
RING = KeyRing(NEW, OLD)


def pod(name: str, *, secret: str = "", ready: bool = True, spec: Any = None, **status: Any) -> dict[str, Any]:
    volumes = [{"name": "tmp", "emptyDir": {}}, {"name": "token", "secret": {"secretName": secret}}]
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": naming.labels("demo")},
        "spec": {"volumes": volumes} if spec is None else spec,
        "status": {"phase": "Running", "podIP": "10.0.0.1", "conditions": conditions, **status},
    }


def test_addresses_of_both_families() -> None:
    four, six = targets(SERVING, [pod("a"), pod("b", podIP="fd00::1")], RING)
    assert (four.control_url, four.serving_url) == ("http://10.0.0.1:8765", "http://10.0.0.1:8000")
    assert six.control_url == "http://[fd00::1]:8765"


@pytest.mark.parametrize("status", [{"phase": "Pending"}, {"podIP": ""}, {"podIP": None}])
def test_pods_that_do_not_run_have_no_address(status: dict[str, Any]) -> None:
    assert targets(SERVING, [pod("a", **status)], RING) == []


@pytest.mark.parametrize(
    ("secret", "key"),
    [
        (f"demo-token-{key_version(NEW)}", NEW),
        (f"demo-token-{key_version(OLD)}", OLD),
        ("demo-token-unknown", NEW),
        ("other", NEW),
        ("", NEW),
    ],
)
def test_each_pod_is_shown_the_token_that_its_secret_holds(secret: str, key: bytes) -> None:
    (target,) = targets(SERVING, [pod("a", secret=secret)], RING)
    assert target.token == RING.token_of("u", key_version(key))
    assert target.token not in repr(target)


@pytest.mark.parametrize("spec", [{}, {"volumes": None}, {"volumes": [{"name": "x"}]}])
def test_pods_without_volumes(spec: dict[str, Any]) -> None:
    assert len(targets(SERVING, [pod("a", spec=spec)], RING)) == 1


async def test_silence_is_expected_of_a_pod_that_is_not_ready_and_of_no_other() -> None:
    client = FakeEngines()
    client.failures = dict.fromkeys(("ready", "loading"), Reason.POD_NOT_ANSWERING) | {"odd": Reason.TOKEN_REFUSED}
    pods = [
        pod("ready"),
        pod("loading", ready=False),
        pod("odd", ready=False),
        pod("unborn", phase="Pending", podIP=""),
    ]
    answers = await engines(client, targets(SERVING, pods, RING), pods, Memory())  # type: ignore[arg-type]
    assert {engine.name: engine.failure for engine in answers} == {
        "ready": Reason.POD_NOT_ANSWERING,
        "loading": Reason.ENGINE_WARMING_UP,
        "odd": Reason.TOKEN_REFUSED,
        "unborn": Reason.ENGINE_WARMING_UP,
    }


async def test_pods_that_are_on_their_way_out_are_not_counted() -> None:
    kube = FakeKube()
    kube.put(pod("b"))
    kube.put(pod("a"))
    kube.put(pod("done", phase="Failed"))
    leaving = pod("leaving")
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    kube.put(leaving)
    look = await surroundings(kube, SERVING, full=False)  # type: ignore[arg-type]
    assert [p["metadata"]["name"] for p in look.pods] == ["a", "b"]
    assert look.children is None
