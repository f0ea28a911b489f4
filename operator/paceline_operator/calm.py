"""What a pass read of the cluster where nothing comes or goes: passes of the tuner alone go by it for a while. Pure.

A thousand quiet servings would ask two hundred times a second for what did not change; where it does, a watch wakes.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, replace
from typing import Any

from pydantic_core import from_json

from paceline_operator.api.autoscaling import AutoscalingMode
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.plan import Object, Observation
from paceline_operator.verdicts import is_ready, replicas_of

LIVE_SECONDS = 120.0
"""Since it was read: a watch may stall, and then nobody wakes the object. Nothing is deleted or scaled by such a view:
what is to be is found in one pass, and done in the next, which reads."""
WAIT_SECONDS = 45.0
"""For which what is minor waits for something else to be told with it: a write costs the API server more than the pass
that made it costs the operator."""
WAITED_PER_SECOND = 8.0
"""Of such writes, by all servings together: one of a status takes an API server 40 ms of CPU (docs/scale.md)."""


@dataclass(frozen=True)
class Calm:
    """As it was read, and the status that was written since."""

    raw: Object
    """Without status and managedFields."""
    _status: bytes
    """Packed: as an object it takes eight times as much."""
    _look: Observation
    """Without its pods and children."""
    _pods: bytes
    """Those of `_look`, packed: as objects they would be a third of all that is remembered of a serving."""
    read_at: float
    """Monotonic."""

    @property
    def look(self) -> Observation:
        """Its children left out."""
        pods, plain, workers, ended = map(tuple, from_json(zlib.decompress(self._pods), cache_strings="keys"))
        return replace(self._look, pods=pods, plain=plain, workers=workers, ended=ended)

    @property
    def status(self) -> ServingStatus:
        """As it was written."""
        return ServingStatus.model_validate_json(zlib.decompress(self._status))

    def told(self, status: ServingStatus) -> Calm:
        """With the status that was written."""
        return replace(self, _status=_packed(status))

    def holds(self, now: float) -> bool:
        """Whether a pass may go by it."""
        return 0 <= now - self.read_at < LIVE_SECONDS


def patience(servings: int) -> float:
    """Seconds for which what is minor waits where so many are looked after."""
    return max(WAIT_SECONDS, servings / WAITED_PER_SECOND)


def minor(stored: ServingStatus, status: ServingStatus) -> dict[str, Any] | None:
    """What of `status` is another, where that is nothing but the generation of the same table (other bursts were asked
    for), which engines tell themselves, and how the numbers behind it changed; else None. Never before the first table.
    """
    if not stored.policy_generation or [pod.name for pod in stored.pods] != [pod.name for pod in status.pods]:
        return None
    pairs = zip(status.pods, stored.pods, strict=True)
    pods = [pod.model_copy(update={"generation": before.generation}) for pod, before in pairs]
    alike = {name: getattr(stored, name) for name in _MINOR}
    if status.model_copy(update={**alike, "pods": pods}) != stored:
        return None
    return {name: getattr(status, name) for name in (*_MINOR, "pods")}


_MINOR = ("policy_generation", "ratio_to_k0_permille", "exploration")


def calm(
    raw: Object, serving: SpeculativeServing, status: ServingStatus, look: Observation, read_at: float
) -> Calm | None:
    """None where something is under way that a pass must see as it is: pods that come or go, or replicas to decide."""
    pods = (*look.pods, *look.plain, *look.workers)
    quiet = len(look.pods) == replicas_of(raw) and all(map(is_ready, pods)) and not look.pullers
    if not quiet or look.missing_secrets or serving.spec.autoscaling.mode is not AutoscalingMode.DISABLED:
        return None
    bare = {name: value for name, value in raw.items() if name != "status"}
    kept = replace(look, pods=(), plain=(), workers=(), ended=(), children=None, absent={}, pulls={})
    told = [list(map(_seen, some)) for some in (look.pods, look.plain, look.workers, look.ended)]
    packed = zlib.compress(json.dumps(told, separators=(",", ":")).encode(), level=1)
    return Calm(_trimmed(bare), _packed(status), kept, packed, read_at)


def _packed(status: ServingStatus) -> bytes:
    return zlib.compress(status.model_dump_json(by_alias=True, exclude_none=True).encode(), level=1)


def _seen(pod: Object) -> Object:
    """What passes over engines read of a pod: of its spec the command lines, the Secrets that it mounts, its node."""
    spec = pod.get("spec") or {}
    containers = [
        {name: value for name, value in one.items() if name in ("name", "command", "args")}
        for one in spec.get("containers") or []
    ]
    volumes = [one for one in spec.get("volumes") or [] if one.get("secret")]
    kept = {"nodeName": spec.get("nodeName"), "containers": containers, "volumes": volumes}
    return _trimmed({**pod, "spec": {name: value for name, value in kept.items() if value}})


def _trimmed(body: Object) -> Object:
    """Who wrote which field is half of what an object takes."""
    meta = {name: value for name, value in body["metadata"].items() if name != "managedFields"}
    return {**body, "metadata": meta}
