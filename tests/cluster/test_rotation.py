"""Another master key under a serving that runs: at every moment each of its engines is reached."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from tests.cluster.operators import Place, account, start, wait_for_leader
from tests.cluster.stand_ins import SPEC, AtRest, control, pod_of, run_pod, token
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import merged

pytestmark = pytest.mark.cluster

OLD, NEW = (f"a-master-key-called-{name}-that-is-long-enough" for name in ("old", "new"))
ADDRESSES = ("127.61.10.1", "127.61.10.2")
SERVING: dict[str, Any] = merged(
    SPEC,
    {
        "tuning": {"mode": "Manual", "table": [{"fromRequests": 1, "k": 3}]},
        "rollout": {"canary": {"mode": "Disabled"}, "maxSurge": 1, "maxUnavailable": 0},
    },
)


@dataclass
class Rotation:
    """A namespace, an operator for it alone, and the file of its master keys."""

    place: Place
    keys: Path

    def write(self, *keys: str) -> None:
        """As the kubelet brings a changed Secret; the serving is looked at again."""
        self.keys.write_text("".join(f"{key}\n" for key in keys))
        self.place.kubectl("annotate", naming.PLURAL_SERVING, "chat", f"example.com/keys={len(keys)}", "--overwrite")

    def pods(self) -> dict[str, str]:
        """Name -> UID."""
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in self.place.list("Pod")}

    def reached(self) -> tuple[str, str]:
        """MetricsAvailable, and since when: it has not been otherwise in between."""
        condition = self.place.conditions("chat")["MetricsAvailable"]
        return condition["reason"], condition["lastTransitionTime"]


@pytest.fixture
def rotation(crds: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Rotation]:
    keys = tmp_path / "keys"
    keys.write_text(f"{OLD}\n")
    more = {"PACELINE_MASTER_KEY_FILE": keys}
    config = account(crds, namespace, watch=namespace)
    operator = start(crds, f"operator-{namespace}", namespace, config, watch=namespace, more=more)
    try:
        wait_for_leader(operator)
        yield Rotation(Place(crds, namespace), keys)
    finally:
        operator.daemon.stop()
    for key in (OLD, NEW):
        assert key not in operator.log()


def test_a_key_is_rotated_without_a_moment_in_which_an_engine_is_out_of_reach(rotation: Rotation) -> None:
    place = rotation.place
    old, new = (f"chat-token-{key_version(key.encode())}" for key in (OLD, NEW))
    place.serve("chat", **SERVING)
    with ExitStack() as engines:
        engines.enter_context(control(ADDRESSES[0], AtRest(), (token(place, old),)))
        first = pod_of(place, "chat")
        run_pod(place, first, ADDRESSES[0])
        place.condition("chat", "MetricsAvailable", "MetricsFound")
        before = rotation.reached()

        rotation.write(NEW, OLD)
        engines.enter_context(control(ADDRESSES[1], AtRest(), (token(place, new),)))
        second = place.wait("a pod with the new Secret", lambda: next(iter(rotation.pods().keys() - {first}), None))
        assert first in rotation.pods(), "the old pod serves until the new one is ready"
        assert rotation.reached() == before
        run_pod(place, second, ADDRESSES[1])
        place.wait("the old pod to go", lambda: rotation.pods().keys() == {second})
        place.wait("the old Secret to go", lambda: place.get("Secret", old) is None)
        place.wait("the new engine's answer", lambda: _acknowledged(place))
        assert rotation.reached() == before

        ran = rotation.pods()
        seen = place.get(naming.KIND_SERVING, "chat") or {}
        rotation.write(NEW)
        place.patch(naming.KIND_SERVING, "chat", {"spec": {"tuning": {"minGainPercent": 3}}})
        generation = seen["metadata"]["generation"] + 1
        place.wait("a pass", lambda: _status(place).get("observedGeneration") == generation)
        assert rotation.pods() == ran, "the end of a rotation restarts nothing"
        assert rotation.reached() == before


def _status(place: Place) -> dict[str, Any]:
    return dict((place.get(naming.KIND_SERVING, "chat") or {}).get("status", {}))


def _acknowledged(place: Place) -> bool:
    status = _status(place)
    return bool(status.get("acknowledgedPods") == 1 and status.get("readyReplicas") == 1)
