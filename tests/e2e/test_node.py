"""The node itself: real pods behind a Service with a name, and nothing of the machine touched."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import images
from tests.harness.node import NAMESPACES, Node, unavailable
from tests.harness.nodeconfig import ADDRESS
from tests.harness.nodeinit import KERNEL_SETTINGS
from tests.harness.processes import wait_until

pytestmark = pytest.mark.node

SERVER = ["/usr/bin/python3", "-m", "http.server", "8000"]
LABELS = {"app": "web"}
WEB = {
    "apiVersion": "v1",
    "kind": "List",
    "items": [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": 2,
                "selector": {"matchLabels": LABELS},
                "template": {
                    "metadata": {"labels": LABELS},
                    "spec": {
                        "terminationGracePeriodSeconds": 0,
                        "containers": [
                            {
                                "name": "web",
                                "image": images.HOST,
                                "command": SERVER,
                                "readinessProbe": {"httpGet": {"port": 8000}, "periodSeconds": 1},
                                "volumeMounts": [{"name": "usr", "mountPath": "/usr", "readOnly": True}],
                            },
                            {"name": "pause", "image": images.PAUSE},
                        ],
                        "volumes": [{"name": "usr", "hostPath": {"path": "/usr"}}],
                    },
                },
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"selector": LABELS, "ports": [{"port": 80, "targetPort": 8000}]},
        },
    ],
}
FETCH = "import urllib.request as r; print(r.urlopen('http://web/', timeout=5).status)"


def test_pods_run_behind_a_service_and_go(node: Node, node_namespace: str) -> None:
    inside = ("--namespace", node_namespace)
    node.kubectl(*inside, "apply", "-f", "-", input=json.dumps(WEB))
    node.kubectl(*inside, "rollout", "status", "deployment/web", "--timeout=60s")
    answer = node.kubectl(
        *inside, "exec", "deployment/web", "--container", "web", "--", "/usr/bin/python3", "-c", FETCH
    )
    assert answer.stdout == "200\n"
    node.kubectl(*inside, "delete", "deployment/web")
    node.kubectl(*inside, "wait", "--for=delete", "pods", "--selector=app=web", "--timeout=30s")


def test_the_machine_keeps_its_settings_mounts_and_addresses(node: Node) -> None:
    """A kubelet sets kernel.panic_on_oops and others for the whole machine, mounts volumes and moves addresses."""
    assert node.daemon is not None
    namespaces = f"/proc/{node.daemon.process.pid}/ns"
    for setting, value in KERNEL_SETTINGS.items():
        path = Path("/proc/sys", setting)
        before = path.read_text()
        written = f"echo {int(value) + 1} > {path} && cat {path}"
        there = subprocess.run(["nsenter", f"--mount={namespaces}/mnt", "sh", "-c", written], stdout=subprocess.PIPE)
        assert (int(there.stdout), path.read_text()) == (int(value) + 1, before)
    assert "/var/lib/kubelet" not in Path("/proc/self/mounts").read_text()
    assert ADDRESS not in subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout


def test_all_of_it_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    """SIGKILL to the tests must leave no daemon, not even one that has left its session and its parent."""
    reason = unavailable()
    if reason is not None:
        pytest.skip(reason)
    marker = tmp_path.name
    script = (
        "import os, pathlib, sys, time\n"
        "from tests.harness.processes import Daemon\n"
        f"inside = 'setsid sh -c \"sleep 1000; : {marker}\" & touch {tmp_path}/up; wait'\n"
        f"Daemon('node', ['unshare', *{NAMESPACES!r}, 'sh', '-c', inside], pathlib.Path('{tmp_path}'))\n"
        f"while not pathlib.Path('{tmp_path}/up').exists(): time.sleep(0.01)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[2])
    assert (tmp_path / "up").exists()

    def gone() -> bool:
        return not any(marker in _command_line(process) for process in Path("/proc").glob("[0-9]*"))

    wait_until(gone, "the daemons to be gone", timeout_seconds=10)


def _command_line(process: Path) -> str:
    try:
        return (process / "cmdline").read_text()
    except OSError:
        return ""
