"""The InferencePool: the pods that an endpoint picker may choose from."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.kinds import OPTIONAL
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata

KIND = "InferencePool"


def build(serving: SpeculativeServing) -> Manifest | None:
    """InferencePool `<serving>`, where spec asks for one. Stable pods alone: pickers that predict latencies take the
    pods of a pool for alike, and a canary has, or may have, another speculation configuration."""
    routing = serving.spec.routing
    if routing.inference_pool is None:
        return None
    picker = routing.inference_pool.endpoint_picker
    return {
        "apiVersion": OPTIONAL[KIND][0],
        "kind": KIND,
        "metadata": child_metadata(serving),
        "spec": {
            "selector": {
                "matchLabels": naming.selector(serving.metadata.name) | naming.track_labels(naming.TRACK_STABLE)
            },
            "targetPorts": [{"number": naming.SERVING_PORT}],
            "endpointPickerRef": {
                "name": picker.name,
                "kind": "Service",
                "port": {"number": picker.port},
                "failureMode": picker.failure_mode.value,
            },
        },
    }
