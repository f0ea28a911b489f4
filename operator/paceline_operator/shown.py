"""Servings as rows of a table: what `paceline status`, `top`, `history` and `table` show. Pure.

What is unknown is shown as `-`, never as 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from paceline_operator.api.status import BucketStatus, GoodputRow, ServingStatus
from paceline_operator.verdicts import status_of

Raw = dict[str, Any]
Rows = list[list[str]]
UNKNOWN = "-"
OVERVIEW = ["NAMESPACE", "NAME", "READY", "K", "TIER", "LOAD", "RATIO TO K=0", "TUNED", "REPLICAS"]
WIDE = [*OVERVIEW, "METHOD", "GENERATION", "ACKNOWLEDGED", "EFFECTIVE", "MODEL"]
LIVE = ["NAMESPACE", "NAME", "PODS", "LOAD", "K", "TOK/S", "ACCEPTED", "STEP MS", "RATIO TO K=0", "EXPLORING", "TUNED"]
DECISIONS = ["AT", "REASON", "REQUESTS", "K", "GENERATION", "MESSAGE"]
TABLE = ["FROM REQUESTS", "K", "RECOMMENDED", "OBSERVED", "TOK/S", "95 %", "ACCEPTANCE LENGTH", "STEP MS", "STEPS"]


def overview(raw: Raw, *, wide: bool) -> list[str]:
    """A serving as a row of OVERVIEW, or of WIDE."""
    status, spec, meta = status_of(raw, ServingStatus), raw.get("spec") or {}, raw["metadata"]
    row = [
        meta["namespace"],
        meta["name"],
        condition(status, "Ready"),
        status.k or UNKNOWN,
        str(status.tier),
        _number(status.load_requests),
        _permille(status.ratio_to_k0_permille),
        condition(status, "Tuned"),
        f"{status.ready_replicas}/{spec.get('replicas', 1)}",
    ]
    if wide:
        pods = f"{status.acknowledged_pods}/{status.replicas}"
        row += [
            str((spec.get("speculation") or {}).get("method", UNKNOWN)),
            str(status.policy_generation),
            pods,
            condition(status, "SpeculationEffective"),
            str((spec.get("model") or {}).get("source", UNKNOWN)),
        ]
    return row


def live(raw: Raw) -> list[str]:
    """A serving as a row of LIVE: the numbers of the k in force at the present load, of one engine."""
    status, meta = status_of(raw, ServingStatus), raw["metadata"]
    now = in_force(status)
    exploring = f"{status.exploration.step_share_permille / 10:.1f} %" if status.exploration else UNKNOWN
    return [
        meta["namespace"],
        meta["name"],
        f"{status.ready_replicas}/{status.replicas}",
        _number(status.load_requests),
        status.k or UNKNOWN,
        f"{now.goodput_milli_tokens_per_second / 1000:.0f}" if now else UNKNOWN,
        f"{now.acceptance_length_milli / 1000:.2f}" if now else UNKNOWN,
        f"{now.step_microseconds / 1000:.2f}" if now else UNKNOWN,
        _permille(status.ratio_to_k0_permille),
        exploring,
        condition(status, "Tuned"),
    ]


def in_force(status: ServingStatus) -> GoodputRow | None:
    """The measured numbers of the k in force at the present load, or None."""
    bucket = next((one for one in status.buckets if one.from_requests == status.load_requests), None)
    return _measured(bucket, bucket.k) if bucket else None


def decisions(status: ServingStatus) -> Rows:
    """Rows of DECISIONS, newest first."""
    return [
        [
            one.at,
            one.reason,
            str(one.requests),
            f"{one.from_k} to {one.to_k}" + (f", {one.verification}" if one.verification else ""),
            str(one.generation),
            one.message,
        ]
        for one in status.decisions
    ]


def table(status: ServingStatus) -> Rows:
    """Rows of TABLE: the k in force at each load that is known, and what was measured of it."""
    return [_bucket(bucket) for bucket in status.buckets]


def condition(status: ServingStatus, kind: str) -> str:
    """`True`, or the status with its reason; `-` where there is no such condition."""
    found = next((one for one in status.conditions if one.type == kind), None)
    if found is None:
        return UNKNOWN
    return found.status if found.status == "True" else f"{found.status}: {found.reason}"


def _bucket(bucket: BucketStatus) -> list[str]:
    row = _measured(bucket, bucket.k)
    head = [
        str(bucket.from_requests),
        str(bucket.k),
        _number(bucket.recommended_k),
        "yes" if bucket.observed else "not yet",
    ]
    if row is None:
        return [*head, *[UNKNOWN] * (len(TABLE) - len(head))]
    low, high = row.low_milli_tokens_per_second / 1000, row.high_milli_tokens_per_second / 1000
    return [
        *head,
        f"{row.goodput_milli_tokens_per_second / 1000:.1f}",
        f"{low:.1f} to {high:.1f}",
        f"{row.acceptance_length_milli / 1000:.2f}" + (" (borrowed)" if row.borrowed else ""),
        f"{row.step_microseconds / 1000:.2f}",
        str(row.steps),
    ]


def _measured(bucket: BucketStatus, k: int) -> GoodputRow | None:
    rows: Sequence[GoodputRow] = bucket.candidates
    return next((row for row in rows if row.k == k), None)


def _number(value: int | None) -> str:
    return UNKNOWN if value is None else str(value)


def _permille(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value / 1000:.2f}"
