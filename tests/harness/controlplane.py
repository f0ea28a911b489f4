"""etcd, kube-apiserver and kube-controller-manager in one folder: a real API server with RBAC, no root needed."""

from __future__ import annotations

import base64
import json
import secrets
import shutil
import urllib.error
from dataclasses import dataclass, field
from email.message import Message
from functools import cached_property
from io import BytesIO
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, config

from hack.kubernetes.build import find
from tests.harness.certs import Authority, key_pair
from tests.harness.kubectl import Kubectl
from tests.harness.leaks import AUDIT_LOG, audit_rules, leaks
from tests.harness.ports import free_ports
from tests.harness.processes import Daemon, wait_until

START_TIMEOUT_SECONDS = 60.0
ISSUER = "https://kubernetes.default.svc.cluster.local"
FRONT_PROXY = "front-proxy-client"
SERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


@dataclass(frozen=True)
class User:
    """A user of the API server's token file."""

    name: str
    group: str = ""
    token: str = field(default_factory=lambda: secrets.token_hex(16), repr=False)


@dataclass
class ControlPlane:
    """A control plane below `folder`: start(), stop(); logs stay in `logs_dir`.

    A node's has another `address`, which its pods can reach. Whatever operators wrote and every log is looked through
    at its end: tokens and keys must not be told anywhere.
    """

    folder: Path
    address: str = "127.0.0.1"
    service_network: str = "10.96.0.0/16"
    service_address: str = "10.96.0.1"
    users: dict[str, User] = field(
        default_factory=lambda: {
            "admin": User("admin", "system:masters"),
            "controller-manager": User("system:kube-controller-manager"),
        }
    )
    daemons: list[Daemon] = field(default_factory=list)

    def start(self) -> None:
        """From nothing to an API server that answers ready and a running controller manager: 2 to 3 seconds."""
        try:
            self._start()
        except BaseException:
            self.stop()
            raise

    def _start(self) -> None:
        self.pki.mkdir(parents=True)
        self.logs_dir.mkdir(exist_ok=True)
        self.etcd_port, etcd_peer_port, self.port = free_ports(3)
        tokens = "".join(f'{user.token},{user.name},{user.name},"{user.group}"\n' for user in self.users.values())
        self.token_file.write_text(tokens)
        self.authority = Authority(self.pki)
        self.service_account_key, self.service_account_public = key_pair(self.pki, "service-accounts")
        self.front_proxy = self.authority.client(FRONT_PROXY, group="test")
        for name in self.users:
            self.write_kubeconfig(name)
        etcd_url, peer_url = f"http://127.0.0.1:{self.etcd_port}", f"http://127.0.0.1:{etcd_peer_port}"
        etcd = self.daemon(
            "etcd",
            *("--data-dir", self.data, "--unsafe-no-fsync", "--log-level", "warn"),
            *("--listen-client-urls", etcd_url, "--advertise-client-urls", etcd_url),
            *("--listen-peer-urls", peer_url, "--initial-advertise-peer-urls", peer_url),
            *("--initial-cluster", f"default={peer_url}"),
        )
        server = self.daemon("kube-apiserver", *self._apiserver("kube-apiserver", etcd_url, self.port, self.audit_log))
        wait_until(
            lambda: self.get("/readyz") == "ok",
            "the API server to be ready",
            timeout_seconds=START_TIMEOUT_SECONDS,
            daemons=(etcd, server),
        )
        self.daemon("kube-controller-manager", *self._controller_manager())

    def stop(self) -> None:
        """End every process, newest first, and drop the data; logs stay."""
        for daemon in reversed(self.daemons):
            # Nothing is kept, so nothing has to be finished.
            daemon.stop(grace_seconds=0)
        keys = self._master_keys()
        self.daemons.clear()
        if "api" in self.__dict__:
            self.api.close()
            del self.api
        shutil.rmtree(self.data, ignore_errors=True)
        found = leaks(self.folder, keys)
        assert not found, f"tokens or keys are told: {found[:5]}"

    def _master_keys(self) -> list[str]:
        """Of the operators that were started here."""
        settings = [argument for daemon in self.daemons for argument in daemon.command if isinstance(argument, str)]
        files = {Path(text.partition("=")[2]) for text in settings if text.startswith("PACELINE_MASTER_KEY_FILE=")}
        return [key for file in files if file.exists() for key in file.read_text().split()]

    @property
    def audit_log(self) -> Path:
        """A JSON object a line."""
        return self.folder / AUDIT_LOG

    def audit_rules(self) -> list[dict[str, Any]]:
        """What of all requests is noted there."""
        return audit_rules()

    @property
    def pki(self) -> Path:
        """Keys, certificates and kubeconfigs."""
        return self.folder / "pki"

    @property
    def logs_dir(self) -> Path:
        """One log a process."""
        return self.folder / "logs"

    @property
    def data(self) -> Path:
        """etcd's."""
        return self.folder / "etcd"

    @property
    def token_file(self) -> Path:
        """Users by bearer token, in the API server's CSV format."""
        return self.pki / "tokens.csv"

    @property
    def url(self) -> str:
        """Base URL of the API server."""
        return f"https://{self.address}:{self.port}"

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator (group system:masters)."""
        return self.pki / "admin.kubeconfig"

    @cached_property
    def api(self) -> client.ApiClient:
        """Client library, as administrator."""
        return config.new_client_from_config(config_file=str(self.kubeconfig))

    @cached_property
    def _connections(self) -> urllib3.PoolManager:
        """Kept open: tests look ten times a second, and a handshake takes longer than an answer."""
        retries = urllib3.Retry(1, redirect=False, status=False)  # the server may have closed one meanwhile
        return urllib3.PoolManager(ca_certs=str(self.authority.certificate), timeout=5.0, retries=retries, maxsize=32)

    def daemon(self, name: str, *arguments: str | Path, program: str | Path | None = None) -> Daemon:
        """Start one more program of this cluster; it is stopped with it."""
        started = Daemon(name, [program or find(name), *arguments], self.logs_dir)
        self.daemons.append(started)
        return started

    def second_apiserver(self, name: str, etcd_url: str) -> tuple[str, Daemon]:
        """One more API server over the same data, which it reaches at `etcd_url`: its base URL, once it is ready."""
        (port,) = free_ports(1)
        server = self.daemon(
            name,
            *self._apiserver(name, etcd_url, port, self.folder / f"audit-{name}.log"),
            program=find("kube-apiserver"),
        )
        url = f"https://{self.address}:{port}"
        wait_until(
            lambda: self.get("/readyz", url) == "ok",
            f"{name} to be ready",
            timeout_seconds=START_TIMEOUT_SECONDS,
            daemons=(server,),
        )
        return url, server

    def restart(self, name: str) -> None:
        """Kill one of the programs and start it again as it was, on what it left behind."""
        (killed,) = (daemon for daemon in self.daemons if daemon.name == name)
        killed.stop(grace_seconds=0)
        self.daemons[self.daemons.index(killed)] = Daemon(name, killed.command, self.logs_dir)

    def get(self, path: str, url: str = "") -> str:
        """Body of `GET path` as administrator, of the API server at `url` or else of the first; urllib's errors."""
        headers, whole = {"Authorization": f"Bearer {self.users['admin'].token}"}, (url or self.url) + path
        try:
            answer = self._connections.request("GET", whole, headers=headers)
        except urllib3.exceptions.HTTPError as error:
            raise urllib.error.URLError(str(error)) from error
        if answer.status >= 400:
            raise urllib.error.HTTPError(whole, answer.status, answer.reason or "", Message(), BytesIO(answer.data))
        return answer.data.decode()

    @property
    def kubectl(self) -> Kubectl:
        """kubectl(*arguments, input=None, check=True), as administrator."""
        return Kubectl(self.kubeconfig)

    def established(self, *what: str | Path) -> None:
        """Wait until definitions of kinds are served. Just after they were applied they have no status yet, and
        `kubectl wait` ends with an error where there is none."""
        wait = ("wait", "--for=condition=Established", "--timeout=30s", *what)
        wait_until(lambda: bool(self.kubectl(*wait)), "kinds to be served", timeout_seconds=60, every_seconds=0.2)

    def write_kubeconfig(self, user: str, *, token: str | None = None) -> Path:
        """`<user>.kubeconfig`: for one of `users`, or for anybody with the given token (a service account's)."""
        authority = base64.b64encode(self.authority.certificate.read_bytes()).decode()
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"token": token or self.users[user].token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": user}}],
        }
        path = self.pki / f"{user}.kubeconfig"
        path.write_text(json.dumps(content))
        return path

    def _apiserver(self, name: str, etcd_url: str, port: int, audit_log: Path) -> list[str | Path]:
        certificate, key = self.authority.serving(name, [self.address, self.service_address], SERVER_NAMES)
        kubelet_certificate, kubelet_key = self.authority.client(f"{name}-kubelet", group="system:masters")
        front_certificate, front_key = self.front_proxy
        policy = self.folder / "audit-policy.yaml"
        content = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": self.audit_rules()}
        policy.write_text(json.dumps({**content, "omitStages": ["RequestReceived"], "omitManagedFields": True}))
        return [
            *("--etcd-servers", etcd_url, "--bind-address", self.address, "--advertise-address", self.address),
            *("--secure-port", str(port), "--tls-cert-file", certificate, "--tls-private-key-file", key),
            *("--client-ca-file", self.authority.certificate, "--token-auth-file", self.token_file),
            *("--service-account-issuer", ISSUER, "--service-account-key-file", self.service_account_public),
            *("--service-account-signing-key-file", self.service_account_key),
            *("--service-cluster-ip-range", self.service_network, "--authorization-mode", "Node,RBAC"),
            *("--enable-admission-plugins", "NodeRestriction", "--allow-privileged"),
            *("--kubelet-client-certificate", kubelet_certificate, "--kubelet-client-key", kubelet_key),
            *("--kubelet-preferred-address-types", "InternalIP"),
            # The aggregation layer: how it shows itself to, and names users to, an API served by somebody else.
            *("--proxy-client-cert-file", front_certificate, "--proxy-client-key-file", front_key),
            *("--requestheader-client-ca-file", self.authority.certificate),
            *("--requestheader-allowed-names", FRONT_PROXY, "--requestheader-username-headers", "X-Remote-User"),
            *("--requestheader-group-headers", "X-Remote-Group"),
            *("--requestheader-extra-headers-prefix", "X-Remote-Extra-"),
            *(f"--audit-policy-file={policy}", f"--audit-log-path={audit_log}", "--audit-log-mode=blocking"),
        ]

    def _controller_manager(self) -> list[str | Path]:
        return [
            *("--kubeconfig", self.pki / "controller-manager.kubeconfig", "--leader-elect=false", "--secure-port", "0"),
            *("--use-service-account-credentials", "--root-ca-file", self.authority.certificate),
            *("--service-account-private-key-file", self.service_account_key),
            # With the default of 20 requests a second a new namespace waits seconds for its service account.
            *("--kube-api-qps", "500", "--kube-api-burst", "1000"),
            *("--horizontal-pod-autoscaler-sync-period", "1s"),
        ]
