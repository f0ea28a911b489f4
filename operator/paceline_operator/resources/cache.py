"""The model cache: the claim, its volume in each pod, and the container that brings weights onto it.

The container runs in the engine's image with the engine's environment: proxies, credentials and certificates that a
user gives the engine hold for the download too.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from typing import Any

from paceline_operator import naming
from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.model import CacheClaim
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata
from paceline_operator.resources.source import CACHE_ROOT, resolve
from paceline_operator.resources.substitution import literal

PULL_CONTAINER = "paceline-pull"
VOLUME = "paceline-cache"
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
"""Of the puller: eight files at once, a megabyte of each; the rest is page cache, which a limit only makes smaller."""


def claim_name(serving: SpeculativeServing) -> str:
    """Of the claim that is mounted. One that the operator makes is named by what cannot be changed in place."""
    cache = serving.spec.model.cache
    if cache is None:
        return ""
    return cache.claim_name or naming.child(serving.metadata.name, f"models-{_digest(cache.claim)}")


def _digest(claim: CacheClaim | None) -> str:
    fixed = (claim.storage_class_name or "", claim.access_mode.value) if claim else ()
    return hashlib.sha256(repr(fixed).encode()).hexdigest()[:8]


def build(serving: SpeculativeServing) -> Manifest | None:
    """PersistentVolumeClaim `<serving>-models-<hash>`; None where none is asked for."""
    cache = serving.spec.model.cache
    if cache is None or cache.claim is None:
        return None
    storage_class = cache.claim.storage_class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": child_metadata(serving) | {"name": claim_name(serving)},
        "spec": {
            "accessModes": [cache.claim.access_mode.value],
            **({"storageClassName": storage_class} if storage_class else {}),
            "resources": {"requests": {"storage": cache.claim.size}},
        },
    }


def volume(serving: SpeculativeServing) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """(volume, mount in the engine's container). Written by engines only where they keep what they compile there."""
    cache = serving.spec.model.cache
    if cache is None:
        return None
    mount = {"name": VOLUME, "mountPath": str(CACHE_ROOT), **({} if cache.compiled else {"readOnly": True})}
    return {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim_name(serving)}}, mount


def container(
    serving: SpeculativeServing,
    image: str,
    env: Sequence[dict[str, Any]],
    mounts: Sequence[dict[str, Any]],
    security: dict[str, Any],
    *,
    drafter: bool = True,
) -> dict[str, Any] | None:
    """The puller; None without a cache. `env` and `mounts` are the engine container's.

    It also looks at weights that are mounted or in the image: that they are not there is told before an engine starts.
    """
    spec = serving.spec
    cache = spec.model.cache
    if cache is None:
        return None
    asked = [part for one in artefacts(spec, drafter=drafter) for part in ("--artefact", *one)]
    link = ["--compiled", naming.CACHE_DIRECTORY] if cache.compiled else []
    own = {"name": "PACELINE_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    return {
        "name": PULL_CONTAINER,
        "image": image,
        "command": ["python3", "-m", "paceline_engine.pull"],
        "args": [literal(text) for text in ["--root", str(CACHE_ROOT), *link, *asked]],
        "env": [*copy.deepcopy(with_plugin(spec, env)), own],
        "resources": copy.deepcopy(RESOURCES),
        "securityContext": security,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": copy.deepcopy(_writable(spec, mounts)),
    }


def artefacts(spec: ServingSpec, *, drafter: bool = True) -> list[tuple[str, str, str]]:
    """(name, source, revision asked or "") of target and draft, as the puller takes them: what is not downloaded is the
    path where it is mounted."""
    draft = spec.speculation.draft if drafter else None
    found = [("model", spec.model.source, spec.model.revision)]
    found += [("draft", draft.source, draft.revision)] if draft else []
    return [
        (name, source if resolve(source, name).volume is None else resolve(source, name).argument, revision or "")
        for name, source, revision in found
    ]


def with_plugin(spec: ServingSpec, env: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Puller and preflight are parts of the plugin: an engine without one has it in their containers alone."""
    if spec.engine.plugin.injection is not PluginInjection.NONE:
        return list(env)
    paths = [str(variable.get("value", "")) for variable in env if variable["name"] == "PYTHONPATH"]
    joined = {"name": "PYTHONPATH", "value": ":".join([naming.PLUGIN_DIRECTORY, *filter(None, paths)])}
    return [*(variable for variable in env if variable["name"] != "PYTHONPATH"), joined]


def _writable(spec: ServingSpec, mounts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    kept = [mount for mount in mounts if mount["name"] not in (VOLUME, "shm")]
    return [*plugin_mounted(spec, kept), {"name": VOLUME, "mountPath": str(CACHE_ROOT)}]


def plugin_mounted(spec: ServingSpec, mounts: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The engine container's mounts, and the plugin's where the engine has none."""
    if spec.engine.plugin.injection is not PluginInjection.NONE:
        return list(mounts)
    return [*mounts, {"name": naming.PLUGIN_VOLUME, "mountPath": naming.PLUGIN_DIRECTORY, "readOnly": True}]
