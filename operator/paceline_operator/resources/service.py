"""The Service that clients talk to. The control port is not in it."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata


def build(serving: SpeculativeServing) -> Manifest:
    """Service `<serving>`: port 8000 to the engines' OpenAI-compatible server."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(serving),
        "spec": {
            "type": "ClusterIP",
            "selector": naming.selector(serving.metadata.name),
            "ports": [
                {
                    "name": naming.SERVING_PORT_NAME,
                    "protocol": "TCP",
                    "port": naming.SERVING_PORT,
                    "targetPort": naming.SERVING_PORT_NAME,
                    "appProtocol": "http",
                }
            ],
        },
    }
