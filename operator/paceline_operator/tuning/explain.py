"""What people are told: status fields, with the numbers behind each decision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

from paceline_engine.protocol import compress
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.status import (
    MAX_K,
    BucketStatus,
    DecisionRecord,
    GoodputRow,
    PodStatus,
    ServingStatus,
    TableRow,
    Tier,
    VerificationMode,
)
from paceline_operator.tuning.model import BucketView, Candidate, Step
from paceline_operator.tuning.state import TunerState

NOTABLE_CHANGE = 0.05
"""Measured numbers in status stay as they are until one of them changed by more than this."""
LARGEST = 2**53
"""Engines' numbers may add up to anything, but one field that is too large keeps all of status from being stored."""
MAX_DECISIONS, MAX_PODS, MAX_BUCKETS, MAX_ROWS, MAX_KS = 20, 64, 24, 64, 16
MAX_EVIDENCE = 5
"""Decisions with their numbers: 2 KB each."""

Verdict = tuple[ConditionType, bool | None, Reason, str]
"""Condition type, status (None = Unknown), reason, message."""


class StatusFields(TypedDict):
    """Fields of ServingStatus that the tuner knows, by attribute name, and the verdicts behind two conditions."""

    tier: Tier
    k: str
    policy_generation: int
    acknowledged_pods: int
    table: list[TableRow]
    recommended_table: list[TableRow]
    load_requests: int | None
    ratio_to_k0_permille: int | None
    buckets: list[BucketStatus]
    decisions: list[DecisionRecord]
    pods: list[PodStatus]
    conditions: tuple[Verdict, ...]


def status_fields(step: Step, previous: ServingStatus, now_rfc3339: str) -> StatusFields:
    """What status should say after `step`.

    Everything but `conditions` may be given to `previous.model_copy(update=...)`. Measured numbers are those of the
    last decision or minute, and `previous`'s where none differs by more than 5 %; nothing changes with time alone.
    While holding, what was measured before stays.
    """
    state = step.memory.state
    published = state.published if isinstance(state, TunerState) else None
    in_force = state.in_force if isinstance(state, TunerState) else None
    buckets, load, ratio = previous.buckets, previous.load_requests, previous.ratio_to_k0_permille
    fresh = isinstance(state, TunerState) and published is not None and published.at == state.now
    if published is not None and (fresh or not buckets) and not (step.holding and not published.buckets):
        new = [_bucket(view) for view in published.buckets[:MAX_BUCKETS]]
        buckets = new if _differs(new, buckets) else buckets
        load = published.load
        permille = whole(1000 * published.ratio_to_k0.value) if published.ratio_to_k0 else None
        ratio = permille if moved(permille, ratio) else ratio
    records = [
        DecisionRecord(
            at=now_rfc3339,
            reason=decision.reason,
            message=decision.message,
            requests=decision.load,
            from_k=decision.from_k,
            to_k=decision.to_k,
            generation=decision.generation,
            verification=VerificationMode(decision.verification.value) if decision.verification else None,
            candidates=[_row(one) for one in decision.evidence.candidates][:MAX_KS] if decision.evidence else [],
        )
        for decision in reversed(step.decisions)
    ]
    names = sorted(step.tiers)[:MAX_PODS]
    return StatusFields(
        tier=step.tier,
        k=_k(step, in_force[1]) if in_force else previous.k,
        policy_generation=max(previous.policy_generation, step.generation),
        acknowledged_pods=len(step.acknowledged),
        table=_rows(step.table),
        recommended_table=_rows(step.recommended_table) if _recommends(step) else [],
        load_requests=load,
        ratio_to_k0_permille=ratio,
        buckets=buckets,
        decisions=_decisions([*records, *previous.decisions]),
        pods=[_pod(step, name) for name in names],
        conditions=_verdicts(step),
    )


def _decisions(newest_first: Sequence[DecisionRecord]) -> list[DecisionRecord]:
    """Of the older ones the numbers go: their messages have those that mattered."""
    older = (record.model_copy(update={"candidates": []}) for record in newest_first[MAX_EVIDENCE:MAX_DECISIONS])
    return [*newest_first[:MAX_EVIDENCE], *older]


def _k(step: Step, in_force: int) -> str:
    """The k in force; a range where engines' own tables differ from it (one was not told yet, or cannot be)."""
    ks = {in_force, *step.k_by_engine.values()} if step.acknowledged else {in_force}
    return str(in_force) if len(ks) == 1 else f"{min(ks)}-{max(ks)}"


def _recommends(step: Step) -> bool:
    return step.recommended_table is not None and step.recommended_table != step.table


def _rows(table: Sequence[int] | None) -> list[TableRow]:
    """As status can hold it: an engine that was booted by others may have a table beyond what a spec may ask."""
    return [TableRow(from_requests=start, k=min(k, MAX_K)) for start, k in compress(table or ())[:MAX_ROWS]]


def _bucket(view: BucketView) -> BucketStatus:
    return BucketStatus(
        from_requests=view.load,
        k=view.k,
        recommended_k=view.recommended_k if view.recommended_k != view.k else None,
        observed=view.observed,
        candidates=[_row(candidate) for candidate in view.candidates if not candidate.borrowed][:MAX_KS],
    )


def _row(candidate: Candidate) -> GoodputRow:
    return GoodputRow(
        k=candidate.k,
        goodput_milli_tokens_per_second=whole(1000 * candidate.goodput.value),
        low_milli_tokens_per_second=whole(1000 * candidate.goodput.low),
        high_milli_tokens_per_second=whole(1000 * candidate.goodput.high),
        step_microseconds=whole(1e6 * candidate.step_seconds.value),
        acceptance_length_milli=whole(1000 * candidate.acceptance_length.value),
        steps=min(candidate.steps, LARGEST),
        firing_rate_permille=None if candidate.firing_rate is None else whole(1000 * candidate.firing_rate),
        survival_permille=[whole(1000 * share) for share in candidate.survival[:MAX_K]],
        borrowed=candidate.borrowed or None,
    )


def whole(value: float) -> int:
    """As status can hold it."""
    return round(max(-LARGEST, min(value, LARGEST)))


def moved(new: int | None, old: int | None) -> bool:
    """Whether a measured number changed enough to be told."""
    if new is None or old is None:
        return new != old
    return abs(new - old) > NOTABLE_CHANGE * max(1, abs(old))


def _differs(new: Sequence[BucketStatus], old: Sequence[BucketStatus]) -> bool:
    if len(new) != len(old):
        return True
    for one, other in zip(new, old, strict=True):
        if (one.from_requests, one.k, one.recommended_k, one.observed) != (
            other.from_requests,
            other.k,
            other.recommended_k,
            other.observed,
        ):
            return True
        if [row.k for row in one.candidates] != [row.k for row in other.candidates]:
            return True
        for a, b in zip(one.candidates, other.candidates, strict=True):
            if (
                moved(a.goodput_milli_tokens_per_second, b.goodput_milli_tokens_per_second)
                or moved(a.step_microseconds, b.step_microseconds)
                or moved(a.acceptance_length_milli, b.acceptance_length_milli)
            ):
                return True
    return False


def _pod(step: Step, name: str) -> PodStatus:
    tier, message = step.tiers[name]
    return PodStatus(name=name, tier=tier, generation=step.generations.get(name, 0), message=message)


def _verdicts(step: Step) -> tuple[Verdict, ...]:
    tuned = step.reason not in (Reason.HOLDING, Reason.OBSERVING, Reason.NOT_ACKNOWLEDGED, Reason.RESTART_TIER)
    return (
        (
            ConditionType.METRICS_AVAILABLE,
            step.metrics_reason is Reason.METRICS_FOUND,
            step.metrics_reason,
            step.metrics_message,
        ),
        (ConditionType.TUNED, None if step.holding else tuned, step.reason, step.message),
    )
