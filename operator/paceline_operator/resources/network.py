"""The NetworkPolicy: everyone may send requests, the operator alone may reach the control port."""

from __future__ import annotations

from paceline_engine.protocol import CONTROL_PORT
from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Defaults, Manifest
from paceline_operator.resources.meta import child_metadata


def build(serving: SpeculativeServing, defaults: Defaults) -> Manifest:
    """NetworkPolicy `<serving>`, for the pods of all tracks and all nodes. Ports are numbers: a name would follow a
    container that podTemplate adds.

    Pods of an engine over several nodes reach each other (NCCL and gloo choose ports), save on the control port.
    """
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": defaults.operator_namespace}},
        "podSelector": {"matchLabels": dict(defaults.operator_labels)},
    }
    mine = {naming.LABEL_SERVING: serving.metadata.name}
    others = [
        {"protocol": protocol, "port": first, "endPort": last}
        for protocol in ("TCP", "UDP")
        for first, last in ((1, CONTROL_PORT - 1), (CONTROL_PORT + 1, 65_535))
    ]
    among = [{"from": [{"podSelector": {"matchLabels": dict(mine)}}], "ports": others}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": child_metadata(serving),
        "spec": {
            "podSelector": {"matchLabels": mine},
            "policyTypes": ["Ingress"],
            "ingress": [
                {"ports": [{"protocol": "TCP", "port": naming.SERVING_PORT}]},
                {"from": [operator], "ports": [{"protocol": "TCP", "port": CONTROL_PORT}]},
                *(among if serving.spec.engine.multi_node else []),
            ],
        },
    }
