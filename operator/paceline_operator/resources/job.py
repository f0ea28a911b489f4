"""The pre-pull Job: weights come onto the claim before pods are made or changed, and no GPU waits for them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from paceline_engine.preflight.check import FAILED_STATUS
from paceline_engine.pull.report import EXIT_STATUS, FINAL_STATUS
from paceline_operator import naming
from paceline_operator.api.model import Download
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import preflight
from paceline_operator.resources.cache import PULL_CONTAINER
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata

ATTEMPTS = 5
KEPT = (
    "serviceAccountName",
    "automountServiceAccountToken",
    "enableServiceLinks",
    "securityContext",
    "nodeSelector",
    "tolerations",
    "affinity",
    "imagePullSecrets",
    "priorityClassName",
    "schedulerName",
    "dnsPolicy",
    "dnsConfig",
    "hostAliases",
)
"""Of the engines' pod: where it may run and who it is. A volume that one zone has alone must not be made in another."""


def build(serving: SpeculativeServing, template: Mapping[str, Any]) -> Manifest | None:
    """Job `<serving>-pull-<hash>` of a rendered pod template; None where pods pull for themselves.

    Named by all it does: what is to be pulled otherwise is another Job, and the one before is pruned. Another table is
    none of that, whichever the template boots with.
    """
    cache = serving.spec.model.cache
    if cache is None or cache.download is not Download.JOB:
        return None
    pod = _pod(template["spec"])
    canonical = json.dumps(pod, sort_keys=True, separators=(",", ":"))
    name = naming.child(serving.metadata.name, f"pull-{hashlib.sha256(canonical.encode()).hexdigest()[:8]}")
    labels = {naming.LABEL_COMPONENT: naming.COMPONENT_PULLER}
    metadata = child_metadata(serving)
    metadata |= {"name": name, "labels": metadata["labels"] | labels}
    final = sorted(code for code in EXIT_STATUS.values() if code >= FINAL_STATUS)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": {
            "backoffLimit": ATTEMPTS - 1,
            "podFailurePolicy": {
                "rules": [
                    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                    _final(PULL_CONTAINER, final),
                    *([_final(preflight.CONTAINER, [FAILED_STATUS])] if _has_checks(pod) else []),
                ]
            },
            "template": {"metadata": {"labels": naming.labels(serving.metadata.name) | labels}, "spec": pod},
        },
    }


def _final(container: str, statuses: list[int]) -> Manifest:
    """Another try would end the same."""
    return {"action": "FailJob", "onExitCodes": {"containerName": container, "operator": "In", "values": statuses}}


def _has_checks(pod: Mapping[str, Any]) -> bool:
    return any(one["name"] == preflight.CONTAINER for one in pod["initContainers"])


def _pod(engine: Mapping[str, Any]) -> dict[str, Any]:
    containers = {container["name"]: container for container in engine["initContainers"]}
    puller = containers.pop(PULL_CONTAINER)
    before = [one for name, one in containers.items() if name == naming.PLUGIN_CONTAINER]
    if checks := containers.pop(preflight.CONTAINER, None):
        # Without a GPU: models are looked at before they are downloaded, the machine is looked at in the engines' pods.
        before.append({**preflight.of_models(checks), "resources": puller["resources"]})
    mounted = {mount["name"] for one in (puller, *before) for mount in one.get("volumeMounts", [])}
    return {
        **{field: engine[field] for field in KEPT if field in engine},
        "restartPolicy": "Never",  # a pod that failed stays, and with it what it said
        "initContainers": before,
        "containers": [puller],
        "volumes": [one for one in engine["volumes"] if one["name"] in mounted],
    }
