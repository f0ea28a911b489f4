"""Configuration of the node's programs. Where a value is not the default, the reason is beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.harness.images import PAUSE

NODE = "node"
ADDRESS = "10.240.0.1"
PODS = "10.244.0.0/24"
SERVICES = "10.96.0.0/16"
DNS_ADDRESS = "10.96.0.10"
CGROUP = "paceline-node"
"""Cgroup of all pods. Not the root's kubepods: a kubelet ends every pod below its root that it does not know."""
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CNI_FOLDERS = (Path("/usr/lib/cni"), Path("/opt/cni/bin"))


def cni_folder() -> Path | None:
    """Where the CNI plugins are installed."""
    return next((folder for folder in CNI_FOLDERS if (folder / "ptp").exists()), None)


def write_all(folder: Path, pki: Path) -> None:
    """containerd.toml, cni/, kubelet.yaml, proxy.yaml and an empty resolv.conf in `folder`."""
    (folder / "cni").mkdir(parents=True)
    (folder / "resolv.conf").touch()
    (folder / "containerd.toml").write_text(_containerd(folder))
    (folder / "cni" / "10-pods.conflist").write_text(json.dumps(_cni()))
    (folder / "kubelet.yaml").write_text(json.dumps(_kubelet(folder, pki)))
    (folder / "proxy.yaml").write_text(json.dumps(_proxy(pki)))


def _containerd(folder: Path) -> str:
    return f"""
version = 2
oom_score = 0
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  # Root without CAP_SYS_RESOURCE may not lower an OOM score, and then every sandbox fails.
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  tolerate_missing_hugetlb_controller = true
[plugins."io.containerd.grpc.v1.cri".cni]
  bin_dir = "{cni_folder()}"
  conf_dir = "{folder}/cni"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
  SystemdCgroup = false
"""


def _cni() -> dict[str, Any]:
    # ptp, not bridge: what goes from pod to pod is routed, so kube-proxy's rules see it without br_netfilter.
    ranges = {"type": "host-local", "ranges": [[{"subnet": PODS}]], "routes": [{"dst": "0.0.0.0/0"}]}
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "ptp", "ipMasq": False, "ipam": ranges}]}


def _kubelet(folder: Path, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": ADDRESS,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "clusterDomain": "cluster.local",
        "clusterDNS": [DNS_ADDRESS],
        "resolvConf": str(folder / "resolv.conf"),
        "podLogsDir": str(folder.parent / "logs" / "pods"),
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "makeIPTablesUtilChains": False,
        # A developer's full disk is no reason to evict, and a collected image cannot be pulled again.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "5s",
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        # A second crash is back after 2 s instead of 20.
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "2s"},
    }


def _proxy(pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "bindAddress": ADDRESS,
        "hostnameOverride": NODE,
        "clusterCIDR": PODS,
        "clientConnection": {"kubeconfig": str(pki / "proxy.kubeconfig")},
        # Machine-wide settings: left alone.
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "oomScoreAdj": 0,
        # With the default of 1 s a pod that is not ready any more may get a request.
        "nftables": {"minSyncPeriod": "50ms", "syncPeriod": "30s"},
    }
