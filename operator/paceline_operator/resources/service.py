"""The Service that clients talk to. The control port is not in it."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata


def build(serving: SpeculativeServing, *, plain: bool = False) -> Manifest:
    """Service `<serving>`: port 8000 to the engines' OpenAI-compatible server, stable and canary alike.

    Of `plain` engines: `<serving>-plain`. Of an engine over several nodes, its leader.
    """
    component = {naming.LABEL_COMPONENT: naming.COMPONENT_PLAIN} if plain else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": child_metadata(serving, naming.TRACK_PLAIN if plain else ""),
        "spec": {
            "type": "ClusterIP",
            "selector": naming.selector(serving.metadata.name) | component,
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
