"""The NetworkPolicy: everyone may send requests, the operator alone may reach the control port."""

from __future__ import annotations

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Defaults, Manifest
from paceline_operator.resources.meta import child_metadata


def build(serving: SpeculativeServing, defaults: Defaults) -> Manifest:
    """NetworkPolicy `<serving>`. Ports are numbers: a name would follow a container that podTemplate adds."""
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": defaults.operator_namespace}},
        "podSelector": {"matchLabels": dict(defaults.operator_labels)},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(serving),
        "spec": {
            "podSelector": {"matchLabels": naming.selector(serving.metadata.name)},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"protocol": "TCP", "port": naming.SERVING_PORT}]},
                {"from": [operator], "ports": [{"protocol": "TCP", "port": CONTROL_PORT}]},
            ],
        },
    }
