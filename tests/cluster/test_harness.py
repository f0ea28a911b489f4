"""The test cluster itself: a real API server, real controllers, nothing left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from kubernetes import client

from tests.harness.binaries import ensure_built
from tests.harness.controlplane import ControlPlane
from tests.harness.processes import Daemon, wait_until

pytestmark = pytest.mark.cluster

DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "web"},
    "spec": {
        "replicas": 2,
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {"containers": [{"name": "web", "image": "none.invalid/web:1"}]},
        },
    },
}


def test_controllers_make_pods_and_collect_them(control_plane: ControlPlane, namespace: str) -> None:
    control_plane.kubectl("-n", namespace, "apply", "-f", "-", input=json.dumps(DEPLOYMENT))
    core = client.CoreV1Api(control_plane.api)

    def pods(count: int) -> bool:
        return len(core.list_namespaced_pod(namespace).items) == count

    wait_until(lambda: pods(2), "two pods", timeout_seconds=20)
    control_plane.kubectl("-n", namespace, "delete", "deployment", "web")
    wait_until(lambda: pods(0), "no pods", timeout_seconds=20)


def test_service_accounts_are_known_and_may_do_nothing(control_plane: ControlPlane, namespace: str) -> None:
    token = control_plane.kubectl("-n", namespace, "create", "token", "default").stdout.strip()
    kubeconfig = control_plane.write_kubeconfig(f"{namespace}-default", token=token)
    refused = control_plane.kubectl("--kubeconfig", kubeconfig, "get", "pods", check=False)
    assert refused.returncode != 0
    assert f"system:serviceaccount:{namespace}:default" in refused.stderr


def test_kubectl_says_what_failed(control_plane: ControlPlane) -> None:
    with pytest.raises(AssertionError, match="NotFound"):
        control_plane.kubectl("get", "namespace", "absent")


def test_a_cluster_starts_in_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    ensure_built()
    cluster = ControlPlane(tmp_path)
    began = time.monotonic()
    cluster.start()
    assert time.monotonic() - began < 30
    daemons = list(cluster.daemons)
    cluster.stop()
    assert [daemon.process.poll() is not None for daemon in daemons] == [True] * 3
    assert not cluster.data.exists()
    assert (cluster.logs_dir / "kube-apiserver.log").exists()


def test_daemons_die_with_their_parent(tmp_path: Path) -> None:
    script = (
        "import os, pathlib, sys\n"
        "from tests.harness.processes import Daemon\n"
        "print(Daemon('sleep', ['sleep', '1000'], pathlib.Path(sys.argv[1])).process.pid, flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).resolve().parents[2]
    parent = subprocess.run([sys.executable, "-c", script, tmp_path], cwd=root, stdout=subprocess.PIPE, text=True)
    pid = int(parent.stdout)

    def dead() -> bool:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        return state == "Z"

    wait_until(dead, f"process {pid} to die", timeout_seconds=10)


def test_a_daemon_that_exits_is_reported_with_its_last_words(tmp_path: Path) -> None:
    daemon = Daemon("speaker", ["sh", "-c", "echo no such flag; exit 3"], tmp_path)
    with pytest.raises(RuntimeError, match=r"speaker exited with status 3.*\nno such flag"):
        wait_until(lambda: False, "nothing", timeout_seconds=10, daemons=[daemon])
    assert os.path.getsize(daemon.log) > 0


def test_waiting_says_what_for_and_why_not() -> None:
    def probe() -> bool:
        raise ConnectionError("nobody there")

    with pytest.raises(TimeoutError, match=r"waited 0 s for the moon .*ConnectionError: nobody there"):
        wait_until(probe, "the moon", timeout_seconds=0)
