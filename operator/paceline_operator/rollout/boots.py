"""The boot configurations that served, and what each gave: evidence for going back to one, or for never doing so.

Goodput of another day is evidence, no proof: traffic may have changed. Whoever acts on it goes through a canary.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import BucketStatus, GoodputRow
from paceline_operator.api.status_boots import BootField, BootLoad, BootRecord

PATHS = (
    "speculation.enabled",
    "speculation.method",
    "speculation.draft",
    "speculation.maxTokens",
    "speculation.adaptiveVerification",
    "engine.cudagraphMode",
    "tuning.ladder",
)
"""What a proposal may change of how speculation is booted."""
_ROOMS = {path.partition(".")[0] for path in PATHS}
"""Of a spec, where `PATHS` begin: the rest, which is most of it, need not be written out in each pass."""
KEPT = 4
"""Boots remembered, the one in force included."""


def fields_of(spec: ServingSpec) -> list[BootField]:
    """`PATHS` of `spec`."""
    whole = spec.model_dump(mode="json", by_alias=True, exclude_none=True, include=_ROOMS)
    return [BootField(path=path, value=json.dumps(_at(whole, path), sort_keys=True)) for path in PATHS]


def changes(present: Sequence[BootField], wanted: Sequence[BootField]) -> dict[str, Any]:
    """Path -> value that lead from one boot to another."""
    now = {one.path: one.value for one in present}
    return {one.path: json.loads(one.value) for one in wanted if now.get(one.path) != one.value}


def advanced(
    boots: Sequence[BootRecord],
    spec: ServingSpec,
    buckets: Sequence[BucketStatus],
    plain: Mapping[int, BootLoad],
    now_rfc3339: str,
) -> list[BootRecord]:
    """`boots` (the one in force first) as of a pass in which the stable pods run `spec`.

    `buckets` and `plain`: what was measured until now, of engines that draft and of engines without a drafter.
    """
    fields = fields_of(spec)
    if boots and boots[0].fields == fields:
        return list(boots)
    earlier = [one for one in boots if one.fields != fields]
    if boots:
        loads = best(buckets) if _drafts(boots[0].fields) else [plain[load] for load in sorted(plain)]
        earlier[0] = boots[0].model_copy(update={"left_at": now_rfc3339, "loads": loads or boots[0].loads})
    before = next((one for one in boots if one.fields == fields), None)
    visits = before.visits + 1 if before else 1
    return [BootRecord(fields=fields, since=now_rfc3339, visits=visits), *earlier][:KEPT]


def best(buckets: Sequence[BucketStatus]) -> list[BootLoad]:
    """At each load the measured k of most goodput."""
    found = []
    for bucket in buckets:
        rows = [row for row in bucket.candidates if not row.borrowed]
        if rows:
            found.append(load_of(bucket.from_requests, max(rows, key=lambda one: one.goodput_milli_tokens_per_second)))
    return found


def load_of(load: int, row: GoodputRow) -> BootLoad:
    """One row of what was measured at `load`."""
    return BootLoad(
        from_requests=load,
        k=row.k,
        goodput_milli_tokens_per_second=row.goodput_milli_tokens_per_second,
        low_milli_tokens_per_second=row.low_milli_tokens_per_second,
        high_milli_tokens_per_second=row.high_milli_tokens_per_second,
    )


def _drafts(fields: Sequence[BootField]) -> bool:
    return BootField(path="speculation.enabled", value="false") not in fields


def _at(whole: Mapping[str, Any], path: str) -> Any:
    at: Any = whole
    for name in path.split("."):
        at = at.get(name) if isinstance(at, Mapping) else None
    return at
