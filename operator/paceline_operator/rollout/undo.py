"""Going back to a template that pods ran before: which one, and the change of the spec that asks for it. Pure.

It is a change like any other: it goes through a canary.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from paceline_operator.api.tuning import TuningMode
from paceline_operator.resources.revision import Revision
from paceline_operator.rollout.diff import DEFAULTED, LADDER, Boot

TUNING = "tuning"
_OF_TUNING = (TUNING, LADDER, DEFAULTED)


def previous(
    revisions: Sequence[Revision], stable: str, target: str, failed: Collection[str], wanted: str | None = None
) -> Revision | str:
    """The revision called `wanted`, else the one that was in force before; else why there is none.

    While the spec asks for another (`target`) than the stable pods have, that is the one of the stable pods; else the
    newest of the others that was not tried in vain.
    """
    whole = {revision.name: revision for revision in revisions if revision.is_whole}
    if wanted is not None:
        names = ", ".join(sorted(whole)) or "none"
        return whole.get(wanted) or f"there is no stored revision {wanted}; there are: {names}"
    if target and target != stable and stable in whole:
        return whole[stable]
    others = [one for name, one in whole.items() if name not in {stable, *failed}]
    if not others:
        return "no other template is stored: pods ran none before this one"
    return max(others, key=lambda one: one.number)


def patch(now: Boot, then: Boot) -> dict[str, Any]:
    """The merge patch of spec that leads from one template to another; empty where they are the same."""
    sections = ({name: value for name, value in boot.items() if name not in _OF_TUNING} for boot in (now, then))
    changes = _merge(*sections)
    tuning: dict[str, Any] = {}
    if (ladder := _ladder(then)) != _ladder(now):
        tuning["ladder"] = ladder
    table = then.get(TUNING, {}).get("table")
    if TUNING in then and table != now.get(TUNING, {}).get("table"):
        tuning |= {"table": table, "mode": TuningMode.MANUAL.value if table else TuningMode.AUTO.value}
    return {**changes, TUNING: tuning} if tuning else changes


def _ladder(boot: Boot) -> Any:
    """As a spec says it; None: the operator chooses."""
    if TUNING in boot:
        return boot[TUNING].get("ladder")
    return None if boot.get(DEFAULTED) else boot.get(LADDER)


def _merge(now: Mapping[str, Any], then: Mapping[str, Any]) -> dict[str, Any]:
    changes: dict[str, Any] = {name: None for name in now if name not in then}
    for name, value in then.items():
        there = now.get(name)
        if isinstance(value, Mapping) and isinstance(there, Mapping):
            if inner := _merge(there, value):
                changes[name] = inner
        elif there != value or type(there) is not type(value):
            changes[name] = value
    return changes
