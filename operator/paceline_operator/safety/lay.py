"""What a remedy makes of a spec: for all pods, and for the one on which the next rung is tried. Pure.

The user's spec is never written: a remedy is kept in status.safety and laid over the spec, and over what proposals made
of it, when pods are rendered.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator.api.safety import SafetyMode
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status_safety import Breaker, Phase, SafetyStatus
from paceline_operator.preflight.legality import check
from paceline_operator.rollout.proposal import overlay
from paceline_operator.safety.signatures import Remedy
from paceline_operator.tuning.decide import settings_of

OFF: Mapping[str, Any] = {"speculation.enabled": False}
OFF_PATHS = frozenset(OFF)


@dataclass(frozen=True)
class Laid:
    """A spec with a remedy over it."""

    spec: ServingSpec
    """Of all pods."""
    trial: ServingSpec | None = None
    """Of one canary, once all other pods have `spec`."""
    paths: frozenset[str] = frozenset()
    """Fields that are the remedy's."""
    name: str = ""
    """Of the trial: no other has it."""
    urgent: str = ""
    """Why all pods take it at once; empty: they do not."""
    settled: str = ""
    """Why a canary under it is good already; empty: it is judged as any other."""


def laid(spec: ServingSpec, memory: SafetyStatus) -> Laid:
    """`spec` as the ladder has it now."""
    if memory.phase is Phase.REST or spec.safety.mode is SafetyMode.OBSERVE or not spec.speculation.enabled:
        return Laid(spec)
    changes = {one.path: json.loads(one.value) for one in memory.changes}
    rung = _over(spec, changes) if memory.rung != Remedy.WITHOUT_SPECULATION and changes else None
    paths = frozenset(changes) | OFF_PATHS
    if memory.phase is Phase.STABLE and rung is not None:
        return Laid(rung, paths=paths, settled=f"stable under this change since {memory.since}: {memory.rung}")
    off = _over(spec, OFF)
    if off is None:
        return Laid(spec)
    urgent = f"service first: {memory.evidence}"
    if memory.phase is Phase.TRIAL and rung is not None:
        return Laid(off, trial=rung, paths=paths, name=trial_name(memory), urgent=urgent)
    return Laid(off, paths=OFF_PATHS, urgent=urgent)


def trial_name(memory: SafetyStatus) -> str:
    """By which a rollout's record is told to be about the rung in trial."""
    return f"{memory.rung} since {memory.began_at}"


def holds(memory: SafetyStatus) -> bool:
    """Whether speculation is off for safety: no measurement brings it back then, only a retry that is asked for or
    another engine version."""
    return memory.breaker is Breaker.OPEN


def _over(spec: ServingSpec, changes: Mapping[str, Any]) -> ServingSpec | None:
    """None where the two do not go together."""
    try:
        found = ServingSpec.model_validate(overlay(spec.model_dump(mode="json", by_alias=True), changes))
        settings_of(found)
    except (ValueError, TypeError):
        return None
    return None if check(found) else found
