"""A change of the spec that the operator proposes, and how one that is accepted lies over the user's spec. Pure.

The user's spec is never written: an accepted proposal is kept in status.rollout.applied and laid over the spec when
pods are rendered, until the user writes one of its fields.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator.api.conditions import Reason


@dataclass(frozen=True)
class Proposal:
    """Fields to change, what that brings and what it costs."""

    changes: Mapping[str, Any]
    """Path in spec, as users write it (`speculation.maxTokens`) -> JSON value; None takes the field away."""
    reason: Reason
    gain_low: float
    """Lower end of the 95 % interval of the gain in goodput, as a fraction: 0.03 is 3 %."""
    restart_seconds: float
    """That one pod does not serve."""
    tokens_at_risk: float
    """Tokens that the serving would give in that time: traffic times `restart_seconds`, times its pods."""
    evidence: str
    """The numbers, for people; one line."""
    gain: float | None = None
    gain_high: float | None = None
    """The expected gain and the upper end of its interval; None: it was not measured, and `gain_low` is 0."""

    @property
    def key(self) -> str:
        """What makes two proposals the same one: their changes."""
        return ", ".join(f"{path}={value!r}" for path, value in sorted(self.changes.items()))


def value_at(spec: Mapping[str, Any], path: str) -> Any:
    """The JSON value at a dotted path; None where it is absent."""
    at: Any = spec
    for name in path.split("."):
        at = at.get(name) if isinstance(at, Mapping) else None
    return at


def overlay(spec: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the JSON `spec` with `changes` laid over it."""
    changed = copy.deepcopy(dict(spec))
    for path, value in changes.items():
        *parents, last = path.split(".")
        at = changed
        for name in parents:
            if not isinstance(at.get(name), dict):
                at[name] = {}
            at = at[name]
        if value is None:
            at.pop(last, None)
        else:
            at[last] = copy.deepcopy(value)
    return changed
