"""A whole node with real pods, in PID, mount and network namespaces of its own, seen from outside."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.harness import cgroups, nodeconfig
from tests.harness.kubectl import Kubectl
from tests.harness.leaks import leaks
from tests.harness.nodeinit import READY
from tests.harness.processes import Daemon, wait_until

ROOT = Path(__file__).resolve().parents[2]
LOCK = Path("/run/paceline-node.lock")
START_TIMEOUT_SECONDS = 120.0
STOP_TIMEOUT_SECONDS = 20.0
PROGRAMS = ("containerd", "ctr", "runc", "nft", "ip", "nsenter", "unshare", "setpriv", "mount", "openssl")
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"
"""Not every root has Debian's sbin folders on PATH, where containerd and kube-proxy look for programs."""
NAMESPACES = ("--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc")


def unavailable() -> str | None:
    """Why this machine cannot run a node; None where it can."""
    if os.geteuid() != 0:
        return "a node needs root"
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if nodeconfig.cni_folder() is None:
        absent.append("CNI plugins")
    if absent:
        return f"not installed: {', '.join(absent)} (hack/setup/packages.sh installs the packages)"
    probe = subprocess.run(
        ["unshare", *NAMESPACES, "mount", "-t", "tmpfs", "tmpfs", "/run"], capture_output=True, text=True
    )
    if probe.returncode:
        return f"no namespaces for root here: {probe.stderr.strip()}"
    if not all(os.access(root, os.W_OK) for root in cgroups.roots()):
        return "cgroups are read-only here"
    return None


@dataclass
class Node:
    """A node below `folder`: start(), stop(); logs stay in `logs_dir`. One on a machine: a second start waits.

    Whatever ends the process that started it, SIGKILL included, ends the node and every pod.
    """

    folder: Path
    daemon: Daemon | None = None
    lock: IO[str] | None = None

    def start(self) -> None:
        """From nothing to a node that takes pods, with cluster DNS: about 10 seconds."""
        self.lock = LOCK.open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        try:
            cgroups.remove(nodeconfig.CGROUP)
            self.logs_dir.mkdir(parents=True)
            command = ["unshare", *NAMESPACES, sys.executable, "-m", "tests.harness.nodeinit", str(self.folder)]
            self.daemon = Daemon("node", command, self.logs_dir, stdin=subprocess.PIPE, folder=ROOT, env={"PATH": PATH})
            ready = self.folder / READY
            wait_until(ready.exists, "the node", timeout_seconds=START_TIMEOUT_SECONDS, daemons=[self.daemon])
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End everything; returns when nothing is left but the logs, in which tokens and keys must not be told."""
        if self.daemon is not None:
            assert self.daemon.process.stdin is not None
            self.daemon.process.stdin.close()
            # Once ready, it ends with its input; until then it does not look.
            if (self.folder / READY).exists():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.daemon.process.wait(STOP_TIMEOUT_SECONDS)
            self.daemon.stop(grace_seconds=0)
            self.daemon = None
        cgroups.remove(nodeconfig.CGROUP)
        key = self.folder / "master-key"
        found = leaks(self.folder, key.read_text().split() if key.exists() else ())
        for name in ("etcd", "config", "pki"):
            shutil.rmtree(self.folder / name, ignore_errors=True)
        if self.lock is not None:
            self.lock.close()
            self.lock = None
        assert not found, f"tokens or keys are told: {found[:5]}"

    def load(self, archive: Path) -> None:
        """Give its pods the image of an archive in Docker's format."""
        assert self.daemon is not None, "the node is not running"
        ctr = [
            "ctr",
            "--address",
            nodeconfig.CONTAINERD_SOCKET,
            "--namespace",
            "k8s.io",
            "images",
            "import",
            str(archive),
        ]
        inside = ["nsenter", f"--mount=/proc/{self.daemon.process.pid}/ns/mnt", *ctr]
        done = subprocess.run(inside, capture_output=True, text=True)
        assert done.returncode == 0, f"{' '.join(inside)}: {done.stderr.strip()}"

    @property
    def logs_dir(self) -> Path:
        """One log a process, and pods/ with every container's."""
        return self.folder / "logs"

    @property
    def kubeconfig(self) -> Path:
        """Of the administrator; usable behind `prefix` only."""
        return self.folder / "pki" / "admin.kubeconfig"

    @property
    def kubectl(self) -> Kubectl:
        """kubectl(*arguments, input=None, check=True), as administrator."""
        return Kubectl(self.kubeconfig, self.prefix)

    def write_kubeconfig(self, user: str, *, token: str) -> Path:
        """`<user>.kubeconfig` for whoever has the token (a service account)."""
        content = json.loads(self.kubeconfig.read_text())
        content["users"][0]["user"] = {"token": token}
        path = self.kubeconfig.with_name(f"{user}.kubeconfig")
        path.write_text(json.dumps(content))
        return path

    @property
    def prefix(self) -> list[str]:
        """Goes before a command that is to run in the node's network: it reaches pods, services and the API server."""
        assert self.daemon is not None, "the node is not running"
        return ["nsenter", f"--net=/proc/{self.daemon.process.pid}/ns/net"]
