"""The answer of a pass: what is in force, why, and what to say about metrics, speculation and engines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paceline_engine.protocol import CONTEXT_EDGES, Verification, compress
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status import Tier
from paceline_operator.api.tuning import TuningMode
from paceline_operator.tuning import cost, guard, holdout
from paceline_operator.tuning.arms import Arm
from paceline_operator.tuning.engines import Fleet, listed, runs
from paceline_operator.tuning.goodput import interval
from paceline_operator.tuning.load import entries, inside
from paceline_operator.tuning.model import (
    Decision,
    Exploration,
    Interval,
    Memory,
    Restarts,
    Settings,
    Step,
    VerificationView,
)
from paceline_operator.tuning.state import TunerState, one
from paceline_operator.tuning.values import amended

UNACKNOWLEDGED_PASSES = 3


@dataclass(frozen=True)
class Findings:
    """What a pass found beyond the state."""

    late: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    to_k0: Interval | None = None
    to_no_drafter: Interval | None = None
    errors: tuple[str, ...] = ()


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
        memory=Memory(cursors=cursors, state=_kept(state)),
        reason=reason,
        message=message,
        holding=holding,
        metrics_reason=fleet.reason,
        metrics_message=fleet.message,
        tier=fleet.tier,
        tiers=fleet.tiers,
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
        ratio_to_k0=found.to_k0,
        ratio_to_no_drafter=found.to_no_drafter,
        verification=state.policy.adaptive_verification.mode
        if state.policy and state.policy.adaptive_verification
        else None,
        verifications=_verifications(state),
        exploration=_exploration(state),
        contexts=dict(zip(CONTEXT_EDGES, cost.contexts(state.cost).tolist(), strict=True)),
        restarts=_restarts(settings, state),
        errors=found.errors,
        generations={name: one.generation for name, one in states.items()},
        k_by_engine={name: one.table[at] for name, one in states.items() if at is not None and at < len(one.table)},
    )


def _kept(state: TunerState) -> TunerState:
    """Between two passes: smaller, and what is the same in all servings once."""
    policy = state.policy
    if policy is not None and policy.table is not one(policy.table):
        policy = policy.model_copy(update={"table": one(policy.table)})
    return amended(
        state,
        cost=cost.folded(state.cost),
        table=one(state.table),
        auto=one(state.auto),
        base=one(state.base),
        policy=policy,
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
            f"not every k of the ladder is measured at {at} requests yet; "
            f"{entries(state.table[at], inside(compress(state.table), at))} is in force",
        )
    return state.decided[at].reason, state.decided[at].message


def _waiting(fleet: Fleet) -> str:
    return listed([f"{name}: {why}" for name, (tier, why) in fleet.tiers.items() if tier is Tier.RESTART])


def _verifications(state: TunerState) -> tuple[VerificationView, ...]:
    """Every measured arm of adaptive verification against verifying all at the best k."""
    found = []
    for (load, arm), belief in state.verified.beliefs.items():
        everything = state.verified.beliefs.get((load, Arm(Verification.ALL, state.auto[load])))
        if arm.mode is Verification.ALL or everything is None:
            continue
        gain = interval(belief.log - everything.log, belief.variance + everything.variance)
        rate = interval(belief.log, belief.variance)
        found.append(VerificationView(load, arm.mode, arm.k, arm.cap, rate, belief.windows, gain))
    return tuple(sorted(found, key=lambda one: (one.load, one.mode, one.k)))


def _exploration(state: TunerState) -> Exploration:
    book = state.account
    return Exploration(
        step_share=book.tried_steps / book.steps if book.steps else 0.0,
        time_share=book.tried_seconds / book.seconds if book.seconds else 0.0,
        tokens_lost=book.lost,
        quarantined=tuple(sorted(state.quarantine)),
    )


def _restarts(settings: Settings, state: TunerState) -> Restarts:
    since = state.ttft.stuck_since
    stuck = since is not None and state.now - since >= guard.STUCK_SECONDS
    return Restarts(
        without_drafter=holdout.better_without(state.baseline.to_no_drafter, state.history),
        off_for_long=settings.mode is TuningMode.AUTO and holdout.off_for_long(state.history),
        ttft_lowered=state.ttft.lowered if stuck else None,
    )
