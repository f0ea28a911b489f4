"""The chart's rights and what the operator asks for, by the API server's audit log: the same, in both directions.

The operator lives under the chart's service account through everything that makes it ask for something: every field of
the spec set, changed and unset, every kind of child made and removed, engines that refuse a token or miss a Secret, one
that wants another replica, the two further kinds, and a Lease.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from paceline_engine.protocol import Gauges
from paceline_operator import naming
from paceline_operator.clients.keys import key_version
from paceline_operator.clients.kube import RESOURCES
from paceline_operator.kinds import OPTIONAL
from paceline_operator.plan import CHILD_KINDS
from paceline_operator.rollout.revision import KEPT
from tests.cluster.audited import AuditedPlane, Right
from tests.cluster.bundles import bundles
from tests.cluster.decoding import LADDER, SPEC, Decoding
from tests.cluster.lives import LONG_AGO, Lives, looked_at
from tests.cluster.operators import KEY, Place, start, wait_for_leader
from tests.cluster.stand_ins import AtRest, control, pod_of, run_pod, token
from tests.cluster.transitions import GROWS
from tests.harness.binaries import ensure_built
from tests.harness.chart import CHART, helm, rendered
from tests.harness.objects import EXPERIMENT, PROFILE, thing
from tests.harness.optional import install

pytestmark = pytest.mark.cluster

CRDS = CHART.parents[1] / "crds"
HOME, LIFE = "paceline-system", "life"
ACCOUNT = f"{HOME}:paceline"
ONLY_ADMISSION: dict[Right, str] = {
    (naming.GROUP, "speculativeservings/finalizers", "update"): (
        "asked by the admission plugin OwnerReferencesPermissionEnforcement (OpenShift) of whoever writes an owner "
        "reference that blocks its owner's deletion; no request of ours, and the plugin is off by default"
    ),
}
"""Granted and never seen in the audit log, each with its reason."""


class Hung(AtRest):
    """It has requests and gives no token."""

    def gauges(self) -> Gauges:
        return super().gauges().model_copy(update={"running": 3, "generation_tokens": 7})


MANUAL = {"mode": "Manual", "intervalSeconds": 1, "ladder": list(LADDER), "table": [{"fromRequests": 1, "k": 0}]}
BUILTIN = {"mode": "Builtin", "maxReplicas": 2, "targetRunningRequests": 4}
ADDRESSES = tuple(f"127.61.9.{host}" for host in range(1, 5))
ENDED = {"reason": "Error", "exitCode": 1, "message": "RuntimeError: out of order", "finishedAt": LONG_AGO}
HANG_SECONDS = 10


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AuditedPlane]:
    ensure_built()
    plane = AuditedPlane(tmp_path_factory.mktemp("rights") / "plane", reads=True)
    plane.start()
    plane.kubectl("apply", "--server-side", "-f", CRDS)
    plane.established("-f", CRDS)
    install(plane, *OPTIONAL)
    for name in (HOME, LIFE):
        plane.kubectl("create", "namespace", name)
    yield plane
    plane.stop()


def test_what_is_granted_is_what_is_used(plane: AuditedPlane) -> None:
    helm("install", "paceline", CHART, f"--namespace={HOME}", "--skip-crds", kubeconfig=plane.kubeconfig)
    token = plane.kubectl("-n", HOME, "create", "token", "paceline").stdout.strip()
    operator = start(plane, "operator-rights", HOME, plane.write_kubeconfig("rights", token=token))
    try:
        wait_for_leader(operator)
        _live(Lives(plane, (LIFE,)), Place(plane, LIFE))
    finally:
        operator.daemon.stop()
    used, refused = plane.rights(ACCOUNT)
    # What anybody may ask who is known: nothing of the chart's.
    used -= {right for right in used if right[0] == "authorization.k8s.io"}
    granted = _granted()
    assert sorted(refused) == []
    assert sorted(used - granted) == [], "used and not granted by the chart"
    assert sorted(granted - used - set(ONLY_ADMISSION)) == [], "granted and not used"
    assert set(ONLY_ADMISSION) <= granted - used, "explained, but used or not granted"


def _granted() -> set[Right]:
    roles = [each for each in rendered("--set=rbac.aggregate=false") if each["kind"] in ("Role", "ClusterRole")]
    return {
        (group, resource, verb)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def _live(lives: Lives, place: Place) -> None:
    # A claim grows only where it is bound: test_fields has the volumes for that, and it asks for no other right.
    journeys = [bundle for bundle in bundles() if GROWS not in json.dumps(bundle.first)]
    keys = [(LIFE, bundle.name) for bundle in journeys]
    answers = lives.create({(LIFE, bundle.name): bundle.first for bundle in journeys})
    assert {status for status, _ in answers.values()} == {201}, answers
    assert lives.wait(looked_at, keys) == {}
    lives.end_jobs()
    _engines(place)
    _faults(place)
    strays = _strays(place, lives)
    for state in ("second", "base"):
        lives.replace({(LIFE, bundle.name): getattr(bundle, state) for bundle in journeys})
        assert lives.wait(looked_at, keys) == {}
        lives.end_jobs()
    _gone(place, strays)
    for kind in (EXPERIMENT, PROFILE):
        place.kubectl("apply", "-f", "-", input=json.dumps(thing(kind, {})))
        place.condition("chat", "Accepted", "Valid", of=kind)


def _strays(place: Place, lives: Lives) -> list[tuple[str, str]]:
    """A child of each kind that its owner does not want, as another version of the operator may have named one."""
    examples: dict[str, Any] = {}
    for children in lives.children().values():
        for key, item in children.items():
            examples.setdefault(key.partition("/")[0], item)
    assert set(examples) >= {*CHILD_KINDS, *OPTIONAL}
    made = []
    for kind in (*CHILD_KINDS, *OPTIONAL):
        item = json.loads(json.dumps(examples[kind]))
        meta, spec = item["metadata"], item.get("spec", {})
        for field in ("clusterIP", "clusterIPs", "volumeName"):
            spec.pop(field, None)
        if kind == "Job":
            del spec["selector"], spec["template"]["metadata"]["labels"]
        item.pop("status", None)
        kept = {key: meta[key] for key in ("labels", "ownerReferences")}
        # Templates of the past are kept, some of them.
        for number in range(KEPT + 2 if kind == "ControllerRevision" else 1):
            name = f"{meta['ownerReferences'][0]['name']}-stray-{number}"
            body = {**item, "kind": kind, "apiVersion": _version(kind), "metadata": {"name": name, **kept}}
            place.kubectl("create", "-f", "-", input=json.dumps(body))
            made.append((kind, name))
    return made


def _gone(place: Place, strays: list[tuple[str, str]]) -> None:
    left: list[tuple[str, str]] = []

    def gone() -> bool:
        left[:] = [(kind, name) for kind, name in strays if place.get(kind, name)]
        return {kind for kind, _ in left} <= {"ControllerRevision"} and len(left) <= KEPT

    try:
        place.wait("strays to go", gone)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {left}") from None


def _version(kind: str) -> str:
    return {**RESOURCES, **OPTIONAL}[kind][0]


def _engines(place: Place) -> None:
    """One that knows no token of ours, one that waits for its Secret, one with more requests than it should have."""
    place.serve("refuses", **SPEC, tuning=MANUAL)
    with control(ADDRESSES[0], AtRest(), (b"a token of somebody else's",)):
        run_pod(place, pod_of(place, "refuses"), ADDRESSES[0])
        place.condition("refuses", "MetricsAvailable", "TokenRefused")
    place.serve("waits", **SPEC, tuning=MANUAL)
    _bind(place, pod_of(place, "waits"))
    busy = Decoding()
    place.serve("busy", **SPEC, tuning=MANUAL, autoscaling=BUILTIN)
    pod = pod_of(place, "busy")
    secret = token(place, f"busy-token-{key_version(KEY.encode())}")
    with control(ADDRESSES[1], busy, (secret,)):  # type: ignore[arg-type]
        busy.running, busy.waiting = 2, 20
        run_pod(place, pod, ADDRESSES[1])
        place.wait("two replicas", lambda: (place.get(naming.KIND_SERVING, "busy") or {})["spec"]["replicas"] == 2)


def _faults(place: Place) -> None:
    """An engine that ended and is back, whose log is asked for and kept, and one that stands still."""
    place.serve("ended", **SPEC, tuning=MANUAL)
    ended = pod_of(place, "ended")
    run_pod(place, ended, ADDRESSES[2])
    told = {"name": "engine", "image": "x", "imageID": "x", "ready": True, "restartCount": 1}
    told |= {"state": {"running": {"startedAt": LONG_AGO}}, "lastState": {"terminated": ENDED}}
    place.patch("Pod", ended, {"status": {"containerStatuses": [told]}}, "status")
    place.serve("hangs", **SPEC, tuning=MANUAL, safety={"hangSeconds": HANG_SECONDS})
    hung = pod_of(place, "hangs")
    secret = token(place, f"hangs-token-{key_version(KEY.encode())}")
    with control(ADDRESSES[3], Hung(), (secret,)):
        run_pod(place, hung, ADDRESSES[3])
        place.wait("the record of what ended", lambda: _records(place))
        place.wait("the hung pod to be deleted", lambda: place.get("Pod", hung) is None)


def _records(place: Place) -> bool:
    listed = json.loads(place.kubectl("get", "configmaps", f"--selector={naming.LABEL_SERVING}", "--output=json"))
    return bool(listed["items"])


def _bind(place: Place, pod: str) -> None:
    """As a scheduler and a kubelet would: it has a node, and waits for its volumes."""
    where = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod}, "target": {"kind": "Node", "name": "n"}}
    place.kubectl("create", "--raw", place.path("Pod", pod, "binding"), "-f", "-", input=json.dumps(where))
    state = {"waiting": {"reason": "ContainerCreating"}}
    told = {"name": "engine", "image": "x", "imageID": "", "ready": False, "restartCount": 0, "state": state}
    place.patch("Pod", pod, {"status": {"phase": "Pending", "containerStatuses": [told]}}, "status")
    place.condition("waits", "MetricsAvailable", "EngineWarmingUp")
