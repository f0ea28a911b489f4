"""The workload of engines, one for each track: a Deployment, or a LeaderWorkerSet for an engine over several nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources import leaderworkerset
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.merge import merge
from paceline_operator.resources.meta import child_metadata

DEPLOYMENT = "Deployment"
PROGRESS_MARGIN_SECONDS = 600
"""Beyond the engine's start: scheduling and pulling an image of 10 GB."""
REVISION_HISTORY = 0
"""Old ReplicaSets are of no use: what they had is in ControllerRevisions."""


def name(serving: str, track: str) -> str:
    """Of a track's Deployment: the stable one has the serving's own."""
    return naming.child(serving, "" if track == naming.TRACK_STABLE else track)


def keys(serving: str, track: str) -> tuple[tuple[str, str], ...]:
    """(kind, name) of a track's workload, of whatever kind it may be."""
    return (DEPLOYMENT, name(serving, track)), (leaderworkerset.KIND, leaderworkerset.name(serving, track))


def build(
    serving: SpeculativeServing,
    template: Mapping[str, Any],
    *,
    track: str,
    replicas: int,
    annotations: Mapping[str, str],
) -> Manifest:
    """Workload of `track` with a pod template as stored: the track's labels are all that is added to it, and to a
    LeaderWorkerSet's what makes the pods of a group one engine.

    replicas is always applied: /scale writes to the serving, never to the Deployment.
    """
    spec = serving.spec
    if spec.engine.multi_node:
        return leaderworkerset.build(serving, template, track=track, replicas=replicas, annotations=annotations)
    metadata = child_metadata(serving)
    metadata |= {"name": name(serving.metadata.name, track), "annotations": dict(annotations)}
    labels = naming.track_labels(track)
    metadata["labels"] |= labels
    return {
        "apiVersion": "apps/v1",
        "kind": DEPLOYMENT,
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "revisionHistoryLimit": REVISION_HISTORY,
            "progressDeadlineSeconds": spec.engine.startup_timeout_seconds + PROGRESS_MARGIN_SECONDS,
            "selector": {"matchLabels": naming.selector(serving.metadata.name) | labels},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": spec.rollout.max_surge, "maxUnavailable": spec.rollout.max_unavailable},
            },
            "template": merge(dict(template), {"metadata": {"labels": labels}}),
        },
    }
