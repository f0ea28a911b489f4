"""The scripted life of one serving under an operator behind a proxy, in a namespace of its own.

What a kubelet and an engine would do is done by stand-ins, as in tests/cluster/test_rollout.py: they live on when the
operator is killed, as they would.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline_operator import naming
from paceline_operator.clock import rfc3339
from paceline_operator.effective.declared import CONTAINER
from tests.cluster.lives import differences
from tests.cluster.operators import Object, Operator, Place, account, start, wait_for_leader
from tests.cluster.proxy import Proxy
from tests.cluster.test_rollout import SERVING, Kubelet
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import merged
from tests.reliability.killer import Call, Killer
from tests.reliability.snapshot import Snapshot, taken

NAME = "chat"
CANARY = {"observeSeconds": 5, "deadlineSeconds": 600, "maxGoodputLossPercent": 25}
"""Of which one is judged soon: the slow one takes twice as long for a step."""
SPEC = merged(
    SERVING,
    {
        "safety": {"stableSeconds": 3600},
        "tuning": {"probing": {"mode": "Auto"}},
        "rollout": {"canary": CANARY},
    },
)
"""A rung stays in trial until the end: how long it must stay up is not what is looked at here."""
REST_SECONDS = 2.0
"""Without a change, and told of all pods there are: then what followed from a step is over. Passes over engines are a
second apart, and further on a busy machine."""
PATIENCE_SECONDS = 240.0
"""On a machine that other suites share."""


class Engines(Kubelet):
    """Pods and engines; an engine may be said to have died. API servers that do not answer now are asked again."""

    def run(self) -> None:
        """Once there is something to run: a Secret is waited for no longer than a minute."""
        while not self._stop.wait(0.3) and not self.pods():
            pass
        super().run()

    def pods(self) -> list[Object]:
        try:
            return super().pods()
        except OSError:
            return []

    def die(self, pod: Object) -> None:
        """As a kubelet tells of an engine that ended with an error, and was started again."""
        name, now = pod["metadata"]["name"], datetime.now(UTC)
        ended = {"reason": "Error", "exitCode": 1, "startedAt": rfc3339(now - timedelta(seconds=5)),
                 "finishedAt": rfc3339(now), "message": "RuntimeError: CUDA error: out of range"}  # fmt: skip
        status = {"name": CONTAINER, "restartCount": 1, "ready": True, "image": "i", "imageID": "i",
                  "state": {"running": {"startedAt": rfc3339(now)}}, "lastState": {"terminated": ended}}  # fmt: skip
        self.place.patch("Pod", name, {"status": {"containerStatuses": [status]}}, "status")


@dataclass
class Life:
    """One serving, its operator and what became of it."""

    cluster: ControlPlane
    namespace: str
    config: Any = field(init=False)
    operator: Operator = field(init=False)

    def __post_init__(self) -> None:
        self.place = Place(self.cluster, self.namespace)
        self.engines = Engines(self.place, NAME)
        self.proxy = Proxy(self.cluster)
        self.config = self.proxy.kubeconfig(account(self.cluster, self.namespace, watch=self.namespace))
        self.killer = Killer(self.proxy, self.kill)
        self.start()

    def start(self) -> None:
        """Of the same name each time, so that its own Lease is free to it."""
        name, watch = f"operator-{self.namespace}", self.namespace
        more = {"PACELINE_RESYNC_SECONDS": 5}
        self.operator = start(self.cluster, name, watch, self.config, watch=watch, more=more)
        wait_for_leader(self.operator)

    def kill(self) -> None:
        self.operator.daemon.process.kill()

    def revive(self) -> None:
        """Another operator, once the killed one is gone."""
        self.operator.daemon.process.wait()
        self.killer.revived()
        self.start()

    def end(self) -> None:
        self.operator.daemon.stop()
        self.proxy.close()
        # kopf may trace what ends a watch; our own code raises nothing.
        assert "/paceline_operator/" not in self.operator.log(), self.operator.log()

    def serving(self) -> Object:
        return self.place.get(naming.KIND_SERVING, NAME) or {}

    def patch(self, spec: Mapping[str, Any]) -> None:
        """As a user does."""
        self.place.patch(naming.KIND_SERVING, NAME, {"spec": spec})

    def snapshot(self) -> Snapshot:
        """As it is now, and how many pods there ever were."""
        return taken(self.place, NAME) | {"pods ever": dict(Counter(self.engines.born.values()))}


def _of(life: Life, track: str) -> list[Object]:
    return [pod for pod in life.engines.pods() if pod["metadata"]["labels"][naming.LABEL_TRACK] == track]


def _create(life: Life) -> None:
    life.place.serve(NAME, **SPEC)


def _scale(life: Life) -> None:
    life.patch({"replicas": 3})


def _roll(life: Life) -> None:
    life.patch({"engine": {"maxModelLen": 4096}})


def _break(life: Life) -> None:
    life.engines.bad = True
    life.patch({"engine": {"maxModelLen": 2048}})


def _revert(life: Life) -> None:
    life.engines.bad = False
    life.patch({"engine": {"maxModelLen": 4096}})


def _die(life: Life) -> None:
    """One whose engine did not die before."""
    ends = [(len(pod["status"].get("containerStatuses", [])), pod) for pod in _of(life, naming.TRACK_STABLE)]
    life.engines.die(min(ends, key=lambda one: (one[0], one[1]["metadata"]["name"]))[1])


def _delete(life: Life) -> None:
    life.place.kubectl("delete", naming.PLURAL_SERVING, NAME)


@dataclass(frozen=True)
class Stage:
    """A step of a user's or a machine's. `reached`: of the status, where it leads."""

    name: str
    act: Callable[[Life], None]
    reached: Callable[[Object], bool]
    writes: int
    """That it takes at least, Events included."""


def _settled(status: Object) -> bool:
    found = {each["type"]: (each["status"], each["reason"]) for each in status.get("conditions", [])}
    tuned = status.get("acknowledgedPods") == status.get("readyReplicas") and bool(status.get("decisions"))
    return tuned and found.get("Progressing", ("", ""))[1] == "Settled" and found["Ready"][0] == "True"


def _phase(status: Object) -> str:
    return str(status["rollout"]["phase"])


def _ends(status: Object) -> int:
    return len(status["safety"]["deaths"])


STAGES = (
    Stage("create", _create, lambda status: _settled(status) and status["replicas"] == 2, 10),
    Stage("scale", _scale, lambda status: _settled(status) and status["replicas"] == 3, 4),
    Stage("roll out", _roll, lambda s: _settled(s) and _phase(s) == "Steady" and bool(s["rollout"]["fields"]), 15),
    Stage("roll back", _break, lambda status: _phase(status) == "RolledBack", 10),
    Stage("revert", _revert, lambda status: _settled(status) and _phase(status) == "Steady", 1),
    Stage("crash", _die, lambda status: _ends(status) == 1, 3),
    Stage("breaker", _die, lambda status: _ends(status) == 2 and bool(status["safety"].get("since")), 12),
    Stage("delete", _delete, lambda status: not status, 0),
)


class Course:
    """What an undisturbed life came to, stage by stage, while others live beside it."""

    def __init__(self) -> None:
        self.calls: dict[str, list[Call]] = {}
        self.leases = 0
        self._snapshots: dict[str, Snapshot] = {}
        self._told = threading.Condition()
        self._failed: BaseException | None = None

    def live(self, cluster: ControlPlane, namespace: str) -> None:
        """Live it."""
        try:
            with lived(cluster, namespace) as life:
                for stage in STAGES:
                    life.killer.arm(None)
                    stage.act(life)
                    wait_for(life, stage)
                    found = _at_rest(life)
                    with self._told:
                        self.calls[stage.name], self._snapshots[stage.name] = list(life.killer.calls), found
                        self._told.notify_all()
                self.leases = life.killer.leases
        except BaseException as error:
            with self._told:
                self._failed = error
                self._told.notify_all()
            raise

    def known(self, stage: Stage) -> Snapshot | None:
        """None until it has come there."""
        with self._told:
            if self._failed:
                raise AssertionError(f"the undisturbed life failed: {self._failed}") from self._failed
            return self._snapshots.get(stage.name)

    def wait(self, stage: Stage = STAGES[-1]) -> Sequence[Call]:
        """Until it has come there: the writes of the stage."""
        with self._told:
            self._told.wait_for(lambda: self._failed or stage.name in self._snapshots)
        self.known(stage)
        return self.calls[stage.name]


@contextmanager
def lived(cluster: ControlPlane, namespace: str) -> Iterator[Life]:
    """A namespace with an operator and engines."""
    cluster.kubectl("create", "namespace", namespace)
    life = Life(cluster, namespace)
    try:
        with life.engines.running():
            yield life
    finally:
        life.end()
        cluster.kubectl("delete", "namespace", namespace, "--wait=false")


def wait_for(life: Life, stage: Stage) -> None:
    """Until the stage is where it leads."""

    def reached() -> bool:
        return stage.reached(life.serving().get("status", {}))

    try:
        life.place.wait(stage.name, reached, PATIENCE_SECONDS)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {life.serving().get('status')}\n{life.operator.daemon.tail()}") from None


def _at_rest(life: Life) -> Snapshot:
    deadline = time.monotonic() + PATIENCE_SECONDS
    found, since = life.snapshot(), time.monotonic()
    while time.monotonic() - since < REST_SECONDS or not _told_of_pods(found):
        assert time.monotonic() < deadline, f"it does not come to rest: {found['status']}"
        time.sleep(0.3)
        if (now := life.snapshot()) != found:
            found, since = now, time.monotonic()
    return found


def _told_of_pods(found: Snapshot) -> bool:
    return (found["status"]["replicas"] or 0) == sum(found["pods"].values())


def unlike(life: Life, course: Course, stage: Stage) -> list[str]:
    """Where the life differs from the undisturbed one in the end; empty as soon as it does not. Revives a killed
    operator."""
    deadline: float | None = None
    while True:
        if life.killer.killed:
            life.revive()
        wanted = course.known(stage)
        if wanted is not None:
            deadline = deadline or time.monotonic() + PATIENCE_SECONDS
            late = time.monotonic() > deadline
            if late or _reached(life, stage):
                found = differences(life.snapshot(), wanted)
                if not found or late:
                    return found
        time.sleep(0.4)


def _reached(life: Life, stage: Stage) -> bool:
    """Whether a look at all that is there pays."""
    try:
        return stage.reached(life.serving().get("status", {}))
    except (LookupError, OSError):
        return False
