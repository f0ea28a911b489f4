"""The Deployment of engines."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import pod
from paceline_operator.resources.hashing import template_hash
from paceline_operator.resources.inputs import Defaults, Manifest, Tokens
from paceline_operator.resources.meta import child_metadata

PROGRESS_MARGIN_SECONDS = 600
"""Beyond the engine's start: scheduling and pulling an image of 10 GB."""
REVISION_HISTORY = 3


def build(serving: SpeculativeServing, boot_table: Sequence[int], defaults: Defaults, tokens: Tokens) -> Manifest:
    """Deployment `<serving>`. replicas is always applied: /scale writes to the serving, never to the Deployment."""
    spec = serving.spec
    template = pod.build(serving, boot_table, defaults, tokens)
    metadata = child_metadata(serving)
    metadata["annotations"] = {naming.ANNOTATION_TEMPLATE_HASH: template_hash(template)}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata,
        "spec": {
            "replicas": spec.replicas,
            "revisionHistoryLimit": REVISION_HISTORY,
            "progressDeadlineSeconds": spec.engine.startup_timeout_seconds + PROGRESS_MARGIN_SECONDS,
            "selector": {"matchLabels": naming.selector(serving.metadata.name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": spec.rollout.max_surge, "maxUnavailable": spec.rollout.max_unavailable},
            },
            "template": template,
        },
    }
