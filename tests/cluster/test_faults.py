"""Operators whose API server is killed, refuses, loses what it says or cannot be reached; operators that are killed.
In the end the cluster is as a fresh apply makes it, and no pod was restarted for it.

Servings of one test go through its faults side by side. Pods are never ready here, so changes roll out at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from paceline_operator import naming
from paceline_operator.plan import CHILD_KINDS
from tests.cluster.audited import AuditedPlane
from tests.cluster.operators import PATIENCE_SECONDS, Object, Place, wait_for_leader
from tests.cluster.proxy import Answer, Event, Fault, Request
from tests.cluster.scene import BOOT, CUT_SECONDS, FAR, FRESH, HERE, HOME, LIVE, SCALED, SMALL, Cut, Scene
from tests.harness.processes import wait_until

pytestmark = pytest.mark.cluster

CRDS = Path(__file__).resolve().parents[2] / "crds"


@pytest.fixture(scope="module")
def plane(control_plane: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedPlane]:
    """After `control_plane`, so that the programs are built."""
    cluster = AuditedPlane(tmp_path_factory.mktemp("faults") / "plane")
    cluster.start()
    cluster.kubectl("apply", "--server-side", "-f", CRDS)
    cluster.established("-f", CRDS)
    path = Place(cluster, HERE).path(naming.KIND_SERVING)
    wait_until(lambda: cluster.get(path), "its kinds to be served", timeout_seconds=PATIENCE_SECONDS)
    for name in (HOME, HERE, FRESH, FAR):
        cluster.kubectl("create", "namespace", name)
    yield cluster
    cluster.stop()


@pytest.fixture(scope="module")
def scene(plane: AuditedPlane) -> Iterator[Scene]:
    made = Scene(plane, HOME, (HERE, FRESH), resync_seconds=5)
    yield made
    made.end()


@pytest.fixture(autouse=True)
def calm(scene: Scene) -> Iterator[None]:
    yield
    scene.quiet()


def test_an_api_server_that_is_killed_comes_back_to_what_it_knew(scene: Scene) -> None:
    names = [f"server-{i}" for i in range(3)]
    scene.apply(HERE, dict.fromkeys(names, SMALL))
    scene.settled(HERE, names)
    before = scene.with_pods(names)
    process = scene.operator.daemon.process.pid
    scene.apply(HERE, {names[0]: LIVE})
    scene.plane.restart("kube-apiserver")
    place = Place(scene.plane, HERE)
    place.wait("the API server to be back", lambda: scene.plane.get("/readyz") == "ok")
    scene.apply(HERE, {names[1]: LIVE})
    scene.settled(HERE, names)
    wait_for_leader(scene.operator)
    assert scene.operator.daemon.process.pid == process
    scene.like_fresh({names[0]: LIVE, names[1]: LIVE, names[2]: SMALL})
    assert scene.with_pods(names) == before, "no pod was restarted"


@pytest.fixture(scope="module")
def cut(plane: AuditedPlane) -> Iterator[Cut]:
    made = Cut(plane)
    yield made
    made.end()


FAULTS = {
    "conflict": Fault(409, "Conflict"),
    "throttled": Fault(429, "TooManyRequests", retry_after=1),
    "broken": Fault(500, "InternalError"),
    "away": Fault(503, "ServiceUnavailable"),
    "hung-up": Fault(0),
    "lost-answer": Fault(0, forwarded=True),
}
"""By the name of the serving whose requests meet it."""
MEETINGS = 2
"""How often each does, at every kind of request that is made for it."""


def test_answers_that_are_none_are_asked_again_and_not_for_ever(scene: Scene, cut: Cut) -> None:
    met: dict[tuple[str, str, str], int] = {}
    lock = threading.Lock()

    def rule(request: Request) -> Fault | None:
        name = next((name for name in FAULTS if not request.watch and request.about(name)), None)
        if name is None:
            return None
        with lock:
            key = name, request.method, request.target.partition("?")[0].split("/")[-1]
            met[key] = met.get(key, 0) + 1
            return FAULTS[name] if met[key] <= MEETINGS and request.writes else None

    scene.proxy.rule = rule
    scene.apply(HERE, dict.fromkeys(FAULTS, SMALL))
    scene.settled(HERE, FAULTS)
    before = scene.with_pods(FAULTS)
    met.clear()
    scene.apply(HERE, dict.fromkeys(FAULTS, SCALED))
    scene.settled(HERE, FAULTS)
    assert all(any(key[0] == name for key in met) for name in FAULTS)
    scene.like_fresh(dict.fromkeys(FAULTS, SCALED))
    assert all(before[name] < uids for name, uids in scene.pods().items() if name in before), "pods came, none went"
    assert max(met.values()) < 30, f"asked again and again: {met}"


def test_reading_that_fails_changes_nothing_until_it_works(scene: Scene, cut: Cut) -> None:
    scene.apply(HERE, {"blind": SMALL})
    scene.settled(HERE, ["blind"])
    before = scene.with_pods(["blind"])
    failed = []

    def rule(request: Request) -> Fault | None:
        if request.watch or request.writes or not request.about("blind") or len(failed) >= 3:
            return None
        failed.append(request.target)
        return (Fault(500, "InternalError"), Fault(410, "Expired"), Fault(0))[len(failed) % 3]

    scene.proxy.rule = rule
    scene.apply(HERE, {"blind": LIVE})
    scene.settled(HERE, ["blind"])
    assert len(failed) == 3
    scene.like_fresh({"blind": LIVE})
    assert scene.with_pods(["blind"]) == before


def test_by_a_view_that_is_older_than_its_own_write_nothing_is_decided(scene: Scene, cut: Cut) -> None:
    place = Place(scene.plane, HERE)
    path = place.path(naming.KIND_SERVING, "behind")
    scene.apply(HERE, {"behind": SMALL})
    scene.settled(HERE, ["behind"])
    old = scene.plane.get(path)
    scene.apply(HERE, {"behind": SCALED})
    scene.settled(HERE, ["behind"])
    asked = []

    def answers(request: Request, answer: Answer) -> Answer:
        if request.writes or request.target.partition("?")[0] != path:
            return answer
        asked.append(request)
        return 200, old.encode()

    def seen() -> tuple[Object, dict[str, str]]:
        children = {key: version for key, version in place.children().items() if "/behind" in key}
        return (place.get(naming.KIND_SERVING, "behind") or {})["status"], children

    scene.proxy.answers = answers
    place.patch(naming.KIND_SERVING, "behind", {"metadata": {"annotations": {"someone": "was here"}}})
    place.wait("it to look", lambda: asked)  # and be done with what it looked at before
    before = seen()
    place.wait("it to look three times", lambda: len(asked) >= 3)
    assert "OldView" in scene.operator.log()
    assert seen() == before
    scene.quiet()
    scene.apply(HERE, {"behind": LIVE})
    scene.settled(HERE, ["behind"])
    scene.like_fresh({"behind": LIVE})


def _about(event: Event, name: str) -> bool:
    meta: Object = event["object"].get("metadata", {})
    return name in (meta.get("name"), (meta.get("labels") or {}).get(naming.LABEL_SERVING))


def test_events_that_are_lost_late_or_said_twice(scene: Scene, cut: Cut) -> None:
    names = ("lost", "twice", "late")
    told: dict[str, int] = dict.fromkeys(names, 0)

    def lines(event: Event) -> list[tuple[float, Event]]:
        name = next((name for name in names if _about(event, name)), "")
        if name:
            told[name] += 1
        return {"lost": [], "twice": 3 * [(0.0, event)], "late": [(1.5, event)]}.get(name, [(0.0, event)])

    scene.proxy.lines = lines
    scene.apply(HERE, dict.fromkeys(names, SMALL))
    scene.settled(HERE, names)
    before = scene.with_pods(names)
    scene.apply(HERE, dict.fromkeys(names, LIVE))
    place = Place(scene.plane, HERE)
    for name in names:
        place.kubectl("delete", "service", name)
    scene.settled(HERE, names)
    scene.like_fresh(dict.fromkeys(names, LIVE))
    assert scene.with_pods(names) == before
    assert min(told.values()) > 3
    place.kubectl("delete", naming.PLURAL_SERVING, *names)
    place.wait("all to go", lambda: not any(place.get(kind, name) for kind in CHILD_KINDS for name in names))


def test_watches_that_end_and_versions_that_are_gone(scene: Scene, cut: Cut) -> None:
    names = ["gone-0", "gone-1"]
    scene.apply(HERE, dict.fromkeys(names, SMALL))
    scene.settled(HERE, names)
    before = scene.with_pods(names)
    refused = []

    def rule(request: Request) -> Fault | None:
        if request.watch and len(refused) < 12:
            refused.append(request.target)
            return Fault(410, "Expired") if len(refused) % 2 else Fault(0)
        return None

    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    first: set[str] = set()

    def lines(event: Event) -> list[tuple[float, Event]]:
        kind = event["object"].get("kind", "")
        if kind in first or not _about(event, names[0]):
            return [(0.0, event)]
        first.add(kind)
        return [(0.0, {"type": "ERROR", "object": expired})]

    scene.proxy.rule, scene.proxy.lines = rule, lines
    scene.proxy.end_streams()
    scene.apply(HERE, {names[0]: LIVE, names[1]: LIVE})
    scene.settled(HERE, names)
    scene.like_fresh(dict.fromkeys(names, LIVE))
    assert first, "a watch was told that its version is gone"
    assert scene.with_pods(names) == before


def test_an_operator_that_is_killed_between_two_writes_is_carried_on_from(scene: Scene, cut: Cut) -> None:
    names = [f"killed-{i}" for i in range(4)]
    place = Place(scene.plane, HERE)

    def kill_at(write: int) -> threading.Event:
        count, killed, lock = [0], threading.Event(), threading.Lock()

        def rule(request: Request) -> Fault | None:
            with lock:
                if request.writes and "/leases" not in request.target and "/events" not in request.target:
                    count[0] += 1
                if count[0] < write:
                    return None
                if not killed.is_set():
                    scene.operator.daemon.process.kill()
                    killed.set()
                return Fault(0)

        scene.proxy.rule = rule
        return killed

    killed = kill_at(13)
    scene.apply(HERE, dict.fromkeys(names, SMALL))
    assert killed.wait(30)
    scene.kill()
    scene.quiet()
    made = place.children()
    scene.start()
    scene.settled(HERE, names)
    scene.like_fresh(dict.fromkeys(names, SMALL))
    before, now = scene.with_pods(names), place.children()
    assert {key: now[key] for key in made} == made, "what was made stays as it is"
    killed = kill_at(3)
    scene.apply(HERE, dict.fromkeys(names, BOOT))
    assert killed.wait(30)
    scene.kill()
    scene.quiet()
    scene.start()
    scene.settled(HERE, names)
    scene.like_fresh(dict.fromkeys(names, BOOT))
    place.wait("every pod to be replaced", lambda: not any(scene.pods()[name] & before[name] for name in names))
    scene.with_pods(names)
    sets = [s["metadata"]["ownerReferences"][0]["name"] for s in place.list("ReplicaSet")]
    assert [sets.count(name) for name in names] == 4 * [2], "one template before, one after"


def test_a_minute_without_a_network(scene: Scene, cut: Cut) -> None:
    cut.wait()
    place = cut.place
    assert cut.seconds >= CUT_SECONDS
    assert cut.led[0] is True
    assert cut.led[-1] is False, "who cannot renew its Lease stops acting"
    assert cut.made_meanwhile is None
    wait_for_leader(cut.scene.operator)
    place.child("Deployment", "comes")
    place.child("Service", "stays")
    cut.scene.settled(FAR, ("stays", "changes", "comes"))
    assert place.child("Deployment", "changes")["spec"]["strategy"]["rollingUpdate"]["maxSurge"] == 1
    kept = ("stays", "changes")
    assert cut.scene.with_pods(kept, FAR) == {name: cut.before[name] for name in kept}
    place.wait("what went to be gone", lambda: not any(place.get(kind, "goes") for kind in CHILD_KINDS))
