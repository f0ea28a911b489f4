"""The pod template of engines: the engine container, the plugin's init container, volumes, probes and limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.engine import DEV_MODE, Device, Engine, PluginInjection, Preflight
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.resources import argv, cache, environment, preflight, secret
from paceline_operator.resources.inputs import Defaults, Tokens
from paceline_operator.resources.merge import merge
from paceline_operator.resources.source import resolve
from paceline_operator.resources.substitution import literal

CONTAINER = "engine"
USER_ID = 2000
"""Of no account on any node; vLLM needs none."""
PRE_STOP_SECONDS = 10
"""Until every proxy has heard that the pod leaves; only then does the server refuse requests."""
TERMINATION_MARGIN_SECONDS = 20
"""From the end of the drain to the kill: freeing GPU memory takes seconds."""
STARTUP_PERIOD_SECONDS = 5
GPU_RESOURCE = "nvidia.com/gpu"
PLUGIN_VOLUME = {"name": naming.PLUGIN_VOLUME, "emptyDir": {"sizeLimit": "64Mi"}}


def build(
    serving: SpeculativeServing,
    boot_table: Sequence[int],
    defaults: Defaults,
    tokens: Tokens,
    *,
    labels: Mapping[str, str] | None = None,
    drafter: bool = True,
) -> dict[str, Any]:
    """Pod template with the user's engine.podTemplate laid over it.

    `labels` join those of every pod (its track); like the selector's they stay whatever podTemplate says.
    """
    name, engine = serving.metadata.name, serving.spec.engine
    drafter = drafter and serving.spec.speculation.enabled
    volumes = _volumes(serving, tokens, drafter=drafter)
    executable, *arguments = argv.build(serving, boot_table, drafter=drafter)
    spec: dict[str, Any] = {
        "serviceAccountName": naming.child(name),
        "automountServiceAccountToken": False,
        # A Service called vllm would set VLLM_PORT, which vLLM reads as its own.
        "enableServiceLinks": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "terminationGracePeriodSeconds": PRE_STOP_SECONDS
        + engine.shutdown_timeout_seconds
        + TERMINATION_MARGIN_SECONDS,
        "containers": [_engine_container(serving, executable, arguments, defaults, [mount for _, mount in volumes])],
        "volumes": [volume for volume, _ in volumes] + _of_init_containers(serving.spec),
    }
    container = spec["containers"][0]
    puller = cache.container(
        serving, container["image"], container["env"], container["volumeMounts"], _restricted(), drafter=drafter
    )
    checks = preflight.container(serving, boot_table, _overridden(container, engine), drafter=drafter)
    ours = [one for one in (checks, puller) if one]
    brings = engine.plugin.injection is PluginInjection.INIT_CONTAINER or (ours and _without_plugin(engine))
    before = [plugin_container(engine.plugin.image or defaults.plugin_image)] if brings else []
    if before or ours:
        spec["initContainers"] = [*before, *ours]
    template = {"metadata": {"labels": naming.labels(name)}, "spec": spec}
    overridden = merge(template, engine.pod_template or {})
    if preflight.waits_for_others(serving.spec):
        _last(overridden.get("spec"), preflight.CONTAINER)
    # Whatever podTemplate says, and whatever variables an envFrom of its brings.
    fixed = naming.selector(name) | dict(labels or {})
    engine_container = {"name": CONTAINER, "env": [{"name": DEV_MODE, "value": "0"}]}
    pinned: dict[str, Any] = merge(
        overridden, {"metadata": {"labels": fixed}, "spec": {"containers": [engine_container]}}
    )
    for kind in ("initContainers", "containers"):
        for each in pinned["spec"].get(kind, []):
            each.setdefault("imagePullPolicy", pull_policy(each.get("image", "")))
    return pinned


def _overridden(container: dict[str, Any], engine: Engine) -> dict[str, Any]:
    """The engine's container as podTemplate leaves it."""
    whole = merge({"spec": {"containers": [container]}}, engine.pod_template or {})
    spec = whole.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    found = containers if isinstance(containers, list) else []
    return next((one for one in found if isinstance(one, dict) and one.get("name") == CONTAINER), container)


def _last(spec: Any, name: str) -> None:
    """Move an init container behind those of podTemplate."""
    found = spec.get("initContainers") if isinstance(spec, dict) else None
    if isinstance(found, list) and all(isinstance(one, dict) for one in found):
        spec["initContainers"] = sorted(found, key=lambda one: one.get("name") == name)


def pull_policy(image: str) -> str:
    """What the API server fills in for a new container, by the image's tag.

    It does not for one whose image changes: unsaid, the policy would depend on the image of before.
    """
    tag = image.rpartition("/")[2].partition(":")[2]
    return "IfNotPresent" if "@" in image or tag not in ("", "latest") else "Always"


def _engine_container(
    serving: SpeculativeServing,
    executable: str,
    arguments: Sequence[str],
    defaults: Defaults,
    mounts: list[dict[str, Any]],
) -> dict[str, Any]:
    engine = serving.spec.engine
    gpu = engine.device is Device.GPU
    given = engine.resources or {}
    # A claim (dynamic resource allocation) brings the devices: a limit beside it would ask for as many again.
    counted = gpu and not given.get("claims")
    resources = merge({"limits": {GPU_RESOURCE: str(_gpus(engine))}} if counted else {}, given)
    ports = [{"name": naming.SERVING_PORT_NAME, "containerPort": naming.SERVING_PORT, "protocol": "TCP"}]
    if engine.plugin.injection is not PluginInjection.NONE:
        ports.append({"name": naming.CONTROL_PORT_NAME, "containerPort": CONTROL_PORT, "protocol": "TCP"})
    return {
        "name": CONTAINER,
        "image": engine.image or (defaults.engine_image if gpu else defaults.cpu_engine_image),
        "command": [executable],
        "args": [literal(argument) for argument in arguments],
        "env": environment.build(serving),
        "ports": ports,
        "resources": resources,
        "securityContext": _restricted(),
        "volumeMounts": mounts,
        # What vLLM refused at its start is in its last lines alone.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(engine),
        "lifecycle": {"preStop": {"sleep": {"seconds": PRE_STOP_SECONDS}}},
    }


def _without_plugin(engine: Engine) -> bool:
    return engine.plugin.injection is PluginInjection.NONE


def plugin_container(image: str) -> dict[str, Any]:
    """The init container that brings the plugin into its volume."""
    return {
        "name": naming.PLUGIN_CONTAINER,
        "image": image,
        # Not `cp -a`: the volume's root belongs to another user, and keeping times on it fails without privileges.
        "command": ["cp", "-r", "/plugin/.", f"{naming.PLUGIN_DIRECTORY}/"],
        "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}},
        "securityContext": _restricted(),
        "volumeMounts": [{"name": naming.PLUGIN_VOLUME, "mountPath": naming.PLUGIN_DIRECTORY}],
    }


def _volumes(
    serving: SpeculativeServing, tokens: Tokens, *, drafter: bool
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(volume, mount in the engine container) pairs."""
    spec = serving.spec
    shared_memory = {"medium": "Memory", "sizeLimit": f"{1 + _gpus(spec.engine)}Gi"}
    pairs: list[tuple[dict[str, Any], dict[str, Any]]] = [
        # NCCL and the workers' message queues live here; the container runtime's own 64 MiB are too few.
        ({"name": "shm", "emptyDir": shared_memory}, {"name": "shm", "mountPath": "/dev/shm"}),  # noqa: S108
        ({"name": "tmp", "emptyDir": {}}, {"name": "tmp", "mountPath": "/tmp"}),  # noqa: S108
        ({"name": "cache", "emptyDir": {}}, {"name": "cache", "mountPath": naming.CACHE_DIRECTORY}),
    ]
    draft = spec.speculation.draft if drafter else None
    for name, source in (("model", spec.model.source), ("draft", draft.source if draft else "")):
        weights = resolve(source, name)
        if weights.volume and weights.mount:
            pairs.append((weights.volume, weights.mount))
    if (claim := cache.volume(serving)) is not None:
        pairs.append(claim)
    if spec.engine.plugin.injection is not PluginInjection.NONE:
        pairs.append(_token_volume(serving, tokens))
    if spec.engine.plugin.injection is PluginInjection.INIT_CONTAINER:
        mount = {"name": naming.PLUGIN_VOLUME, "mountPath": naming.PLUGIN_DIRECTORY, "readOnly": True}
        pairs.append((PLUGIN_VOLUME, mount))
    return pairs


def _of_init_containers(spec: ServingSpec) -> list[dict[str, Any]]:
    """Volumes that the engine's container does not mount."""
    ours = spec.model.cache or spec.engine.preflight is not Preflight.DISABLED
    return [PLUGIN_VOLUME] if ours and _without_plugin(spec.engine) else []


def _token_volume(serving: SpeculativeServing, tokens: Tokens) -> tuple[dict[str, Any], dict[str, Any]]:
    """All keys of the Secret: the end of a key rotation drops `previous` there, and must restart nothing."""
    name = naming.child(serving.metadata.name, secret.suffix(tokens))
    volume = {"name": naming.TOKEN_VOLUME, "secret": {"secretName": name, "defaultMode": 0o440}}
    return volume, {"name": naming.TOKEN_VOLUME, "mountPath": naming.TOKEN_DIRECTORY, "readOnly": True}


def _probes(engine: Engine) -> dict[str, Any]:
    """Nothing listens until the engine is ready, so the startup probe alone carries the long wait. A busy engine
    answers late: liveness gives it a minute, because a restart costs minutes and every running request."""
    attempts = -(-engine.startup_timeout_seconds // STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": _probe(period=STARTUP_PERIOD_SECONDS, timeout=5, failures=attempts),
        "readinessProbe": _probe(period=2, timeout=5, failures=2),
        "livenessProbe": _probe(period=10, timeout=10, failures=6),
    }


def _probe(*, period: int, timeout: int, failures: int) -> dict[str, Any]:
    return {
        "httpGet": {"path": "/health", "port": naming.SERVING_PORT_NAME},
        "periodSeconds": period,
        "timeoutSeconds": timeout,
        "failureThreshold": failures,
    }


def _restricted() -> dict[str, Any]:
    """With the pod's securityContext: the Pod Security Standard `restricted`, and a read-only root besides."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def _gpus(engine: Engine) -> int:
    """GPUs of one pod: its share of the world size of tensor and pipeline parallelism; 0 on CPUs."""
    nodes = engine.multi_node.nodes if engine.multi_node else 1
    return engine.tensor_parallel_size * engine.pipeline_parallel_size // nodes if engine.device is Device.GPU else 0
