"""Children that were seen a moment ago, and believed as long as no watch tells otherwise: of kinds that are made once
and then stay as they are, which a serving that comes would list anew in each of its passes. Pure.

Deployments and revisions, by which a rollout goes, are not among them: those are read in every pass that looks at
children. An event that never came is made good by the resync, which believes nothing.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from paceline_operator.drift import digest
from paceline_operator.plan import ChildKey, Object

STILL_KINDS = ("ServiceAccount", "NetworkPolicy", "Service", "PodDisruptionBudget", "PersistentVolumeClaim", "Job")
BELIEVED_SECONDS = 120.0
"""Since they were listed: as long as a serving takes to come, and not for the life of it."""
GONE = ""
"""Version of a child that went. Said also where no watch had told of it, or what saw it would go on holding."""
_SPEC_ALONE = ("PodDisruptionBudget",)
"""Kinds of those whose status changes with every pod, and is read by nobody here: what else there is of them has a
generation, or is in their metadata."""
Owner = tuple[str, str]
"""(namespace, name) of a serving."""


class Versions:
    """Versions of children of STILL_KINDS that watches told of, by serving."""

    def __init__(self) -> None:
        self._told: dict[Owner, dict[ChildKey, str]] = {}
        self._epoch = 0
        """A watch that began anew may have missed what happened before, and any of them while the Lease was lost."""

    def tell(self, owner: Owner, kind: str, metadata: Mapping[str, Any], gone: bool) -> bool:
        """Something happened to a child. Whether it concerns anybody: not where a status changed that nobody reads."""
        if kind not in STILL_KINDS:
            return True
        told, key = self._told.setdefault(owner, {}), (kind, str(metadata.get("name")))
        before = told.get(key)
        told[key] = GONE if gone else _version(kind, metadata)
        return gone or kind not in _SPEC_ALONE or told[key] != before

    def anew(self) -> None:
        """Believe nothing that was seen until now."""
        self._told.clear()
        self._epoch += 1

    def forget(self, owner: Owner) -> None:
        """The serving is gone."""
        self._told.pop(owner, None)

    def of(self, owner: Owner) -> tuple[int, dict[ChildKey, str]]:
        """Epoch, and key -> version, as of now."""
        return self._epoch, dict(self._told.get(owner, {}))


@dataclass(frozen=True)
class Beheld:
    """Children of STILL_KINDS of one serving, packed, and what watches will have told of them by then."""

    _packed: bytes
    _told: tuple[int, dict[ChildKey, str]]
    listed_at: float
    """Monotonic."""

    def holds(self, told: tuple[int, Mapping[ChildKey, str]], now: float) -> bool:
        """Whether a pass may go by it."""
        return self.is_fresh(now) and self._told == told

    def is_fresh(self, now: float) -> bool:
        """Whether it may still hold."""
        return 0 <= now - self.listed_at < BELIEVED_SECONDS

    @property
    def children(self) -> dict[ChildKey, Object]:
        """As they were seen, or as the API server made them of an apply."""
        bodies = from_json(zlib.decompress(self._packed), cache_strings="keys")
        return {(body["kind"], body["metadata"]["name"]): body for body in bodies}


def beheld(
    there: Mapping[ChildKey, Object],
    applied: Mapping[ChildKey, Object],
    told: tuple[int, Mapping[ChildKey, str]],
    listed_at: float,
) -> Beheld | None:
    """Of a pass that saw `there` and then made `applied`; `told` before it looked. None where what it saw is older than
    what watches had told of."""
    epoch, before = told
    listed = {key: _version(key[0], body["metadata"]) for key, body in there.items()}
    if any(listed.get(key, GONE) != version for key, version in before.items()):
        return None
    still = {key: {**body, "kind": key[0]} for key, body in {**there, **applied}.items() if key[0] in STILL_KINDS}
    made = {key: _version(key[0], body["metadata"]) for key, body in applied.items() if key[0] in STILL_KINDS}
    packed = zlib.compress(json.dumps(list(still.values()), separators=(",", ":")).encode(), level=1)
    return Beheld(packed, (epoch, {**before, **made}), listed_at)


def _version(kind: str, metadata: Mapping[str, Any]) -> str:
    """Another one where anything that is read here may have changed."""
    if kind in _SPEC_ALONE and "generation" in metadata:
        return f"{metadata['generation']} {digest({'metadata': metadata})}"
    return str(metadata.get("resourceVersion"))
