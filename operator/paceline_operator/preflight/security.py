"""What of a user's overrides makes engine pods less safe than paceline renders them: told, never prevented.

Rendered pods are within the Pod Security Standard `restricted`, have a read-only root besides, no token of the API
server and no development routes (those alone are refused: overrides.py).
https://kubernetes.io/docs/concepts/security/pod-security-standards/ is the source of what `restricted` means.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from paceline_operator.api.engine import Engine
from paceline_operator.preflight.arguments import name_of

TEMPLATE = "engine.podTemplate.spec"
ENGINE_CONTAINER = "engine"
PREFLIGHT_CONTAINER = "paceline-preflight"
"""It is as its engine is: what weakens that is named once."""
VOLUMES = frozenset(
    {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "image",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
)
"""Kinds of volumes that `restricted` allows, and `image`, which is read-only by nature."""
SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ping_group_range",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_rmem",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.tcp_wmem",
    }
)
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
VARIABLES = {
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "messages between vLLM's processes may hold any code",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "whoever reaches the serving port can load adapters from any path or hub",
    "VLLM_DEBUG_LOG_API_SERVER_RESPONSE": "answers are written to the log",
}
ARGUMENTS = {
    "--trust-remote-code": "code from the model's repository runs in the engine",
    "--trust-request-chat-template": "a request may bring a template, which is a program",
    "--trust-request-mm-kwargs": "a request sets options of the model's processor",
    "--allowed-local-media-path": "a request may read files of the container",
    "--enable-prompt-embeds": "a request may bring tensors, which crash an engine if they do not fit",
    "--enable-mm-embeds": "a request may bring tensors, which crash an engine if they do not fit",
    "--enable-tokenizer-info-endpoint": "chat templates and the tokenizer's settings are shown to any client",
    "--enable-log-requests": "prompts are written to the log",
    "--enable-log-outputs": "answers are written to the log",
    "--profiler-config": "whoever reaches the serving port can start and stop the profiler",
    "--middleware": "code that is named there sees every request",
    "--api-key": "the key stands in the object and in the process list: put it into a Secret and VLLM_API_KEY",
}
"""Argument of vLLM -> what it opens (vLLM 0.32 and 0.33: entrypoints/common/cli_args.py, config/model.py)."""
_SECRET = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY|CREDENTIALS)$")


class Weakness(NamedTuple):
    """One override and what it gives up."""

    field: str
    """Under spec."""
    weakens: str
    restricted: bool = False
    """A namespace that enforces the Pod Security Standard `restricted` refuses the pods."""


def weaknesses(template: Mapping[str, Any], engine: Engine) -> tuple[Weakness, ...]:
    """Of a pod template as rendered, overrides included, and of what the spec says besides. Any shape is borne."""
    pod = _map(template.get("spec"))
    return (*_pod(pod, _map(engine.pod_template).get("spec")), *_containers(pod), *_settings(engine))


def _pod(pod: Mapping[str, Any], override: Any) -> Iterator[Weakness]:
    for field, shares in (("hostNetwork", "network"), ("hostPID", "processes"), ("hostIPC", "shared memory")):
        if pod.get(field):
            yield Weakness(f"{TEMPLATE}.{field}", f"the pod shares the node's {shares}", restricted=True)
    if pod.get("shareProcessNamespace"):
        yield Weakness(f"{TEMPLATE}.shareProcessNamespace", "other containers see the engine's memory and token")
    if pod.get("automountServiceAccountToken") is not False:
        yield Weakness(f"{TEMPLATE}.automountServiceAccountToken", "the pod holds a token of the API server")
    if "serviceAccountName" in _map(override):
        yield Weakness(f"{TEMPLATE}.serviceAccountName", "the pod has the rights of another service account")
    context = _map(pod.get("securityContext"))
    for sysctl in _items(context.get("sysctls")):
        if sysctl.get("name") not in SYSCTLS:
            where = f"{TEMPLATE}.securityContext.sysctls"
            yield Weakness(where, f"the sysctl {sysctl.get('name')} is not a safe one", restricted=True)
    # What the pod leaves open its containers may say: they are looked at with what they inherit.
    said = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}} | {
        field: value for field, value in context.items() if value is not None
    }
    yield from _context(said, f"{TEMPLATE}.securityContext")
    for volume in _items(pod.get("volumes")):
        where = f"{TEMPLATE}.volumes[{volume.get('name')}]"
        for kind in sorted(set(volume) - VOLUMES - {"name"}):
            yield Weakness(where, f"a {kind} volume reaches outside of the pod", restricted=True)
        for source in _items(_map(volume.get("projected")).get("sources")):
            if "serviceAccountToken" in source:
                yield Weakness(where, "the pod holds a token of a service account")


def _containers(pod: Mapping[str, Any]) -> Iterator[Weakness]:
    shared = _map(pod.get("securityContext"))
    engine = [one for one in _items(pod.get("containers")) if one.get("name") == ENGINE_CONTAINER]
    same = [one.get("securityContext") for one in engine]
    for kind in ("containers", "initContainers"):
        for container in _items(pod.get(kind)):
            if container.get("name") == PREFLIGHT_CONTAINER and container.get("securityContext") in same:
                continue
            where = f"{TEMPLATE}.{kind}[{container.get('name')}]"
            yield from _container(container, shared, where)
            if container.get("name") == ENGINE_CONTAINER and container.get("envFrom"):
                yield Weakness(f"{where}.envFrom", "variables come from objects that paceline does not read")


def _container(container: Mapping[str, Any], shared: Mapping[str, Any], where: str) -> Iterator[Weakness]:
    context = _map(container.get("securityContext"))
    where_context = f"{where}.securityContext"
    if context.get("privileged"):
        yield Weakness(f"{where_context}.privileged", "the container can do what the node can", restricted=True)
    if context.get("allowPrivilegeEscalation") is not False:
        yield Weakness(
            f"{where_context}.allowPrivilegeEscalation", "its processes can gain privileges", restricted=True
        )
    capabilities = _map(context.get("capabilities"))
    if "ALL" not in _texts(capabilities.get("drop")):
        yield Weakness(f"{where_context}.capabilities.drop", "it keeps the runtime's capabilities", restricted=True)
    if added := sorted(_texts(capabilities.get("add")) - {"NET_BIND_SERVICE"}):
        yield Weakness(f"{where_context}.capabilities.add", f"it has {', '.join(added)}", restricted=True)
    if context.get("readOnlyRootFilesystem") is not True:
        yield Weakness(f"{where_context}.readOnlyRootFilesystem", "its root file system is writable")
    if context.get("procMount") not in (None, "Default"):
        yield Weakness(f"{where_context}.procMount", "it sees the kernel's interfaces unmasked", restricted=True)
    # A container's own word goes before the pod's.
    for field in ("runAsNonRoot", "seccompProfile"):
        if field not in context and field in shared:
            context = {**context, field: shared[field]}
    yield from _context(context, where_context)
    for port in _items(container.get("ports")):
        if port.get("hostPort"):
            yield Weakness(f"{where}.ports", f"port {port['hostPort']} of the node leads to it", restricted=True)


def _context(context: Mapping[str, Any], where: str) -> Iterator[Weakness]:
    """What a pod's and a container's security context have in common."""
    if context.get("runAsNonRoot") is not True:
        yield Weakness(f"{where}.runAsNonRoot", "it may run as root", restricted=True)
    if context.get("runAsUser") == 0:
        yield Weakness(f"{where}.runAsUser", "it runs as root", restricted=True)
    if _map(context.get("seccompProfile")).get("type") not in ("RuntimeDefault", "Localhost"):
        yield Weakness(f"{where}.seccompProfile", "every system call is open to it", restricted=True)
    if _map(context.get("appArmorProfile")).get("type") not in (None, "RuntimeDefault", "Localhost"):
        yield Weakness(f"{where}.appArmorProfile", "it runs without AppArmor", restricted=True)
    selinux = _map(context.get("seLinuxOptions"))
    if selinux.get("type", "") not in SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield Weakness(f"{where}.seLinuxOptions", "it chooses its own SELinux context", restricted=True)
    if _map(context.get("windowsOptions")).get("hostProcess"):
        yield Weakness(f"{where}.windowsOptions.hostProcess", "it is a process of the node", restricted=True)


def _settings(engine: Engine) -> Iterator[Weakness]:
    for variable in engine.env:
        where = f"engine.env[{variable.name}]"
        if variable.name in VARIABLES and variable.value.strip().lower() not in ("", "0", "false"):
            yield Weakness(where, VARIABLES[variable.name])
        if variable.value and _SECRET.search(variable.name):
            yield Weakness(where, "the value stands in the object for whoever may read it: use a Secret")
    for element in engine.extra_args:
        name = name_of(element)
        # argparse takes any unambiguous beginning of a name.
        meant = next((one for one in ARGUMENTS if name and len(name) > len("--") and one.startswith(name)), None)
        if meant:
            yield Weakness(f"engine.extraArgs[{meant}]", ARGUMENTS[meant])


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _items(value: Any) -> Iterator[Mapping[str, Any]]:
    yield from (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else ()


def _texts(value: Any) -> set[str]:
    return {item for item in value if isinstance(item, str)} if isinstance(value, list) else set()
