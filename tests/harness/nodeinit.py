"""The node from inside: run as the first process of its own PID, mount and network namespaces (see node.py).

Everything it starts, mounts and configures lives in these namespaces and is gone, by the kernel's hand, with this
process: no other way to end it is needed. Cgroups alone have no namespace of that kind; node.py removes them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.harness import cgroups, images, nodeconfig
from tests.harness.controlplane import ControlPlane, User
from tests.harness.processes import Daemon, wait_until

PRIVATE_FOLDERS = ("/run", "/var/lib", "/var/log")
"""Where containerd, CNI and kubelet keep their state: in memory here, so that the machine's own is neither seen nor
touched (and overlayfs works whatever the machine's root is)."""
KERNEL_SETTINGS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What a kubelet sets for the whole machine if it finds other values (its ContainerManager's setupKernelTunables)."""
READY = "ready"
"""File that appears in the folder when the node takes pods."""


def main() -> int:
    """`nodeinit FOLDER`: bring the node up, keep it until standard input ends."""
    child = os.fork()
    if child:
        return _reap(child)
    _run(Path(sys.argv[1]))
    return 0


def _reap(child: int) -> int:
    """The first process of a PID namespace inherits all orphans."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def _run(folder: Path) -> None:
    _mounts()
    _network()
    cgroups.create(nodeconfig.CGROUP)
    cluster = ControlPlane(folder, address=nodeconfig.ADDRESS, service_network=nodeconfig.SERVICES)
    cluster.users |= {
        "scheduler": User("system:kube-scheduler"),
        "kubelet": User(f"system:node:{nodeconfig.NODE}", "system:nodes"),
        "proxy": User("system:kube-proxy"),
    }
    config = folder / "config"
    nodeconfig.write_all(config, cluster.pki)
    containerd = cluster.daemon("containerd", "--config", config / "containerd.toml", program="containerd")
    cluster.start()
    _import_images(containerd)
    _start(cluster, config)
    _wait(cluster)
    (folder / READY).touch()
    sys.stdin.read()


def _mounts() -> None:
    # Shared again among ourselves: volumes that kubelet mounts must reach containerd's containers.
    _command("mount", "--make-rshared", "/")
    for private in PRIVATE_FOLDERS:
        _command("mount", "-t", "tmpfs", "tmpfs", private)
    for setting, value in KERNEL_SETTINGS.items():
        pretended = Path("/run/sysctl") / setting
        pretended.parent.mkdir(parents=True, exist_ok=True)
        pretended.write_text(value)
        _command("mount", "--bind", str(pretended), f"/proc/sys/{setting}")


def _network() -> None:
    """The node's address on its loopback: nothing else is there, so no packet can leave."""
    _command("ip", "link", "set", "lo", "up")
    _command("ip", "address", "add", f"{nodeconfig.ADDRESS}/32", "dev", "lo")
    # A packet is routed before kube-proxy's rules give it a pod's address: without a route it would end there.
    _command("ip", "route", "add", nodeconfig.SERVICES, "dev", "lo", "src", nodeconfig.ADDRESS)
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _import_images(containerd: Daemon) -> None:
    # ctr waits 10 s for a socket that is not there yet.
    socket = Path(nodeconfig.CONTAINERD_SOCKET)
    wait_until(socket.exists, "containerd's socket", timeout_seconds=30, daemons=[containerd])
    for image in images.write_all(Path("/run")):
        _command("ctr", "--namespace", "k8s.io", "images", "import", str(image))
        image.unlink()


def _start(cluster: ControlPlane, config: Path) -> None:
    limits = ("--kube-api-qps", "500", "--kube-api-burst", "1000")
    scheduler = cluster.pki / "scheduler.kubeconfig"
    cluster.daemon("kube-scheduler", "--kubeconfig", scheduler, "--leader-elect=false", "--secure-port", "0", *limits)
    identity = ("--hostname-override", nodeconfig.NODE, "--node-ip", nodeconfig.ADDRESS)
    kubeconfig = cluster.pki / "kubelet.kubeconfig"
    cluster.daemon("kubelet", "--config", config / "kubelet.yaml", "--kubeconfig", kubeconfig, *identity)
    cluster.daemon("kube-proxy", "--config", config / "proxy.yaml")


def _wait(cluster: ControlPlane) -> None:
    def ready() -> bool:
        return (
            cluster.kubectl("wait", "--for=condition=Ready", f"node/{nodeconfig.NODE}", "--timeout=1s").returncode == 0
        )

    wait_until(ready, "the node to be Ready", timeout_seconds=60, daemons=cluster.daemons)
    cluster.kubectl("apply", "-f", Path(__file__).with_name("coredns.yaml"))
    cluster.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout=50s")


def _command(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed with status {done.returncode}: {done.stderr.strip()}")


if __name__ == "__main__":
    sys.exit(main())
