"""The ServiceAccount of engine pods: an identity of their own, with no access to the API server."""

from __future__ import annotations

from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.meta import child_metadata


def build(serving: SpeculativeServing) -> Manifest:
    """ServiceAccount `<serving>`."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": child_metadata(serving),
        "automountServiceAccountToken": False,
    }
