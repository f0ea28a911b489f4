"""Kinds that a cluster may lack: each comes with a product of its own, and its absence is told, never an error."""

from __future__ import annotations

from collections.abc import Mapping

OPTIONAL: Mapping[str, tuple[str, str]] = {
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io/v1", "leaderworkersets"),
    "InferencePool": ("inference.networking.k8s.io/v1", "inferencepools"),
    "HTTPRoute": ("gateway.networking.k8s.io/v1", "httproutes"),
    "ScaledObject": ("keda.sh/v1alpha1", "scaledobjects"),
}
"""Kind to (apiVersion, plural)."""


def crd_of(kind: str) -> str:
    """Name of the CustomResourceDefinition that brings an optional kind."""
    group_version, plural = OPTIONAL[kind]
    return f"{plural}.{group_version.partition('/')[0]}"
