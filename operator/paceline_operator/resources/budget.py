"""The PodDisruptionBudget: drains take one engine at a time."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata


def build(serving: SpeculativeServing, *, plain: bool = False) -> Manifest:
    """PodDisruptionBudget `<serving>` of stable and canary engines, or `<serving>-plain`. maxUnavailable: minAvailable
    1 would block the drain of a single replica. An engine that is not ready serves nobody: it holds up no drain.

    With an engine over several nodes goes each of its pods: an evicted worker takes the engine along.
    """
    component = naming.COMPONENT_PLAIN if plain else naming.COMPONENT_ENGINE
    track = naming.TRACK_PLAIN if plain else naming.TRACK_STABLE
    selector: Manifest = {"matchLabels": naming.selector(serving.metadata.name) | {naming.LABEL_COMPONENT: component}}
    if serving.spec.engine.multi_node:
        among = [component, naming.COMPONENT_WORKER]
        selector = {
            "matchLabels": {naming.LABEL_SERVING: serving.metadata.name, naming.LABEL_TRACK: track},
            "matchExpressions": [{"key": naming.LABEL_COMPONENT, "operator": "In", "values": among}],
        }
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": child_metadata(serving, naming.TRACK_PLAIN if plain else ""),
        "spec": {"maxUnavailable": 1, "selector": selector, "unhealthyPodEvictionPolicy": "AlwaysAllow"},
    }
