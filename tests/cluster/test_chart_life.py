"""A release through its life, mostly on an API server of its own: installed, upgraded, gone back, removed in any order.

The release's pods are what a control plane without nodes has none of: operators are processes with the rights of the
chart's service account, of the version that the release has.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from hack import chart as bundle
from paceline_operator import naming
from paceline_operator.process import PLURALS
from tests.cluster.operators import Object, Operator, Place, start, wait_for_leader
from tests.cluster.stand_ins import pod_of, run_pod
from tests.harness.binaries import ensure_built
from tests.harness.chart import CHART, helm, rendered
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import PROFILE, thing

pytestmark = pytest.mark.cluster

ROOT = CHART.parents[1]
HOME = "paceline-system"
KINDS = [f"{plural}.{naming.GROUP}" for plural in PLURALS]
SPEC: Object = {"rollout": {"canary": {"mode": "Disabled"}}}
FIRST = "b4b6b3fb88c2e31cc9c6bcd66c9b757a747f4c37"
"""Stands for the version before as long as no tag does: the chart before its NetworkPolicy and its roles for people."""
GONE_SECONDS = 60.0


@dataclass
class Cluster:
    """A control plane without paceline, and one namespace for servings."""

    plane: ControlPlane
    place: Place

    def helm(self, verb: str, *arguments: str | Path) -> str:
        words = ("--namespace", HOME, *arguments)
        return helm(verb, "paceline", *words, kubeconfig=self.plane.kubeconfig).stdout

    def apply_crds(self, folder: Path) -> None:
        self.plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", folder / "charts/paceline/crds")
        self.plane.established("-f", folder / "charts/paceline/crds")

    @contextmanager
    def operator(self, name: str, source: Path = ROOT, *, outlived: bool = False) -> Iterator[Operator]:
        """Of the version in `source`, as the release's pod would run it; `outlived`: its rights go before it does."""
        config = self.plane.write_kubeconfig(name, token=_token(self.plane, HOME, "paceline"))
        path = os.pathsep.join(str(source / root) for root in ("operator", "engine"))
        started = start(self.plane, name, HOME, config, more={"PYTHONPATH": path, "PACELINE_IDENTITY": HOME})
        try:
            wait_for_leader(started)
            yield started
        finally:
            started.daemon.stop()
        if not outlived:
            _within_its_rights(started)

    def looked_at(self, name: str, operator: Operator) -> None:
        """Until the operator has gone over the serving once more."""
        before = operator.metrics()[("paceline_reconcile_duration_seconds_count", "ok")]
        self.place.kubectl("annotate", naming.PLURAL_SERVING, name, f"example.com/look={before}", "--overwrite")
        self.place.wait(
            "a pass", lambda: operator.metrics()[("paceline_reconcile_duration_seconds_count", "ok")] > before
        )


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    ensure_built()
    plane = ControlPlane(tmp_path_factory.mktemp("life") / "plane")
    plane.start()
    plane.kubectl("create", "namespace", "team")
    plane.kubectl("create", "namespace", HOME)
    yield Cluster(plane, Place(plane, "team"))
    plane.stop()


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as it was at the release before HEAD."""
    folder = tmp_path_factory.mktemp("previous")
    tags = _git("tag", "--merged", "HEAD~1", "--list", "v*", "--sort=-v:refname").split()
    since = (tags or [FIRST])[0]
    if subprocess.run(["git", "cat-file", "-e", f"{since}^{{commit}}"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip(f"this clone lacks {since}, the version to upgrade from: a shallow one?")
    parts = ("operator", "engine", "charts")
    archive = subprocess.run(["git", "archive", since, *parts], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
    return folder


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def _running(place: Place) -> dict[str, str]:
    """UID -> container of each pod, and how often the Deployment was told something new."""
    pods = {pod["metadata"]["uid"]: json.dumps(pod["spec"]["containers"], sort_keys=True) for pod in place.list("Pod")}
    deployment = place.get("Deployment", "chat") or {}
    return {**pods, "Deployment": str(deployment["metadata"]["generation"])}


def test_a_serving_runs_through_upgrade_and_rollback(cluster: Cluster, previous: Path) -> None:
    """From the version before: no pod restarts, nor when going back; every child stays as it was written."""
    place = cluster.place
    cluster.helm("install", previous / "charts/paceline")
    cluster.plane.established(*(f"crd/{name}" for name in KINDS))
    with cluster.operator("before", previous):
        place.serve("chat", **SPEC)
        run_pod(place, pod_of(place, "chat"), "127.61.8.1")
        place.condition("chat", "Available", "ReplicasReady")
        ran, key = _running(place), _key(cluster)
    cluster.apply_crds(ROOT)
    _orphan(cluster)
    cluster.helm("upgrade", CHART, "--reset-then-reuse-values")
    with cluster.operator("after") as operator:
        cluster.looked_at("chat", operator)
        assert _running(place) == ran
        place.kubectl("patch", naming.PLURAL_SERVING, "chat", "--type=merge", '--patch={"spec":{"replicas":2}}')
        place.wait("the new version to act", lambda: len(place.list("Pod")) == 2)
        place.kubectl("patch", naming.PLURAL_SERVING, "chat", "--type=merge", '--patch={"spec":{"replicas":1}}')
        place.wait("one pod", lambda: len(place.list("Pod")) == 1)
        scaled = _running(place)
        assert scaled.keys() == ran.keys(), "the pod of before is the one that stays: it is ready"
    cluster.helm("rollback")
    with cluster.operator("before-again", previous) as operator:
        cluster.looked_at("chat", operator)
        assert _running(place) == scaled
    assert _key(cluster) == key
    history = json.loads(cluster.helm("history", "--output=json"))
    assert [entry["status"] for entry in history] == ["superseded", "superseded", "deployed"]
    _known_to_the_garbage_collector(cluster)
    _delete_servings(cluster)
    place.wait("its children to follow", lambda: not place.list("Deployment") and not place.list("Service"))
    cluster.helm("uninstall")
    _delete_kinds(cluster)
    _nothing_is_left(cluster)


def _key(cluster: Cluster) -> str:
    return cluster.plane.kubectl("-n", HOME, "get", "secret", "paceline-master-key", "-o=jsonpath={.data}").stdout


def _orphan(cluster: Cluster) -> None:
    """Gone once the garbage collector knows the kinds: children of an owner whose kind it never saw stay."""
    place = cluster.place
    place.kubectl("apply", "-f", "-", input=json.dumps(thing(PROFILE, {}, "owner")))
    uid = (place.get(PROFILE, "owner") or {})["metadata"]["uid"]
    owner = {"apiVersion": naming.API_VERSION, "kind": PROFILE, "name": "owner", "uid": uid}
    meta = {"name": "owned", "ownerReferences": [owner]}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
    place.kubectl("create", "-f", "-", input=json.dumps(body))
    place.kubectl("delete", PROFILE.lower(), "owner")


def _known_to_the_garbage_collector(cluster: Cluster) -> None:
    """It looks for new kinds every 30 s."""
    place = cluster.place
    found = ("get", "configmap", "owned", "--ignore-not-found", "--output=name")
    place.wait("a child to follow its owner", lambda: not place.kubectl(*found), GONE_SECONDS)


def _delete_servings(cluster: Cluster) -> None:
    cluster.place.kubectl("delete", naming.PLURAL_SERVING, "--all", "--wait=false")


def _delete_kinds(cluster: Cluster) -> None:
    cluster.plane.kubectl("delete", "crd", *KINDS, "--timeout=60s")


def _nothing_is_left(cluster: Cluster) -> None:
    """Neither something that hangs in its deletion nor an object of ours; the master key stays."""
    found: list[str] = []

    def gone() -> bool:
        found[:] = _left(cluster.plane)
        return not found

    try:
        cluster.place.wait("everything to be gone", gone, GONE_SECONDS)
    except TimeoutError as error:
        raise AssertionError(f"{error}: {found}") from None


def _left(plane: ControlPlane) -> list[str]:
    return [
        f"{item['kind']}/{item['metadata']['name']}"
        for item in _everything(plane)
        if "deletionTimestamp" in item["metadata"] or (_ours(item) and item["metadata"]["name"] != bundle.MASTER_KEY)
    ]


def _everything(plane: ControlPlane) -> list[Object]:
    listed = plane.kubectl("api-resources", "--verbs=list,delete", "--output=name").stdout
    kinds = ",".join(name for name in listed.split() if not name.startswith("events"))
    return list(json.loads(plane.kubectl("get", kinds, "--all-namespaces", "--output=json").stdout)["items"])


def _ours(item: Object) -> bool:
    labels = item["metadata"].get("labels", {})
    return labels.get("app.kubernetes.io/part-of") == "paceline" or naming.LABEL_SERVING in labels or item["kind"] in (
        naming.KIND_SERVING, naming.KIND_EXPERIMENT, naming.KIND_PROFILE
    )  # fmt: skip


def _within_its_rights(operator: Operator) -> None:
    assert "forbidden" not in operator.log().lower(), operator.log()


@pytest.mark.long
@pytest.mark.parametrize(
    "order",
    [
        ("kinds", "release"),
        ("release", "kinds"),
        ("release", "servings", "kinds"),
        ("namespaces", "rights", "kinds"),
    ],
    ids="-".join,
)
def test_nothing_hangs_in_whatever_order_it_is_removed(cluster: Cluster, order: tuple[str, ...]) -> None:
    steps: dict[str, Callable[[], object]] = {
        "kinds": lambda: _delete_kinds(cluster),
        "release": lambda: cluster.helm("uninstall"),
        "servings": lambda: _delete_servings(cluster),
        "namespaces": lambda: cluster.plane.kubectl("delete", "namespace", HOME, "team"),
        "rights": lambda: cluster.plane.kubectl(
            "delete", "clusterroles,clusterrolebindings", "--selector=app.kubernetes.io/part-of=paceline"
        ),
    }
    cluster.helm("install", CHART)
    cluster.plane.established(*(f"crd/{name}" for name in KINDS))
    _orphan(cluster)
    with cluster.operator("-".join(order), outlived=order[0] != "kinds") as operator:
        cluster.place.serve("chat", model={"source": "hf://owner/target", "cache": {"claim": {"size": "1Gi"}}})
        cluster.place.child("Deployment", "chat")
        cluster.place.wait("the claim", lambda: cluster.place.list("PersistentVolumeClaim"))
        ours = list(filter(_ours, _everything(cluster.plane)))
        assert {naming.KIND_SERVING, "Deployment", "PersistentVolumeClaim"} <= {item["kind"] for item in ours}
        held = {name for item in ours for name in item["metadata"].get("finalizers", ())}
        assert held == {"kubernetes.io/pvc-protection"}, "Kubernetes' own, on a claim"
        _known_to_the_garbage_collector(cluster)
        _within_its_rights(operator)
        steps[order[0]]()
    for step in order[1:]:
        steps[step]()
    _nothing_is_left(cluster)


@pytest.mark.long
def test_engines_can_stay_when_paceline_goes(cluster: Cluster) -> None:
    place = cluster.place
    cluster.helm("install", CHART)
    cluster.plane.established(*(f"crd/{name}" for name in KINDS))
    with cluster.operator("orphaned"):
        place.serve("chat", **SPEC)
        run_pod(place, pod_of(place, "chat"), "127.61.8.1")
        place.condition("chat", "Available", "ReplicasReady")
        ran = _running(place)
    cluster.helm("uninstall")
    place.kubectl("delete", naming.PLURAL_SERVING, "--all", "--cascade=orphan")
    _delete_kinds(cluster)
    assert _running(place) == ran
    kept = [place.get(kind, "chat") for kind in ("Deployment", "Service", "NetworkPolicy")]
    assert all(item and "ownerReferences" not in item["metadata"] for item in kept)
    for kind in ("deployment", "service", "networkpolicy", "serviceaccount", "poddisruptionbudget"):
        place.kubectl("delete", kind, "chat")
    place.kubectl("delete", "secrets,controllerrevisions", "--all")
    _nothing_is_left(cluster)


def test_the_bundle_installs_and_upgrades_by_kubectl_alone(cluster: Cluster) -> None:
    plane, file = cluster.plane, ROOT / "install.yaml"
    key = "--from-literal=keys=a-key-of-the-tests-that-is-long-enough"
    plane.kubectl("-n", HOME, "create", "secret", "generic", bundle.MASTER_KEY, key)
    plane.kubectl("apply", "--server-side", "-f", file)
    plane.established(*(f"crd/{name}" for name in KINDS))
    with cluster.operator("of-the-bundle"):
        cluster.place.serve("chat")
        cluster.place.child("Deployment", "chat")
    again = plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", file).stdout
    assert len(again.splitlines()) == file.read_text().count("\nkind: ")
    plane.kubectl("delete", "-f", file, "--timeout=60s")
    gone = ("get", "namespace", HOME, "--ignore-not-found", "--output=name")
    cluster.place.wait("the namespace to be gone", lambda: not plane.kubectl(*gone).stdout)


def test_whoever_may_what_the_operator_may_installs_it_in_a_namespace(crds: ControlPlane, namespace: str) -> None:
    """CRDs and the rights come from somebody else, as docs/upgrade.md says."""
    place, watched = Place(crds, namespace), f"--set=watchNamespaces={{{namespace}}}"
    granted = [each for each in rendered(watched, namespace=namespace) if each["kind"] == "Role"]
    for role in granted:
        role["metadata"]["name"] += "-granted"
    crds.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(granted))
    place.kubectl("create", "serviceaccount", "installer")
    for number, named in enumerate(["clusterrole=admin", *(f"role={each['metadata']['name']}" for each in granted)]):
        place.kubectl(
            "create", "rolebinding", f"installer-{number}", f"--{named}", f"--serviceaccount={namespace}:installer"
        )
    config = crds.write_kubeconfig("installer", token=_token(crds, namespace, "installer"))
    options = (CHART, "--skip-crds", f"--namespace={namespace}")
    refused = helm("install", "paceline", *options, kubeconfig=config, check=False)
    assert 'cannot create resource "clusterroles"' in refused.stderr or "cannot get resource" in refused.stderr
    helm("upgrade", "--install", "paceline", *options, watched, kubeconfig=config)
    account = crds.write_kubeconfig("namespaced", token=_token(crds, namespace, "paceline"))
    operator = start(crds, "namespaced", namespace, account, watch=namespace)
    try:
        place.serve("chat")
        place.child("Deployment", "chat")
    finally:
        operator.daemon.stop()
    helm("uninstall", "paceline", f"--namespace={namespace}", kubeconfig=config)


def _token(plane: ControlPlane, namespace: str, account: str) -> str:
    return plane.kubectl("-n", namespace, "create", "token", account).stdout.strip()
