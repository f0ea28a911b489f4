"""The Job of one engine of an experiment: the pod that the operator renders for it, and the load beside the engine.

One pod: the load reaches the engine over loopback, nothing else does, and what holds the devices goes with the Job.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_engine.trial.visit import Visit
from paceline_operator import naming
from paceline_operator.api.base import ObjectMeta
from paceline_operator.api.engine import Plugin, PluginInjection
from paceline_operator.api.experiment import Prompts
from paceline_operator.api.serving import ServingSpec
from paceline_operator.resources import cache, pod
from paceline_operator.resources.inputs import Defaults, Manifest
from paceline_operator.resources.merge import merge
from paceline_operator.resources.substitution import literal

LOAD_CONTAINER = "paceline-load"
PROMPTS_VOLUME = "paceline-prompts"
PROMPTS_FILE = "/opt/paceline/prompts/prompts.jsonl"
"""vLLM wants the suffix."""
QUIET = "--disable-uvicorn-access-log"
"""A line for each request would push everything else out of the log."""
GRACE_SECONDS = 30
MARGIN_SECONDS = 600
"""Beyond every limit of the operator's: this one is for its absence."""
ORDER = {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"}
OF_ENGINE = ("image", "imagePullPolicy", "securityContext")
"""Fields of the load's container that are the engine's, where podTemplate leaves it any."""
RESOURCES = {"requests": {"cpu": "500m", "memory": "1Gi"}}
ALONE = ({"name": "VLLM_PLUGINS", "value": ""}, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"})
"""The load needs neither a plugin of vLLM's nor a device."""


@dataclass(frozen=True)
class Asked:
    """One engine of an experiment. `number`: in its plan."""

    number: int
    variant: str
    visit: Visit
    limit_seconds: float


def metadata(owner: ObjectMeta, kind: str, suffix: str) -> Manifest:
    """Of an object of the experiment's, which goes with it."""
    return {
        "name": naming.child(owner.name, suffix),
        "namespace": owner.namespace,
        "labels": {
            naming.LABEL_NAME: naming.APP,
            naming.LABEL_COMPONENT: naming.COMPONENT_TRIAL,
            naming.LABEL_MANAGED_BY: naming.FIELD_MANAGER,
            naming.LABEL_EXPERIMENT: owner.name,
        },
        "ownerReferences": [
            {
                "apiVersion": naming.API_VERSION,
                "kind": kind,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": False,
            }
        ],
    }


def job(
    owner: ObjectMeta,
    asked: Asked,
    spec: ServingSpec,
    template: Mapping[str, Any],
    prompts: Prompts,
    defaults: Defaults,
) -> Manifest:
    """`template`: of the variant's engine (experiment.variants.rendered), `spec` the serving's.

    Its pod has no label but ours: no Service, budget or policy of a serving selects it.
    """
    meta = metadata(owner, naming.KIND_EXPERIMENT, f"{naming.VISIT}-{asked.number}")
    meta["labels"] |= {naming.LABEL_VARIANT: asked.variant, naming.LABEL_VISIT: str(asked.number)}
    rendered = copy.deepcopy(dict(template["spec"]))
    engine = next(one for one in rendered["containers"] if one["name"] == pod.CONTAINER)
    load = _load(engine, asked, prompts, spec)
    engine.pop("lifecycle", None)  # nobody has to hear that it leaves
    engine["args"] = [*engine.get("args", []), *([] if QUIET in engine.get("args", []) else [QUIET])]
    engine["env"] = [*(one for one in engine.get("env", []) if one.get("name") != ORDER["name"]), ORDER]
    overridden = (spec.engine.pod_template or {}).get("spec") or {}
    changes = {
        # The serving's own account goes with it, and is not there while it is suspended. No token is mounted.
        "serviceAccountName": overridden.get("serviceAccountName") or "default",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": GRACE_SECONDS,
        "volumes": [pod.PLUGIN_VOLUME, *_volumes(prompts)],
    }
    whole: dict[str, Any] = merge(rendered, changes)
    whole["containers"] = [*whole["containers"], load]
    before = whole.get("initContainers", [])
    if not any(one["name"] == naming.PLUGIN_CONTAINER for one in before):
        brings = pod.plugin_container(spec.engine.plugin.image or defaults.plugin_image)
        whole["initContainers"] = [brings, *before]
    annotations = (template.get("metadata") or {}).get("annotations")
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": meta,
        "spec": {
            "backoffLimit": 0,
            "activeDeadlineSeconds": int(asked.limit_seconds) + MARGIN_SECONDS,
            "template": {
                "metadata": {"labels": dict(meta["labels"]), **({"annotations": annotations} if annotations else {})},
                "spec": whole,
            },
        },
    }


def _load(engine: Mapping[str, Any], asked: Asked, prompts: Prompts, spec: ServingSpec) -> Manifest:
    plugin = Plugin(injection=PluginInjection.NONE)
    without = spec.model_copy(update={"engine": spec.engine.model_copy(update={"plugin": plugin})})
    names = {one["name"] for one in ALONE}
    env = [one for one in cache.with_plugin(without, engine.get("env", [])) if one.get("name") not in names]
    mounts = cache.plugin_mounted(without, engine.get("volumeMounts", []))
    prompted = [] if prompts.random else [_mount(prompts)]
    return copy.deepcopy(
        {
            "name": LOAD_CONTAINER,
            **{name: engine[name] for name in OF_ENGINE if name in engine},
            "command": ["python3", "-m", "paceline_engine.trial"],
            "args": ["--visit", literal(asked.visit.model_dump_json(by_alias=True))],
            "env": [*env, *ALONE],
            "resources": RESOURCES,
            "volumeMounts": [*mounts, *prompted],
        }
    )


def _volumes(prompts: Prompts) -> list[Manifest]:
    if prompts.kept:
        return [{"name": PROMPTS_VOLUME, "configMap": {"name": prompts.kept.name}}]
    if prompts.persistent_volume_claim:
        claim = {"claimName": prompts.persistent_volume_claim.claim_name, "readOnly": True}
        return [{"name": PROMPTS_VOLUME, "persistentVolumeClaim": claim}]
    return []


def _mount(prompts: Prompts) -> Manifest:
    inner = prompts.kept.key if prompts.kept else ""
    inner = prompts.persistent_volume_claim.path if prompts.persistent_volume_claim else inner
    return {"name": PROMPTS_VOLUME, "mountPath": PROMPTS_FILE, "subPath": inner, "readOnly": True}
