"""Operators as processes of their own on a real API server, with the rights of the chart's service account alone."""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from kubernetes import client
from prometheus_client.parser import text_string_to_metric_families

from paceline_operator import naming
from paceline_operator.clients.kube import RESOURCES
from paceline_operator.kinds import OPTIONAL
from paceline_operator.leadership import LEASE_NAME
from paceline_operator.plan import CHILD_KINDS
from tests.harness.chart import rendered
from tests.harness.controlplane import ControlPlane
from tests.harness.ports import free_ports
from tests.harness.processes import Daemon, wait_until

Object = dict[str, Any]
NAMED = ("ServiceAccount", "NetworkPolicy", "Service", "PodDisruptionBudget", "Deployment")
"""Kinds of children that every serving has one of, of its own name."""
KEY = "a-key-of-the-tests-that-is-long-enough"
PATIENCE_SECONDS = 60.0
"""On a machine that other suites share."""


@dataclass
class Place:
    """One namespace of a cluster."""

    cluster: ControlPlane
    namespace: str

    def path(self, kind: str, name: str = "", subresource: str = "") -> str:
        known = {**RESOURCES, **OPTIONAL}
        group_version, plural = known.get(kind, ("apps/v1", f"{kind.lower()}s"))
        root = "/apis" if "/" in group_version else "/api"
        parts = (root, group_version, "namespaces", self.namespace, plural, name, subresource)
        return "/".join(part for part in parts if part)

    def get(self, kind: str, name: str) -> Object | None:
        try:
            found: Object = json.loads(self.cluster.get(self.path(kind, name)))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        return found

    def list(self, kind: str) -> list[Object]:
        items: list[Object] = json.loads(self.cluster.get(self.path(kind)))["items"]
        return items

    def patch(self, kind: str, name: str, body: Object, subresource: str = "") -> Object:
        """A merge patch, as any user's."""
        api = self.cluster.api
        headers = {"Content-Type": "application/merge-patch+json", "Accept": "application/json"}
        path = self.path(kind, name, subresource)
        request = api.param_serialize("PATCH", path, header_params=headers, body=body, auth_settings=["BearerToken"])
        response = api.call_api(*request)
        answer = response.read()
        assert 200 <= response.status < 300, answer
        result: Object = json.loads(answer)
        return result

    def kubectl(self, *arguments: str | Path, **options: Any) -> str:
        return str(self.cluster.kubectl("-n", self.namespace, *arguments, **options).stdout)

    def serve(self, name: str, **spec: Any) -> None:
        """Apply a small serving."""
        body = {
            "apiVersion": naming.API_VERSION,
            "kind": naming.KIND_SERVING,
            "metadata": {"name": name},
            "spec": {"model": {"source": "hf://owner/target"}, "speculation": {"method": "ngram"}, **spec},
        }
        self.kubectl("apply", "-f", "-", input=json.dumps(body))

    def wait(self, what: str, probe: Callable[[], Any], seconds: float = PATIENCE_SECONDS) -> Any:
        return wait_until(probe, what, timeout_seconds=seconds, every_seconds=0.1)

    def child(self, kind: str, name: str) -> Object:
        """A child, waited for."""
        return dict(self.wait(f"{kind} {name}", lambda: self.get(kind, name)))

    def conditions(self, name: str, of: str = naming.KIND_SERVING) -> dict[str, Object]:
        found = self.get(of, name) or {}
        return {each["type"]: each for each in found.get("status", {}).get("conditions", [])}

    def condition(self, name: str, kind: str, reason: str, of: str = naming.KIND_SERVING) -> Object:
        """The condition once it has this reason."""

        def found() -> Object | None:
            condition = self.conditions(name, of).get(kind, {})
            return condition if condition.get("reason") == reason else None

        try:
            return dict(self.wait(f"{kind} of {name} to be {reason}", found))
        except TimeoutError as error:
            raise AssertionError(f"{error}; it is {self.conditions(name, of).get(kind)}") from None

    def versions(self) -> dict[str, str]:
        """resourceVersion of everything here, by kind/name; Lease and Events left out."""
        kinds = [kind for kind in RESOURCES if kind not in ("Lease", "Event")]
        return {
            f"{kind}/{item['metadata']['name']}": item["metadata"]["resourceVersion"]
            for kind in kinds
            for item in self.list(kind)
        }

    def children(self) -> dict[str, str]:
        """As `versions`, of our children alone, and blind to what their controllers count in their status."""
        found = {}
        for kind in (*CHILD_KINDS, "Secret"):
            for item in self.list(kind):
                meta = item["metadata"]
                found[f"{kind}/{meta['name']}"] = str(meta.get("generation", meta["resourceVersion"]))
        return found

    def events(self, reason: str) -> Sequence[Object]:
        return [event for event in self.list("Event") if event.get("reason") == reason]

    def lease(self) -> Object:
        return dict((self.get("Lease", LEASE_NAME) or {}).get("spec", {}))


@dataclass
class Operator:
    """One process."""

    daemon: Daemon
    port: int

    def metrics(self) -> dict[tuple[str, ...], float]:
        """(name, label values ...) -> value"""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
            text = answer.read().decode()
        return {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def healthy(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/healthz", timeout=5) as answer:
            return bool(answer.status == 200)

    def leads(self) -> bool:
        return self.metrics().get(("paceline_leader",)) == 1.0

    def writes(self) -> dict[tuple[str, ...], float]:
        """(kind, verb, code in the order of the labels) -> requests that change something, Leases left out."""
        made = {key[1:]: value for key, value in self.metrics().items() if key[0] == "paceline_api_writes_total"}
        return {labels: value for labels, value in made.items() if "Lease" not in labels}

    def log(self) -> str:
        return self.daemon.log.read_text(errors="replace")


def account(cluster: ControlPlane, namespace: str, *, watch: str = "") -> Path:
    """Install the chart's service account and roles; the kubeconfig of its token."""
    arguments = (f"--set=watchNamespaces={{{watch}}}",) if watch else ()
    kinds = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
    documents = [d for d in rendered(*arguments, namespace=namespace) if d["kind"] in kinds]
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(documents))
    token = cluster.kubectl("-n", namespace, "create", "token", "paceline").stdout.strip()
    return cluster.write_kubeconfig(f"operator-{namespace}", token=token)


def start(
    cluster: ControlPlane,
    name: str,
    namespace: str,
    kubeconfig: Path,
    *,
    watch: str = "",
    lease_seconds: int = 15,
    more: Mapping[str, object] | None = None,
) -> Operator:
    """`watch` empty: all namespaces. The Lease is in `namespace`. `more` of its environment."""
    key = cluster.folder / "master-key"
    if not key.exists() or key.read_text() != KEY:  # another operator may be reading it
        key.write_text(KEY)
    (port,) = free_ports(1)
    environment = {
        "KUBECONFIG": kubeconfig,
        "PACELINE_NAMESPACE": namespace,
        "PACELINE_MASTER_KEY_FILE": key,
        "PACELINE_HTTP_HOST": "127.0.0.1",
        "PACELINE_HTTP_PORT": port,
        "PACELINE_LEASE_SECONDS": lease_seconds,
        "PACELINE_WATCH_NAMESPACES": watch,
        "PACELINE_IDENTITY": name,
        **(more or {}),
    }
    settings = [f"{variable}={value}" for variable, value in environment.items()]
    command = [sys.executable, "-m", "paceline_operator"]
    return Operator(cluster.daemon(name, *settings, *command, program="env"), port)


def wait_for_leader(*operators: Operator, seconds: float = PATIENCE_SECONDS) -> tuple[Operator, float]:
    """The one that leads, and the seconds it took."""
    begun = time.monotonic()
    daemons = [operator.daemon for operator in operators]

    def leader() -> Operator | None:
        return next((operator for operator in operators if operator.leads()), None)

    found = wait_until(leader, "a leader", timeout_seconds=seconds, daemons=daemons)
    return found, time.monotonic() - begun


def core(cluster: ControlPlane) -> client.CoreV1Api:
    return client.CoreV1Api(cluster.api)
