"""The part of a pass about engines: write what was planned, then read them, push the table, and scale."""

from __future__ import annotations

from paceline_operator import (
    act,
    contracts,
    naming,
    observe,
    profiles,
    proposing,
    resources,
    rolling,
    safeguard,
    scale,
    tokens,
    told,
    verdicts,
)
from paceline_operator.api.conditions import ConditionType
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.draft import Draft, Hands
from paceline_operator.exported import ENGINES
from paceline_operator.history import Load
from paceline_operator.hold import hold
from paceline_operator.memory import Remembered
from paceline_operator.plan import ChildPlan, Observation, why_withheld
from paceline_operator.recall import recall
from paceline_operator.retune import Retuned, retune
from paceline_operator.tuning import decide

SOON_SECONDS = 1.0


async def carried_out(
    hands: Hands,
    memory: Remembered,
    draft: Draft,
    serving: SpeculativeServing,
    look: Observation,
    plan: ChildPlan | None,
) -> float | None:
    """Write what was planned, then read the engines and push the table."""
    report = draft.report
    ring = hands.keys.ring()
    secret = resources.token_secret(serving, ring.tokens(serving.metadata.uid))
    if secret:
        await tokens.keep(hands.kube, memory, secret, look.missing_secrets, report)
    else:
        await tokens.drop(hands.kube, memory, draft.raw, ring, [*look.pods, *look.plain], report)
    if plan:
        await act.carry_out(hands.kube, draft.namespace, plan, report)
        memory.applied |= report.applied
        if plan.integrates or plan.displaced:
            draft.verdicts.append(verdicts.integrations(why_withheld(plan, look.absent, report.absent)))
        else:
            draft.withdrawn.add(ConditionType.INTEGRATIONS_AVAILABLE)
    spec = (memory.in_force or serving).spec
    settings = decide.settings_of(spec)
    await profiles.named(hands.kube, hands.clock, memory, draft, serving)
    pods = [*look.pods, *look.plain]
    targets = observe.targets(draft.raw, pods, ring)
    moving = scale.settling(memory, hands.clock, draft.raw, look, settings.interval_seconds)
    if memory.frozen or moving:
        canaries = rolling.names(rolling.of_track(look.pods, naming.TRACK_CANARY))
        target = draft.fields.get("rollout", draft.previous.rollout).target
        contract = serving.spec.rollout.canary.output_contract
        question = (contract, serving.spec.model.served_name or draft.name) if contract else None
        why = "pods are replaced" if memory.frozen else "pods come or go"
        tuned = await hold(hands.engines, hands.clock, memory, settings, targets, pods, canaries, target, question, why)
        draft.verdicts += [*told.resumed(draft.previous, why), *profiles.missing(memory)]
    else:
        tuned = await retune(hands.engines, hands.clock, memory, spec, settings, draft.previous, targets, pods)
        report.events += await contracts.asked(hands.engines, hands.clock, memory, serving, targets, pods)
        known = recall(hands.prometheus, hands.clock, memory, serving, draft.previous, tuned)
        draft.fields |= known.fields
        _propose(hands, memory, draft, serving.spec, look, tuned, known.load)
        profiles.tell(hands, memory, draft, tuned)
    await safeguard.look(hands, memory, draft, serving, look, targets, tuned.engines)
    if secret and tuned.engines:
        await tokens.answer_refusals(hands.kube, memory, secret, targets, tuned.engines, report)
        await tokens.forget_previous(hands.kube, memory, secret, ring, targets, len(pods), report)
    frozen = "pods are replaced" if memory.frozen else ""
    scaled = await scale.scale(
        hands.kube, hands.clock, memory, draft.raw, serving.spec, draft.previous, look, tuned, frozen, report
    )
    draft.withdrawn |= set(scaled.withdrawn)
    draft.fields |= {**tuned.fields, **scaled.fields}
    draft.verdicts += [*tuned.verdicts, *scaled.verdicts]
    report.events += tuned.events
    ENGINES.put(draft.key, memory.sightings)
    due = None if memory.look_at is None else max(0.0, memory.look_at - hands.clock.monotonic())
    soon = SOON_SECONDS if plan and plan.waits else None
    return min((each for each in (soon, due, tuned.after) if each is not None), default=None)


def _propose(
    hands: Hands,
    memory: Remembered,
    draft: Draft,
    asked: ServingSpec,
    look: Observation,
    tuned: Retuned,
    load: Load | None,
) -> None:
    """What a restart would bring, in status and for the next look at children."""
    if tuned.step is None:
        return
    previous = draft.previous.model_copy(update=tuned.fields)
    memory.plain = proposing.gathered(memory.plain, tuned.engines)
    memory.proposals, fields = proposing.look(
        memory.in_force.spec if memory.in_force else asked,
        asked,
        tuned.step,
        tuned.engines,
        look.pods,
        previous,
        memory.plain,
        load,
        hands.clock.now(),
    )
    draft.fields |= fields
