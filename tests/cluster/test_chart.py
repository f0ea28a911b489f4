"""The chart on a real API server: installed, upgraded, removed, and the rights it gives are enough for the operator."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from kubernetes import client, config

from paceline_operator.leadership import LEASE_NAME
from paceline_operator.naming import GROUP, KIND_SERVING, PLURAL_SERVING, VERSION
from tests.harness import monitoringkinds
from tests.harness.chart import CHART, NAMESPACES, VARIANTS, helm, one, rendered
from tests.harness.controlplane import ControlPlane
from tests.harness.objects import create, thing
from tests.harness.processes import Daemon, wait_until

pytestmark = pytest.mark.cluster

DYING = "because it is being terminated"
START_SECONDS = 60.0


@pytest.fixture(scope="module")
def with_monitoring(crds: ControlPlane) -> Iterator[ControlPlane]:
    """Its namespaces are those that the variants name."""
    monitoringkinds.install(crds)
    for name in NAMESPACES:
        crds.kubectl("create", "namespace", name)
    yield crds
    crds.kubectl("delete", "namespace", *NAMESPACES, "--wait=false")


@pytest.mark.parametrize("name", VARIANTS)
def test_the_api_server_takes_every_object_of_a_variant(with_monitoring: ControlPlane, name: str) -> None:
    # A pod is admitted only where its service account is: the next test but one does that.
    objects = [each for each in rendered(f"--values={VARIANTS[name]}") if each["kind"] != "Pod"]
    dry = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    done = with_monitoring.kubectl(*dry, input=yaml.safe_dump_all(objects))
    assert len(done.stdout.splitlines()) == len(objects)


def test_a_typo_in_an_object_would_be_seen(with_monitoring: ControlPlane) -> None:
    dry = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-f", "-")
    for kind, field in (("PodMonitor", "podMetricsEndpoint"), ("NetworkPolicy", "ingres")):
        wrong = next(each for each in rendered(f"--values={VARIANTS['everything']}") if each["kind"] == kind)
        refused = with_monitoring.kubectl(
            *dry, input=yaml.safe_dump({**wrong, "spec": {**wrong["spec"], field: []}}), check=False
        )
        assert field in refused.stderr


@contextmanager
def installed(cluster: ControlPlane, namespace: str, *arguments: str) -> Iterator[None]:
    options = ("--namespace", namespace, "--skip-crds", *arguments)
    helm("install", "paceline", CHART, *options, kubeconfig=cluster.kubeconfig)
    try:
        yield
    finally:
        helm("uninstall", "paceline", "--namespace", namespace, kubeconfig=cluster.kubeconfig)


def test_pods_are_admitted_where_the_restricted_standard_is_enforced(crds: ControlPlane, namespace: str) -> None:
    crds.kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    objects = rendered(namespace=namespace)
    operator = {**one(objects, "Deployment")["spec"]["template"], "apiVersion": "v1", "kind": "Pod"}
    operator["metadata"] = {**operator["metadata"], "name": "operator", "namespace": namespace}
    with installed(crds, namespace):
        dry = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
        for pod in (one(objects, "Pod"), operator):
            crds.kubectl(*dry, input=yaml.safe_dump(pod))
        lax = {**operator, "spec": {**operator["spec"], "securityContext": {}}}
        refused = crds.kubectl(*dry, input=yaml.safe_dump(lax), check=False)
        assert 'violates PodSecurity "restricted' in refused.stderr


def test_an_upgrade_and_a_new_installation_keep_the_master_key(crds: ControlPlane, namespace: str) -> None:
    core = client.CoreV1Api(crds.api)

    def key() -> str:
        stored: str = core.read_namespaced_secret("paceline-master-key", namespace).data["keys"]
        return stored

    with installed(crds, namespace):
        first = key()
        upgrade = ("upgrade", "paceline", CHART, "--namespace", namespace, "--set=replicas=2")
        helm(*upgrade, kubeconfig=crds.kubeconfig)
        assert key() == first
    assert key() == first
    with installed(crds, namespace, "--take-ownership"):
        assert key() == first


def account_kubeconfig(cluster: ControlPlane, namespace: str) -> Path:
    """Of the operator's service account, as its pod would have it."""
    token = cluster.kubectl("-n", namespace, "create", "token", "paceline").stdout.strip()
    return cluster.write_kubeconfig(f"operator-{namespace}", token=token)


def test_the_lease_alone_goes_into_the_level_for_leader_elections(crds: ControlPlane, namespace: str) -> None:
    """As the API server says with each answer, a 404 included."""
    with installed(crds, namespace, "--set=leaseFlowSchema.enabled=true"):
        uid = crds.kubectl("get", "flowschema", f"{namespace}-paceline-lease", "-o=jsonpath={.metadata.uid}").stdout
        with config.new_client_from_config(str(account_kubeconfig(crds, namespace))) as api:
            lease = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE_NAME}"
            wait_until(lambda: _flow(api, lease) == uid, "the Lease's flow", timeout_seconds=START_SECONDS)
            assert _flow(api, f"/apis/apps/v1/namespaces/{namespace}/deployments") not in ("", uid)


def _flow(api: client.ApiClient, path: str) -> str:
    """UID of the FlowSchema that a GET fell under."""
    answer = api.call_api(*api.param_serialize("GET", path, auth_settings=["BearerToken"]))
    return str(answer.headers.get("X-Kubernetes-Pf-Flowschema-Uid", ""))


@pytest.mark.parametrize("scope", ["cluster", "namespace"])
def test_the_operator_works_with_the_rights_of_its_service_account_alone(
    crds: ControlPlane, namespace: str, tmp_path: Path, scope: str
) -> None:
    arguments = [] if scope == "cluster" else [f"--set=watchNamespaces={{{namespace}}}"]
    (tmp_path / "keys").write_text(64 * "k")
    with installed(crds, namespace, *arguments):
        environment = {
            "PATH": os.environ["PATH"],
            "KUBECONFIG": str(account_kubeconfig(crds, namespace)),
            "PACELINE_NAMESPACE": namespace,
            "PACELINE_MASTER_KEY_FILE": str(tmp_path / "keys"),
            "PACELINE_HTTP_HOST": "127.0.0.1",
            "PACELINE_HTTP_PORT": "0",
            "PACELINE_WATCH_NAMESPACES": namespace,
        }
        if scope == "cluster":
            del environment["PACELINE_WATCH_NAMESPACES"]
        command = [sys.executable, "-m", "paceline_operator"]
        daemon = Daemon(
            "operator", ["env", "-i", *(f"{name}={value}" for name, value in environment.items()), *command], tmp_path
        )
        try:
            objects = client.CustomObjectsApi(crds.api)
            create(objects, namespace, thing(KIND_SERVING, {}))
            child = f"/apis/apps/v1/namespaces/{namespace}/deployments/chat"
            wait_until(lambda: crds.get(child), "the Deployment", timeout_seconds=START_SECONDS, daemons=(daemon,))
            where = (GROUP, VERSION, namespace, PLURAL_SERVING, "chat")

            def accepted() -> bool:
                status = objects.get_namespaced_custom_object(*where).get("status", {})
                return any(
                    each["type"] == "Accepted" and each["status"] == "True" for each in status.get("conditions", [])
                )

            wait_until(accepted, "status Accepted", timeout_seconds=START_SECONDS, daemons=(daemon,))
            lease = client.CoordinationV1Api(crds.api).read_namespaced_lease(LEASE_NAME, namespace)
            assert lease.spec.holder_identity
            crds.kubectl("-n", namespace, "delete", "deployment", "chat")
            wait_until(
                lambda: crds.get(child), "the Deployment again", timeout_seconds=START_SECONDS, daemons=(daemon,)
            )
        finally:
            daemon.stop()
        log = daemon.log.read_text()
        # Namespaces that other tests are just deleting refuse new children: that is no missing right.
        refused = [line for line in log.splitlines() if "forbidden" in line.lower() and DYING not in line]
        assert not refused, "\n".join(refused)


@pytest.mark.parametrize(
    ("verb", "what"),
    [
        ("get", "secrets"),
        ("list", "secrets"),
        ("watch", "secrets"),
        ("create", "pods"),
        ("create", "clusterrolebindings"),
        ("update", "speculativeservings"),
        ("delete", "speculativeservings"),
        ("create", "pods/exec"),
        ("list", "configmaps"),
        ("list", "nodes"),
    ],
)
def test_the_operator_may_not(crds: ControlPlane, module_installation: str, verb: str, what: str) -> None:
    account = f"system:serviceaccount:{module_installation}:paceline"
    asked = crds.kubectl("auth", "can-i", verb, what, "--as", account, "-n", module_installation, check=False)
    assert asked.stdout.strip() == "no"


@pytest.fixture(scope="module")
def module_installation(crds: ControlPlane, module_namespace: str) -> Iterator[str]:
    with installed(crds, module_namespace):
        yield module_namespace
