"""Writes of a serving's life, counted by the API server's audit log: one for each object that really changed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from tests.cluster.audited import Write
from tests.cluster.operators import KEY, Object, Place
from tests.cluster.quiet import NET, QuietMinute
from tests.cluster.stand_ins import SPEC, AtRest, control, pod_of, run_pod, token
from tests.harness.objects import merged

pytestmark = pytest.mark.cluster

ADDRESS = f"{NET}.19"
REST_SECONDS = 4.0
"""Without a write: then what followed from a step is over. Engines are read each second."""
SERVING = f"{naming.PLURAL_SERVING}/status"
FIRST: dict[str, Any] = merged(
    SPEC,
    {
        "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]},
        "rollout": {"canary": {"mode": "Disabled"}},
    },
)


class Life:
    """One serving `life` on the quiet minute's control plane, when the minute is over."""

    def __init__(self, minute: QuietMinute) -> None:
        self.cluster, self.place = minute.cluster, minute.idle
        self.seen = 0

    def written(self) -> list[Write]:
        """By the operator about `life` since the last call, once nothing is written any more."""
        deadline = time.monotonic() + 60
        last, since = self._all(), time.monotonic()
        while time.monotonic() - since < REST_SECONDS:
            assert time.monotonic() < deadline, f"it does not come to rest: {last[-5:]}"
            time.sleep(0.3)
            now = self._all()
            if len(now) != len(last):
                last, since = now, time.monotonic()
        news, self.seen = last[self.seen :], len(last)
        return news

    def _all(self) -> list[Write]:
        writes = self.cluster.writes("idle:paceline")
        return [write for write in writes if write.resource != "leases" and write.name.startswith("life")]


@pytest.fixture(scope="module")
def life(quiet_minute: QuietMinute) -> Iterator[Life]:
    quiet_minute.wait()
    life = Life(quiet_minute)
    life.place.serve("life", **FIRST)
    secret = token(life.place, f"life-token-{key_version(KEY.encode())}")
    with control(ADDRESS, AtRest(), (secret,)):
        run_pod(life.place, pod_of(life.place, "life"), ADDRESS)
        life.place.condition("life", "MetricsAvailable", "MetricsFound")
        yield life


def spec(place: Place, change: Object) -> None:
    place.patch(naming.KIND_SERVING, "life", {"spec": change})


def children(writes: list[Write]) -> Counter[str]:
    """Resource -> writes, those of status and events left out."""
    return Counter(write.resource for write in writes if write.resource not in (SERVING, "events"))


def check(writes: list[Write], *, statuses: int) -> None:
    """What holds of every step: at most `statuses` writes of status, each with another fact in it, no write in vain,
    and no reason said twice."""
    assert [write for write in writes if write.code >= 400] == []
    told = [write.facts for write in writes if write.resource == SERVING]
    assert len(told) <= statuses, told
    assert all(one != other for one, other in pairwise(told)), "nothing but a time was written"
    versions = Counter((*write.target, write.version) for write in writes if write.version)
    assert max(versions.values(), default=0) <= 1, f"writes that changed nothing: {versions}"
    reasons = Counter(write.reason for write in writes if write.resource == "events")
    assert max(reasons.values(), default=0) <= 1, reasons


def test_created(life: Life) -> None:
    writes = life.written()
    made = children(writes)
    assert set(made) >= {"serviceaccounts", "secrets", "networkpolicies", "services", "deployments"}
    assert set(made.values()) == {1}
    # The object, its pod, the pod's address, its engine, the table it acknowledged: what is seen one after the other.
    check(writes, statuses=8)


def test_retuned(life: Life) -> None:
    spec(life.place, {"tuning": {"table": [{"fromRequests": 1, "k": 1}]}})
    life.place.wait("the table", lambda: _status(life)["policyGeneration"] == 2)
    writes = life.written()
    assert children(writes) == {}
    check(writes, statuses=2)


def test_changed_where_no_child_is_concerned(life: Life) -> None:
    spec(life.place, {"tuning": {"minGainPercent": 3}})
    life.place.wait("the pass", lambda: _status(life)["observedGeneration"] == 3)
    writes = life.written()
    assert children(writes) == {}
    check(writes, statuses=1)


def test_changed_where_one_child_is(life: Life) -> None:
    spec(life.place, {"rollout": {"maxUnavailable": 2}})
    life.place.wait("the pass", lambda: _status(life)["observedGeneration"] == 4)
    writes = life.written()
    assert children(writes) == {"deployments": 1}
    check(writes, statuses=3)


def test_scaled(life: Life) -> None:
    life.place.patch(naming.KIND_SERVING, "life", {"spec": {"replicas": 2}}, "scale")
    life.place.wait("two pods", lambda: _status(life)["replicas"] == 2)
    writes = life.written()
    assert children(writes) == {"deployments": 1}
    check(writes, statuses=5)


def test_booted_anew(life: Life) -> None:
    spec(life.place, {"engine": {"maxModelLen": 2048}})
    life.place.wait("the pass", lambda: _status(life)["observedGeneration"] >= 6)
    writes = life.written()
    assert children(writes) == {"controllerrevisions": 1, "deployments": 1}
    check(writes, statuses=8)


def test_deleted(life: Life) -> None:
    life.place.kubectl("delete", naming.PLURAL_SERVING, "life")
    life.place.wait("the pods to go", lambda: not life.place.get("Deployment", "life"))
    assert life.written() == [], "owner references do it"


def _status(life: Life) -> Object:
    return dict((life.place.get(naming.KIND_SERVING, "life") or {}).get("status", {}))
