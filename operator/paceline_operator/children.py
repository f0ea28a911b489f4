"""The part of a pass about children: what each should be, the pods' workloads included, and what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from paceline_operator import extras, metrics, naming, observe, resources, rolling, traffic
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status_rollout import Phase
from paceline_operator.clients.kube import Object
from paceline_operator.draft import Draft, Hands
from paceline_operator.memory import Remembered
from paceline_operator.plan import ChildKey, ChildPlan, Observation, key_of, plan_children
from paceline_operator.resources import workload
from paceline_operator.rollout.accept import accept
from paceline_operator.rollout.canary import judge
from paceline_operator.rollout.decide import OCCUPIED_SECONDS
from paceline_operator.rollout.evidence import Watch
from paceline_operator.rollout.situation import UNKNOWN, Judgement
from paceline_operator.safety.lay import holds, laid
from paceline_operator.tuning.model import Memory

logger = logging.getLogger(__name__)


async def decided(
    hands: Hands, memory: Remembered, draft: Draft, serving: SpeculativeServing, look: Observation
) -> tuple[Mapping[ChildKey, Object], ChildPlan]:
    """Decide what each child should be, the pods' workloads included: what is there, and what to do about it."""
    raw, whole = draft.raw, serving
    key = hands.keys.ring().tokens(serving.metadata.uid)
    now, rollout = hands.clock.now(), draft.previous.rollout
    safety = draft.previous.safety
    taken = {change.path for change in safety.changes}
    proposals = [one for one in memory.proposals if not holds(safety) and not taken & one.changes.keys()]
    accepted = accept(serving.spec, rollout, proposals, now)
    # One copy where they are the same, as they mostly are: a spec takes some 14 KB for as long as the serving is there.
    memory.accepted = serving.spec if accepted.spec == serving.spec else accepted.spec
    remedy = laid(accepted.spec, safety)
    serving = serving.model_copy(update={"spec": remedy.spec})
    canaries = rolling.names(rolling.of_track(look.pods, naming.TRACK_CANARY))
    found = judge(serving.spec.rollout.canary, *memory.watch.sides(canaries))
    is_watched = bool(memory.watch.revision) and memory.watch.revision == rollout.target
    watched = hands.clock.monotonic() - memory.watch.since if is_watched else 0.0
    judgement = found if is_watched else UNKNOWN
    if stands := [f"{pod} for {memory.hung[pod]:.0f} s" for pod in canaries if pod in memory.hung]:
        judgement = Judgement(False, Reason.ENGINE_HUNG, f"it has requests and gives no token: {', '.join(stands)}")
    occupied, asked = "", serving
    displaced: tuple[str, ...] = ()
    while True:
        given = (judgement, watched, hands.defaults, key, now, occupied)
        rolled = rolling.roll(serving, raw, look, accepted, *given, remedy=remedy)
        extra = extras.gather(extras.Asked(asked, rolled, raw, look, draft.previous, hands.defaults, key))
        wanted = [*resources.around(serving, hands.defaults), *extra.manifests, *rolled.manifests]
        there = await observe.namesakes(hands.kube, draft.namespace, look, list(map(key_of, wanted)))
        plan = plan_children(wanted, there, raw, memory.applied, look.absent)
        places = workload.keys(serving.metadata.name, naming.TRACK_CANARY)
        canary = [manifest for manifest in rolled.manifests if key_of(manifest) in places]
        plain = [manifest for manifest in extra.manifests if traffic.is_plain(serving, manifest)]
        of_canary, of_plain = (
            plan_children(each, there, raw, memory.applied, look.absent).conflicts for each in (canary, plain)
        )
        if set(plan.conflicts) - {*of_canary, *of_plain}:
            break
        # Only the rollout waits for the one, and plain pods for the other: the pods that run are served as ever.
        if of_canary and not occupied:
            occupied = "; ".join(of_canary)
        elif of_plain and not displaced:
            displaced, asked = of_plain, traffic.without_plain(serving)
        else:
            break
    if not plan.conflicts:
        plan = replace(plan, displaced=displaced)
        decision = rolled.decision
        memory.in_force = whole if rolled.in_force == whole else rolled.in_force
        memory.frozen = decision.frozen or extra.frozen
        if not decision.frozen:
            memory.watch = Watch()
            if rollout.phase in (Phase.PROMOTING, Phase.ROLLING):
                memory.tuner = Memory()  # of pods that are gone: the engines tell their own history anew
        again = OCCUPIED_SECONDS if displaced else None
        after = min((each for each in (decision.after, extra.after, again) if each is not None), default=None)
        memory.look_at = None if after is None else hands.clock.monotonic() + after
        draft.withdrawn |= set(extra.withdrawn)
        draft.fields |= {**extra.fields, "rollout": decision.memory}
        draft.verdicts += [*decision.verdicts, *extra.verdicts]
        draft.report.events += [*decision.events, *extra.events]
        for event in decision.events:
            metrics.ROLLOUTS.labels(event.reason).inc()
            logger.info("Rollout: object=%s/%s reason=%s %s", *draft.key, event.reason, event.message)
    return there, plan
