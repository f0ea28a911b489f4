"""Metadata that every child shares."""

from __future__ import annotations

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Manifest


def child_metadata(serving: SpeculativeServing, suffix: str = "") -> Manifest:
    """Name, namespace, labels and the controller reference by which the child goes with its serving."""
    owner = serving.metadata
    return {
        "name": naming.child(owner.name, suffix),
        "namespace": owner.namespace,
        "labels": naming.labels(owner.name),
        "ownerReferences": [
            {
                "apiVersion": naming.API_VERSION,
                "kind": naming.KIND_SERVING,
                "name": owner.name,
                "uid": owner.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
