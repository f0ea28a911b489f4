"""What the builders need beside the object itself: the operator's defaults and one serving's tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Manifest = dict[str, Any]
"""A Kubernetes object as JSON: no nulls, no status."""


@dataclass(frozen=True)
class Defaults:
    """What the installation sets once for all servings."""

    engine_image: str
    """vLLM image of GPU engines."""
    cpu_engine_image: str
    """vLLM image of CPU engines."""
    plugin_image: str
    """Image with the plugin under /plugin and a `cp` (the init container's)."""
    operator_namespace: str = "paceline-system"
    """Where the operator's pods run: they alone may reach the control port."""
    operator_labels: Mapping[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/name": "paceline", "app.kubernetes.io/component": "operator"}
    )
    """Labels of the operator's pods, as the chart writes them."""


@dataclass(frozen=True)
class Tokens:
    """Bearer tokens of one serving (protocol.derive_token). Never shown by repr, hence never in a log line."""

    key_version: str
    """Part of the Secret's name: another version is another (immutable) Secret."""
    current: str = field(repr=False)
    previous: str | None = field(default=None, repr=False)
    """Token of the key version before, accepted while keys rotate."""
