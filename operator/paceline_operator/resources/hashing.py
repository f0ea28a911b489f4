"""The hash of a pod template, with the version of the way it is rendered."""

from __future__ import annotations

import hashlib
import json
from typing import Any

TEMPLATE_VERSION = 1
"""Raise it when rendering changes for an unchanged spec: hashes of different versions say nothing about the spec."""


def template_hash(template: dict[str, Any]) -> str:
    """`<version>:<16 hex digits>` of a pod template; the order of keys does not matter."""
    canonical = json.dumps(template, sort_keys=True, separators=(",", ":"))
    return f"{TEMPLATE_VERSION}:{hashlib.sha256(canonical.encode()).hexdigest()[:16]}"
