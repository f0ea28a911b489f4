"""That nothing is decided by a view of an object that is older than this process's own last write of its status, for
status is written over what was read: the decisions of that write would be lost from it. Pure.

An API server that answers from etcd shows no such view; one over a replica that is behind, or a proxy, may. Versions of
one object are numbers that grow with each write of it (https://kep.k8s.io/5504): where they are none, nothing can be
told, and views are believed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Raw = Mapping[str, Any]
BELIEVED_SECONDS = 60.0
"""For which older views alone come before they are believed: then etcd went back, as where a backup was restored."""


@dataclass
class Newest:
    """Of one object, by UID."""

    _written: int | None = None
    """Its version after the last write."""
    _behind_since: float | None = None
    """Since when all views are older (monotonic)."""

    def wrote(self, raw: Raw) -> None:
        """`raw`: what the API server answered to a write."""
        self._written, self._behind_since = _version(raw), None

    def why_old(self, raw: Raw, now: float) -> str:
        """Why `raw`, just read, is to be read again; empty: it is not older."""
        version = _version(raw)
        if version is None or self._written is None or version >= self._written:
            self._behind_since = None
            return ""
        since = self._behind_since = now if self._behind_since is None else self._behind_since
        if now - since >= BELIEVED_SECONDS:
            self._written = self._behind_since = None
            return ""
        return f"read at version {version}, and written at {self._written}: the API server is behind"


def _version(raw: Raw) -> int | None:
    found = (raw.get("metadata") or {}).get("resourceVersion")
    return int(found) if isinstance(found, str) and found.isdecimal() and found.isascii() and len(found) < 40 else None
