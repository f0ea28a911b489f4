"""Which proposals of the operator's own lie over the user's spec, and which one comes next. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from paceline_operator.api.rollout import Proposals
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status_rollout import AppliedProposal, FieldChange, Phase, RolloutStatus
from paceline_operator.clock import rfc3339
from paceline_operator.preflight.legality import check
from paceline_operator.rollout.proposal import Proposal, overlay, value_at

PAYBACK_SECONDS = 4 * 3600.0
"""In which the tokens that a restart costs must have come back, at the lower end of what it is to bring."""
MAX_APPLIED = 8


class Accepted(NamedTuple):
    """The spec to make pods from, and what to remember of it."""

    spec: ServingSpec
    memory: RolloutStatus
    paths: frozenset[str]
    """Fields that are the operator's own."""


def accept(spec: ServingSpec, memory: RolloutStatus, proposals: Sequence[Proposal], now: datetime) -> Accepted:
    """Lay over `spec` what was accepted before and still holds; accept one more where nothing else is under way."""
    raw: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    applied = [one for one in memory.applied if _holds(one, raw, memory)]
    if spec.rollout.proposals is Proposals.APPLY and memory.phase is Phase.STEADY and len(applied) < MAX_APPLIED:
        in_force = _laid(raw, applied) or spec
        there = in_force.model_dump(mode="json", by_alias=True, exclude_none=True)
        fresh = [one for one in proposals if _news(one, there) and _worth_it(one) and not _failed(one, memory)]
        for one in sorted(fresh, key=lambda one: -one.gain_low):
            found = _record(one, raw, now)
            others = [each for each in applied if name_of(each) != one.key]  # below what it is to replace
            if _laid(raw, [*others, found]) is not None:
                applied = [*others, found]
                break
    laid = _laid(raw, applied)
    if laid is None:  # the spec changed so that they do not fit it any more
        applied, laid = [], spec
    paths = frozenset(change.path for one in applied for change in one.changes)
    return Accepted(laid, memory.model_copy(update={"applied": applied}), paths)


def is_own(fields: Sequence[str], paths: frozenset[str]) -> bool:
    """Whether all changed fields are the operator's (or lie below one that is)."""
    return bool(fields) and all(any(_within(field, path) for path in paths) for field in fields)


def name_of(applied: AppliedProposal) -> str:
    """As Proposal.key."""
    return ", ".join(f"{one.path}={json.loads(one.value)!r}" for one in sorted(applied.changes, key=lambda c: c.path))


def _within(field: str, path: str) -> bool:
    return field == path or field.startswith((f"{path}.", f"{path}[")) or path.startswith(f"{field}.")


def _holds(applied: AppliedProposal, raw: dict[str, Any], memory: RolloutStatus) -> bool:
    """Not where the user has written one of its fields since, nor where its canary was taken back."""
    if any(json.loads(change.was) != value_at(raw, change.path) for change in applied.changes):
        return False
    return not any(one.own and one.proposal == name_of(applied) and one.at >= applied.at for one in memory.failed)


def _failed(proposal: Proposal, memory: RolloutStatus) -> bool:
    return any(one.own and one.proposal == proposal.key for one in memory.failed)


def _news(proposal: Proposal, there: dict[str, Any]) -> bool:
    """Whether it changes what is in force: one that another has replaced since is a new one."""
    return any(value_at(there, path) != value for path, value in proposal.changes.items())


def _worth_it(proposal: Proposal) -> bool:
    return proposal.gain_low > 0 and proposal.restart_seconds / proposal.gain_low <= PAYBACK_SECONDS


def _record(proposal: Proposal, raw: dict[str, Any], now: datetime) -> AppliedProposal:
    changes = [
        FieldChange(path=path, value=json.dumps(value), was=json.dumps(value_at(raw, path)))
        for path, value in sorted(proposal.changes.items())
    ]
    return AppliedProposal(changes=changes, reason=proposal.reason, evidence=proposal.evidence, at=rfc3339(now))


def _laid(raw: dict[str, Any], applied: Sequence[AppliedProposal]) -> ServingSpec | None:
    """The spec with all of them over it; None where that is no spec that can work."""
    for one in applied:
        raw = overlay(raw, {change.path: json.loads(change.value) for change in one.changes})
    try:
        spec = ServingSpec.model_validate(raw)
    except ValueError:
        return None
    return None if applied and check(spec) else spec
