"""Where weights come from: what vLLM is told, and the volume that makes it true."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from paceline_engine.pull.layout import DOWNLOADED, weights

MOUNT_ROOT = PurePosixPath("/mnt/paceline")
CACHE_ROOT = MOUNT_ROOT / "cache"
"""Where the claim of a model cache is mounted."""


@dataclass(frozen=True)
class Weights:
    """One model or draft, resolved."""

    argument: str
    """What vLLM takes as a model: a repository, a URL or a path in the container."""
    offline: bool
    """Nothing is fetched from a hub: the weights are files."""
    revision: str | None = None
    """What vLLM is to ask a hub for."""
    volume: dict[str, Any] | None = None
    mount: dict[str, Any] | None = None


def resolve(source: str, name: str, revision: str | None = None, *, cached: bool = False) -> Weights:
    """Weights of a source as the API allows it; `name` names the volume and its mount below MOUNT_ROOT.

    `cached`: what would be downloaded is on the claim, at the commit that `revision` meant when it came there.
    """
    scheme, _, rest = source.partition("://")
    if not rest:
        return Weights(argument=source, offline=True)
    if cached and scheme in DOWNLOADED:
        return Weights(argument=str(CACHE_ROOT / weights(source, revision)), offline=True)
    if scheme == "hf":
        return Weights(argument=rest, offline=False, revision=revision)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        volume = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return _mounted(name, path, volume)
    if scheme == "oci":
        # Kubernetes' image volume: feature gate ImageVolume, off by default in 1.33 and 1.34.
        return _mounted(name, "", {"image": {"reference": rest, "pullPolicy": "IfNotPresent"}})
    # s3: vLLM reads object storage by its URL (the image needs the Run:ai streamer).
    return Weights(argument=source, offline=False)


def _mounted(name: str, path: str, volume: dict[str, Any]) -> Weights:
    root = MOUNT_ROOT / name
    return Weights(
        argument=str(root / path.lstrip("/")),
        offline=True,
        volume={"name": name, **volume},
        mount={"name": name, "mountPath": str(root), "readOnly": True},
    )
