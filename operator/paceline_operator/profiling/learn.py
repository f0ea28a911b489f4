"""What a tuner has learnt, in rows for status, and the SpeculationProfile that is made of these."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from paceline_operator import naming
from paceline_operator.api.learned import AcceptanceRow, CostRow, LearnedStatus, NoDrafterRow, ProfileKey
from paceline_operator.api.status import ServingStatus, VerificationMode
from paceline_operator.plan import Object
from paceline_operator.profiling.key import NO_ANSWER
from paceline_operator.proposing import MIN_PLAIN_STEPS, Plain
from paceline_operator.tuning import acceptance, cost
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS, Acceptance
from paceline_operator.tuning.cost import Cost
from paceline_operator.tuning.explain import LARGEST
from paceline_operator.tuning.state import TunerState
from paceline_operator.tuning.values import amended

LARGEST_K, LARGEST_STEP = 32, 600_000_000
"""Of a row: k, and microseconds."""
LEAST_DRAFTS = 2 * MIN_REQUEST_STEPS
"""A profile lends half of the minimum: of twice the minimum, most was measured here."""
MILLION = 1e6


def learned(
    state: TunerState,
    key: ProfileKey | str,
    plain: Mapping[int, Plain],
    previous: ServingStatus,
    status: ServingStatus,
    now_rfc3339: str,
) -> LearnedStatus | None:
    """For `status`, the one that is about to be written: anew where its measured numbers or the key changed.

    `plain`: load bucket -> decode steps of engines without a drafter. None where no engine answered ever.
    """
    past = previous.learned
    if key == NO_ANSWER:
        return past
    told = key if isinstance(key, ProfileKey) else None
    message = "" if told is not None else str(key)
    same_engines = past is not None and (past.key, past.message) == (told, message)
    if same_engines and previous.buckets == status.buckets:
        return past
    rows = costs(state.cost)
    if same_engines and not rows:  # a process that has only begun: what was learnt before holds
        return past
    return LearnedStatus(
        key=told,
        message=message,
        measured_at=now_rfc3339 if rows else None,
        cost=rows,
        no_drafter=[_no_drafter(at, one) for at, one in sorted(plain.items()) if one.steps >= MIN_PLAIN_STEPS],
        acceptance=fates(state.acceptance),
        adaptive_loads=adaptive(status),
    )


def costs(found: Cost) -> list[CostRow]:
    """Cells that have their minimum count of steps of their own: what a profile lent is not told again."""
    found = cost.unfolded(found)
    own = cost.own(amended(found, lent=found.lent * 0))
    rows, width = [], len(found.ladder)
    for at, load in enumerate(found.loads):
        for column, k in enumerate(found.ladder):
            place = at * width + column
            if not own[at, column] or k > LARGEST_K:
                continue
            mean = math.exp(min(float(found.mean[place]), math.log(LARGEST_STEP / MILLION)))
            error = mean * math.sqrt(max(0.0, float(found.covariance[place, place])))
            rows.append(
                CostRow(
                    k=k,
                    from_requests=load,
                    step_microseconds=max(1, round(MILLION * mean)),
                    deviation_microseconds=min(round(MILLION * error), LARGEST_STEP),
                    steps=round(min(float(found.steps[place]), LARGEST)),
                )
            )
    return rows


def fates(found: Acceptance) -> list[AcceptanceRow]:
    """Effective counts of each k: what is forgotten does not count any more."""
    lengths, rows = acceptance.lengths(found), []
    for row, k in enumerate(found.ladder):
        steps = int(min(float(found.own_counts[row, 0]), LARGEST))
        if not 0 < k <= LARGEST_K or steps < LEAST_DRAFTS:
            continue
        there, drafts = (float(one) for one in found.counts[row, :2])
        accepted, least = [], steps
        for share in lengths.survival[row][:k].tolist():
            least = min(least, round(steps * share))
            accepted.append(max(0, least))
        drafted = max(accepted[0], round(steps * min(1.0, drafts / there))) if there > 0 else steps
        rows.append(AcceptanceRow(k=k, request_steps=steps, drafts=drafted, drafted=[drafted] * k, accepted=accepted))
    return rows


def adaptive(status: ServingStatus) -> list[int]:
    """Loads where adaptive verification gave more than verifying all, beyond doubt."""
    rows = status.verification.measured if status.verification else []
    return sorted({row.from_requests for row in rows if row.low_permille > 1000 and _is_adaptive(row.mode)})


def profile_of(name: str, found: LearnedStatus | None, workload: str) -> Object | str:
    """A SpeculationProfile of what was learnt; else why there is none."""
    if found is None:
        return "nothing was learnt yet"
    if found.key is None:
        return f"its key is not known: {found.message}"
    if not found.cost or found.measured_at is None:
        return "no load has its minimum count yet"
    spec = found.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"message"})
    return body(name, {**spec, "workload": workload})


def body(name: str, spec: Mapping[str, Any]) -> Object:
    """A SpeculationProfile; what is empty is left out."""
    return {
        "apiVersion": naming.API_VERSION,
        "kind": naming.KIND_PROFILE,
        "metadata": {"name": name},
        "spec": {field: value for field, value in spec.items() if value not in (None, [])},
    }


def _is_adaptive(mode: VerificationMode) -> bool:
    return mode in (VerificationMode.ADAPTIVE, VerificationMode.CAPPED)


def _no_drafter(load: int, sums: Plain) -> NoDrafterRow:
    step = min(max(1, round(MILLION * sums.seconds / sums.steps)), LARGEST_STEP)
    return NoDrafterRow(from_requests=load, step_microseconds=step, steps=round(min(sums.steps, LARGEST)))
