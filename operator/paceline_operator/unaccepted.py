"""The part of a pass about a canary whose spec was changed to one that is not accepted: a bad one is taken back all the
same, for that needs no spec but the one that the canary was made from. A good one is not promoted."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from paceline_operator import events, metrics, naming, observe, rolling
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.api.status_rollout import Phase as RolloutPhase
from paceline_operator.api.status_safety import Phase
from paceline_operator.clients.kube import KubeError
from paceline_operator.draft import Draft, Hands
from paceline_operator.hold import hold
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object, Observation
from paceline_operator.resources import workload
from paceline_operator.resources.revision import Revision
from paceline_operator.rollout.accept import accept
from paceline_operator.rollout.canary import judge
from paceline_operator.rollout.decide import LOOK_SECONDS
from paceline_operator.rollout.diff import DEFAULTED, LADDER, LIVE, with_boot
from paceline_operator.rollout.situation import UNKNOWN
from paceline_operator.tuning import decide

logger = logging.getLogger(__name__)


async def judged(hands: Hands, memory: Remembered, draft: Draft, look: Observation) -> float | None:
    """Judge the canary; the seconds to the next look, None where there is none to be judged.

    A canary of the safety ladder is left to it, which looks again once the spec is accepted.
    """
    raw, rollout = draft.raw, draft.previous.rollout
    if look.children is None:
        return None if memory.look_at is None else max(0.0, memory.look_at - hands.clock.monotonic())
    memory.look_at = None
    uid, children = raw["metadata"]["uid"], look.children
    canary = next((key for key in workload.keys(draft.name, naming.TRACK_CANARY) if key in children), None)
    if canary is None or draft.previous.safety.phase is Phase.TRIAL:
        return None
    stored = rolling.revisions(children, draft.name, uid)
    of_canary = (children[canary]["metadata"].get("annotations") or {}).get(naming.ANNOTATION_REVISION)
    serving = next((made_from(raw, one) for one in stored if one.name == of_canary), None)
    if serving is None:
        return None
    now, ring = hands.clock.now(), hands.keys.ring()
    canaries = rolling.names(rolling.of_track(look.pods, naming.TRACK_CANARY))
    is_watched = bool(memory.watch.revision) and memory.watch.revision == rollout.target
    watched = hands.clock.monotonic() - memory.watch.since if is_watched else 0.0
    found = judge(serving.spec.rollout.canary, *memory.watch.sides(canaries)) if is_watched else UNKNOWN
    accepted = accept(serving.spec, rollout, (), now)
    rolled = rolling.roll(serving, raw, look, accepted, found, watched, hands.defaults, ring.tokens(uid), now)
    if rolled.decision.memory.phase is RolloutPhase.ROLLED_BACK:
        await _taken_back(hands, draft, rolled, children[canary], canary)
        memory.look_at = hands.clock.monotonic()
        return 0.0
    pods = [*look.pods, *look.plain]
    settings = decide.settings_of(rolled.in_force.spec)
    contract = serving.spec.rollout.canary.output_contract
    question = (contract, serving.spec.model.served_name or draft.name) if contract else None
    targets = observe.targets(raw, pods, ring)
    why = "the spec is not accepted and a canary serves"
    tuned = await hold(
        hands.engines, hands.clock, memory, settings, targets, pods, canaries, rollout.target, question, why
    )
    draft.report.events += tuned.events
    after = min(LOOK_SECONDS, tuned.after or LOOK_SECONDS)
    memory.look_at = hands.clock.monotonic() + after
    return after


async def _taken_back(hands: Hands, draft: Draft, rolled: rolling.Rolled, canary: Object, key: tuple[str, str]) -> None:
    """What was found out is remembered in one pass and done in the next, as in every rollout."""
    decision = rolled.decision
    draft.fields["rollout"] = decision.memory
    draft.verdicts += decision.verdicts
    draft.report.events += decision.events
    for event in decision.events:
        metrics.ROLLOUTS.labels(event.reason).inc()
        logger.info("Rollout: object=%s/%s reason=%s %s", *draft.key, event.reason, event.message)
    if decision.canary is None and "deletionTimestamp" not in canary["metadata"]:
        try:
            if await hands.kube.delete(key[0], draft.namespace, key[1], canary["metadata"]["uid"]):
                draft.report.events.append(events.pruned(*key))
        except KubeError as error:
            draft.report.errors.append(error)


def made_from(raw: Object, revision: Revision) -> SpeculativeServing | None:
    """The serving that a revision was made from, with what `raw` says beside the pods' template as far as it makes
    sense; None where that is not known."""
    said = raw.get("spec")
    asked: Mapping[str, Any] = said if isinstance(said, Mapping) else {}
    whole = {name: value for name, value in revision.boot.items() if name not in (LADDER, DEFAULTED)}
    for name in LIVE:
        if name in asked:
            with suppress(ValueError):
                ServingSpec.model_validate({**whole, name: asked[name]})
                whole[name] = asked[name]
    try:
        spec = with_boot(ServingSpec.model_validate(whole), dict(revision.boot))
    except ValueError:  # of another version, or rebuilt from what ran
        return None
    known = {name: raw[name] for name in ("apiVersion", "kind", "metadata")}
    return SpeculativeServing.model_validate({**known, "spec": spec.model_dump(mode="json", by_alias=True)})
