"""The answer of a pass: what is in force, why, and what to say about metrics, speculation and engines."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import Tier, TuningMode
from paceline_operator.tuning.acceptance import MIN_REQUEST_STEPS
from paceline_operator.tuning.engines import Fleet, listed, runs
from paceline_operator.tuning.model import Decision, Interval, Memory, Settings, Step
from paceline_operator.tuning.state import TunerState

UNACKNOWLEDGED_PASSES = 3
COLLAPSED_LENGTH = 1.02
"""An acceptance length below this, while drafts are paid for, is a drafter that has stopped working (its weights lost,
or an estimator that admits nothing), not a hard text."""


@dataclass(frozen=True)
class Findings:
    """What a pass found beyond the state."""

    late: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    ratio: Interval | None = None


def step(
    settings: Settings, state: TunerState, fleet: Fleet, cursors: Mapping[str, str], found: Findings | None = None
) -> Step:
    """Assemble the answer. Without `found`, nothing answered: everything holds."""
    holding, found = found is None, found or Findings()
    load = state.load.present
    reason, message = _reason(settings, state, fleet, holding)
    at = load if load is not None else state.in_force[0] if state.in_force else None
    states = {engine.name: engine.state for engine in fleet.answering if engine.state is not None}
    return Step(
        memory=Memory(cursors=cursors, state=state),
        reason=reason,
        message=message,
        holding=holding,
        metrics_reason=fleet.reason,
        metrics_message=fleet.message,
        tier=fleet.tier,
        tiers=fleet.tiers,
        effective=_effective(settings, state, fleet, holding),
        table=state.table,
        recommended_table=state.auto if state.decided else None,
        generation=state.policy.generation if state.policy else 0,
        policy=state.policy if found.late else None,
        push_to=found.late,
        acknowledged=tuple(engine.name for engine in fleet.live if engine.state and runs(engine.state, state.policy)),
        decisions=found.decisions,
        load=load,
        k=state.table[load] if load is not None else None,
        buckets=tuple(state.views.values()),
        ratio_to_k0=found.ratio,
        generations={name: one.generation for name, one in states.items()},
        k_by_engine={name: one.table[at] for name, one in states.items() if at is not None and at < len(one.table)},
    )


def _reason(settings: Settings, state: TunerState, fleet: Fleet, holding: bool) -> tuple[Reason, str]:
    if holding:
        return Reason.HOLDING, f"k holds: {fleet.reason}: {fleet.message}"
    if settings.mode is TuningMode.MANUAL:
        return Reason.MANUAL, "the table is the spec's (mode Manual)"
    if settings.mode is TuningMode.OBSERVE:
        return Reason.OBSERVE_ONLY, "mode Observe recommends a table and changes nothing"
    if not fleet.live:
        return Reason.RESTART_TIER, f"no engine takes a table without a restart: {_waiting(fleet)}"
    if state.unacknowledged >= UNACKNOWLEDGED_PASSES:
        return Reason.NOT_ACKNOWLEDGED, "an engine does not run the table that was pushed to it"
    at = state.load.present if state.load.present is not None else state.in_force[0] if state.in_force else None
    if at is None:
        return Reason.OBSERVING, "no decode step was measured yet; the boot table is in force"
    if at not in state.decided and not settings.probing:
        return Reason.OBSERVING, f"not every k of the ladder is measured at {at} requests, and probing is off"
    if at not in state.decided:
        return (
            Reason.OBSERVING,
            f"not every k of the ladder is measured at {at} requests yet; k {state.table[at]} is in force",
        )
    return state.decided[at].reason, state.decided[at].message


def _effective(settings: Settings, state: TunerState, fleet: Fleet, holding: bool) -> tuple[bool | None, Reason, str]:
    if holding:
        return None, Reason.HOLDING, f"unknown: {fleet.message}"
    if not fleet.live:
        return None, Reason.LIVE_K_UNSUPPORTED, f"k cannot follow the load: {_waiting(fleet)}"
    counts = state.acceptance
    on = [row for row, k in enumerate(settings.ladder) if k > 0]
    steps = float(counts.request_steps[on].sum())
    if steps < MIN_REQUEST_STEPS:
        return None, Reason.NO_DRAFTS_YET, "no draft was verified lately"
    extra, fired = float(counts.accepted[on].sum()) / steps, float(counts.drafts[on].sum()) / steps
    sure = 1 + extra + 2 * math.sqrt((extra + 1 / steps) * settings.ladder[0] / steps) < COLLAPSED_LENGTH
    if sure and fired > 0.5:
        return False, Reason.DRAFTER_COLLAPSED, "drafts are made and paid for, but almost none is accepted"
    at = state.load.present if state.load.present is not None else state.in_force[0] if state.in_force else None
    if at is not None and state.table[at] == 0:
        return False, Reason.NOT_SPECULATING, f"k is 0 at {at} requests: drafts do not pay there"
    return True, Reason.EFFECTIVE, "drafts are made, accepted and pay for themselves as far as measured"


def _waiting(fleet: Fleet) -> str:
    return listed([f"{name}: {why}" for name, (tier, why) in fleet.tiers.items() if tier is Tier.RESTART])
