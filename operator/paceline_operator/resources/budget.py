"""The PodDisruptionBudget: drains take one engine at a time."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata


def build(serving: SpeculativeServing) -> Manifest:
    """PodDisruptionBudget `<serving>`. maxUnavailable: minAvailable 1 would block the drain of a single replica. An
    engine that is not ready serves nobody, so it never holds up a drain."""
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(serving),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": naming.selector(serving.metadata.name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }
