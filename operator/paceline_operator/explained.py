"""The arithmetic of a serving's decisions, from its status, as text. Pure.

The same words for a serving of a cluster and for a recorded one: both have a status.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from paceline_engine.protocol import LOAD_EDGES, load_bucket
from paceline_operator.api.status import (
    BucketStatus,
    DecisionRecord,
    GoodputRow,
    ServingStatus,
    TableRow,
    VerificationStatus,
)
from paceline_operator.tuning.load import entries, inside

TOLD_CONDITIONS = ("MetricsAvailable", "SpeculationEffective", "Tuned")
HEAD = (
    "     k       tok/s (95 %)              step ms  length  per position  fires   steps"
    "  % accepted up to position 1, 2, ..."
)


def text(name: str, status: ServingStatus) -> str:
    """What is in force and why, what is known at each load, and every decision with its numbers."""
    lines = [name, *_now(status)]
    if status.verification:
        lines += ["", *_verification(status.verification)]
    for bucket in status.buckets:
        lines += ["", *_bucket(bucket, status.table)]
    for record in status.decisions:
        lines += ["", *decision(record)]
    if not status.decisions:
        lines += ["", "no decision was made yet"]
    return "\n".join(lines)


class Entry(NamedTuple):
    """What the table in force says of one load."""

    requests: int
    k: int | None
    """None: no table is known."""
    from_requests: int
    """From which on, and"""
    until_requests: int | None
    """up to which the table has this k; None = for all above."""
    bucket: int
    """Lower edge of the load bucket, whose requests are measured and decided together."""


def entry(status: ServingStatus, requests: int) -> Entry:
    """At `requests` (>= 1). A table that nobody has decided yet may change inside a bucket."""
    k, start = None, 1
    for row in status.table:
        if row.k == k:
            continue
        if row.from_requests > requests:
            return Entry(requests, k, start, row.from_requests - 1, load_bucket(requests))
        k, start = row.k, row.from_requests
    return Entry(requests, k, start, None, load_bucket(requests))


def at(name: str, status: ServingStatus, requests: int) -> str:
    """The k that engines draft with `requests` in a step, and what is known of that load."""
    found = entry(status, requests)
    until = "on" if found.until_requests is None else f"to {found.until_requests}"
    said = "unknown" if found.k is None else f"{found.k}, the table's from {found.from_requests} {until}"
    lines = [name, f"at {requests} requests: k {said}"]
    bucket = next((one for one in status.buckets if one.from_requests == found.bucket), None)
    if bucket is None:
        return "\n".join([*lines, f"nothing is known yet {_span(found.bucket)}"])
    lines += ["", f"measured together {_span(found.bucket)}:", *_bucket(bucket, status.table)]
    for record in status.decisions:
        if load_bucket(record.requests) == found.bucket:
            lines += ["", *decision(record)]
    return "\n".join(lines)


def decision(record: DecisionRecord) -> list[str]:
    """One decision: what, why, and, where they are kept, the numbers of each k then."""
    what = f"k {record.from_k} to {record.to_k}"
    if record.verification:
        what = f"verification {record.verification}, {what}"
    head = f"{record.at} {record.reason} at {record.requests} requests: {what} (generation {record.generation})"
    chosen = {record.to_k: ">", record.from_k: "<"} if record.from_k != record.to_k else {record.to_k: ">"}
    return [head, f"  {record.message}", *_rows(record.candidates, chosen)]


def _now(status: ServingStatus) -> Iterator[str]:
    load, ks = "idle or unknown", f"k {status.k or 'unknown'}"
    if status.load_requests is not None:
        load = f"{status.load_requests} requests an engine"
        ks += "".join(f" (from {start} requests on k {k})" for start, k in _inside(status.load_requests, status.table))
    yield f"{ks} in force, load {load}, tier {status.tier}, generation {status.policy_generation}"
    yield f"table: {_table(status.table)}"
    if status.recommended_table:
        yield f"recommended: {_table(status.recommended_table)}"
    ratios = (
        ("k=0 in the same engines", status.ratio_to_k0_permille),
        ("an engine without a drafter", status.ratio_to_no_drafter_permille),
    )
    for against, permille in ratios:
        yield f"goodput against {against}: {'unknown' if permille is None else f'{permille / 1000:.3f}'}"
    if spent := status.exploration:
        yield (
            f"exploration over about an hour: {spent.step_share_permille / 10:.1f} % of steps, "
            f"{spent.time_share_permille / 10:.1f} % of decode time, {spent.tokens_lost} tokens given up"
        )
    for condition in status.conditions:
        if condition.type in TOLD_CONDITIONS:
            yield f"{condition.type} {condition.status}: {condition.reason}: {condition.message}"
    for proposal in status.proposals:
        yield f"proposal: {proposal.reason}: {proposal.message}"


def _verification(found: VerificationStatus) -> Iterator[str]:
    cap = "" if found.cap_tokens is None else f" at {found.cap_tokens} tokens a step"
    starved = ", starved" if found.starved else ""
    yield f"verification of drafts: {found.mode}{cap}{starved}" + (f" ({found.message})" if found.message else "")
    for row in found.measured:
        cap = "" if row.cap_tokens is None else f" at {row.cap_tokens}"
        gain = f"{row.gain_permille / 1000:.3f} ({row.low_permille / 1000:.3f} to {row.high_permille / 1000:.3f})"
        yield f"  at {row.from_requests} requests {row.mode}{cap} with k {row.k}: {gain} of verifying all at the best k"


def _bucket(bucket: BucketStatus, table: Sequence[TableRow]) -> list[str]:
    state = "observed" if bucket.observed else "observing"
    if bucket.recommended_k is not None:
        state += f", k {bucket.recommended_k} recommended"
    changes = _inside(bucket.from_requests, table)
    marks = {bucket.k: ">"} | {k: ">" for _, k in changes}
    return [
        f"at {bucket.from_requests} requests: {entries(bucket.k, changes)}, {state}",
        *_rows(bucket.candidates, marks),
    ]


def _inside(bucket: int, table: Sequence[TableRow]) -> list[tuple[int, int]]:
    return inside([(row.from_requests, row.k) for row in table], bucket)


def _span(bucket: int) -> str:
    above = next((edge for edge in LOAD_EDGES if edge > bucket), None)
    if above is None:
        return f"from {bucket} requests on"
    return f"at {bucket} requests" if above == bucket + 1 else f"from {bucket} to {above - 1} requests"


def _rows(candidates: Sequence[GoodputRow], marks: dict[int, str]) -> Iterator[str]:
    if candidates:
        yield HEAD
    for row in candidates:
        length = row.acceptance_length_milli / 1000
        interval = f"({row.low_milli_tokens_per_second / 1000:.1f} to {row.high_milli_tokens_per_second / 1000:.1f})"
        fires = "-" if row.firing_rate_permille is None else f"{row.firing_rate_permille / 10:.0f} %"
        survival = " ".join(f"{share / 10:.1f}" for share in row.survival_permille)
        yield (
            f"{marks.get(row.k, ' ')}{row.k:5d}  {row.goodput_milli_tokens_per_second / 1000:10.1f} {interval:20s}"
            f"  {row.step_microseconds / 1000:8.3f}  {length:6.3f}  {length / (row.k + 1):12.3f}  {fires:>5s}"
            f"  {row.steps:6d}  {survival}{' (borrowed)' if row.borrowed else ''}"
        ).rstrip()


def _table(rows: Sequence[TableRow]) -> str:
    return ", ".join(f"from {row.from_requests}: k {row.k}" for row in rows) or "unknown"
