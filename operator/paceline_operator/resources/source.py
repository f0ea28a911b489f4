"""Where weights come from: what vLLM is told, and the volume that makes it true."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

MOUNT_ROOT = PurePosixPath("/mnt/paceline")


@dataclass(frozen=True)
class Weights:
    """One model or draft, resolved."""

    argument: str
    """What vLLM takes as a model: a repository, a URL or a path in the container."""
    offline: bool
    """Nothing is fetched from a hub: the weights are files."""
    volume: dict[str, Any] | None = None
    mount: dict[str, Any] | None = None


def resolve(source: str, name: str) -> Weights:
    """Weights of a source as the API allows it; `name` names the volume and its mount below MOUNT_ROOT."""
    scheme, _, rest = source.partition("://")
    if not rest:
        return Weights(argument=source, offline=True)
    if scheme == "hf":
        return Weights(argument=rest, offline=False)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        volume = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return _mounted(name, path, volume)
    if scheme == "oci":
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
