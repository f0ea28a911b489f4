"""One pass over one SpeculativeServing: gather, decide, act, one status write. The only orchestration there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import (
    act,
    events,
    extras,
    naming,
    observe,
    proposing,
    resources,
    rolling,
    scale,
    tokens,
    verdicts,
)
from paceline_operator.acceptance import accept
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.api.status_rollout import Phase
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.keys import KeyFile
from paceline_operator.clients.kube import ForbiddenError, Kube, Object
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.exported import ENGINES
from paceline_operator.gauges import SERVINGS
from paceline_operator.history import Load
from paceline_operator.hold import hold
from paceline_operator.memory import Remembered
from paceline_operator.plan import ChildKey, ChildPlan, Observation, key_of, plan_children, why_withheld
from paceline_operator.recall import recall
from paceline_operator.resources import Defaults, workload
from paceline_operator.retune import Retuned, retune
from paceline_operator.rollout.accept import accept as accept_proposals
from paceline_operator.rollout.canary import judge
from paceline_operator.rollout.evidence import Watch
from paceline_operator.rollout.situation import UNKNOWN
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Memory
from paceline_operator.verdicts import Verdict

ServingKey = tuple[str, str]
"""(namespace, name)"""
SOON_SECONDS = 1.0
CONFLICT_SECONDS = 30.0
"""Nothing wakes an object when somebody else's, without its label, goes out of its way."""


@dataclass(frozen=True)
class Hands:
    """What all passes share."""

    kube: Kube
    engines: EngineClient
    keys: KeyFile
    defaults: Defaults
    clock: Clock
    prometheus: PrometheusClient = field(default_factory=PrometheusClient)


@dataclass(frozen=True)
class Result:
    """When to look again: after `after` seconds (None: when something changes), or never."""

    after: float | None = None
    gone: bool = False


@dataclass
class Draft:
    """What a pass found and did so far: it becomes status and events."""

    raw: Object
    previous: ServingStatus
    fields: dict[str, Any]
    verdicts: list[Verdict]
    report: act.Report
    withdrawn: set[ConditionType] = field(default_factory=set)

    def tells(self, kind: ConditionType) -> bool:
        """Whether there is a verdict of this type already."""
        return any(verdict.type is kind for verdict in self.verdicts)


class ServingPass:
    """The passes over one object. Not for concurrent use."""

    def __init__(self, key: ServingKey, hands: Hands) -> None:
        self._namespace, self._name = key
        self._hands = hands
        self._memory = Remembered()

    async def run(self, full: bool) -> Result:
        """One pass; `full` also compares all children. Raises a KubeError where it is to be tried again soon."""
        raw = await self._hands.kube.get(naming.KIND_SERVING, self._namespace, self._name)
        if raw is None:
            ENGINES.put((self._namespace, self._name), {})
            SERVINGS.put((self._namespace, self._name), None)
            return Result(gone=True)
        meta = raw["metadata"]
        if "deletionTimestamp" in meta:
            return Result()  # children go by their owner references
        if meta["uid"] != self._memory.uid:
            self._memory = Remembered(uid=meta["uid"])
        previous = self._memory.unsaved or verdicts.status_of(raw, ServingStatus)
        due = self._memory.look_at is not None and self._memory.look_at <= self._hands.clock.monotonic()
        full = full or due or self._memory.generation != meta["generation"]
        draft = Draft(raw, previous, {}, [], act.Report())
        serving, accepted = accept(raw, self._hands.defaults)
        after = None
        try:
            after = await self._work(draft, serving, accepted, full)
        except ForbiddenError as error:  # waiting does not help, a role does: said where people look
            draft.report.errors.append(error)
            draft.verdicts = [accepted, verdicts.failed([str(error)])]
        await self._conclude(draft)
        if draft.report.errors:
            raise draft.report.errors[0]
        return Result(after=after)

    async def _work(
        self, draft: Draft, serving: SpeculativeServing | None, accepted: Verdict, full: bool
    ) -> float | None:
        """Children, token and table; the seconds to the next pass."""
        hands, memory, raw = self._hands, self._memory, draft.raw
        suspended = serving is not None and serving.spec.suspend
        look = await observe.surroundings(hands.kube, raw, full)
        asked = serving if not suspended else None
        plan = None
        if asked and look.children is not None:
            if asked.spec.model.cache:
                pods = [*look.pods, *look.plain, *look.pullers]
                look = dataclasses.replace(look, pulls=await observe.pulls(hands.engines, raw, pods, hands.keys.ring()))
            children, plan = await self._children(draft, asked, look)
            if plan.conflicts:
                serving, asked, accepted = None, None, verdicts.conflict(plan.conflicts)
            look = dataclasses.replace(look, children=children)
        after = CONFLICT_SECONDS if plan and plan.conflicts else None
        if asked:
            after = await self._engines(draft, asked, look, plan)
        else:
            memory.sightings = {}
            ENGINES.put((self._namespace, self._name), {})
            reason = Reason.SUSPENDED if suspended else Reason.NOT_ACCEPTED
            draft.verdicts += [*verdicts.untuned(reason), *scale.rest(draft.previous, reason)]
        if look.children is not None:
            again = draft.report.errors or (plan and (plan.waits or plan.conflicts))
            memory.generation = 0 if again else raw["metadata"]["generation"]
        draft.verdicts += self._workload(raw, serving, accepted, look, draft)
        draft.fields |= {
            "replicas": len(look.pods),
            "ready_replicas": sum(map(verdicts.is_ready, look.pods)),
            "selector": ",".join(f"{key}={value}" for key, value in naming.selector(self._name).items()),
        }
        return after

    async def _children(
        self, draft: Draft, serving: SpeculativeServing, look: Observation
    ) -> tuple[Mapping[ChildKey, Object], ChildPlan]:
        """Decide what each child should be, the pods' workloads included: what is there, and what to do about it."""
        hands, memory, raw = self._hands, self._memory, draft.raw
        key = hands.keys.ring().tokens(serving.metadata.uid)
        now, rollout = hands.clock.now(), draft.previous.rollout
        accepted = accept_proposals(serving.spec, rollout, memory.proposals, now)
        serving = serving.model_copy(update={"spec": accepted.spec})
        canaries = rolling.names(rolling.of_track(look.pods, naming.TRACK_CANARY))
        found = judge(serving.spec.rollout.canary, *memory.watch.sides(canaries))
        judgement = found if memory.watch.revision and memory.watch.revision == rollout.target else UNKNOWN
        rolled = rolling.roll(serving, raw, look, accepted, judgement, hands.defaults, key, now)
        extra = extras.gather(extras.Asked(serving, rolled, raw, look, draft.previous, hands.defaults, key))
        wanted = [*resources.around(serving, hands.defaults), *extra.manifests, *rolled.manifests]
        children = await observe.namesakes(hands.kube, self._namespace, look, list(map(key_of, wanted)))
        plan = plan_children(wanted, children, raw, memory.applied, look.absent)
        if not plan.conflicts:
            decision = rolled.decision
            memory.in_force, memory.frozen = rolled.in_force, decision.frozen or extra.frozen
            if not decision.frozen:
                memory.watch = Watch()
                if rollout.phase in (Phase.PROMOTING, Phase.ROLLING):
                    memory.tuner = Memory()  # of pods that are gone: the engines tell their own history anew
            after = min((each for each in (decision.after, extra.after) if each is not None), default=None)
            memory.look_at = None if after is None else hands.clock.monotonic() + after
            draft.withdrawn |= set(extra.withdrawn)
            draft.fields |= {**extra.fields, "rollout": decision.memory}
            draft.verdicts += [*decision.verdicts, *extra.verdicts]
            draft.report.events += [*decision.events, *extra.events]
        return children, plan

    async def _engines(
        self, draft: Draft, serving: SpeculativeServing, look: Observation, plan: ChildPlan | None
    ) -> float | None:
        """Write what was planned, then read the engines and push the table."""
        hands, memory, report = self._hands, self._memory, draft.report
        ring = hands.keys.ring()
        secret = resources.token_secret(serving, ring.tokens(serving.metadata.uid))
        if secret:
            await tokens.keep(hands.kube, memory, secret, look.missing_secrets, report)
        else:
            await tokens.drop(hands.kube, memory, draft.raw, ring, [*look.pods, *look.plain], report)
        if plan:
            await act.carry_out(hands.kube, self._namespace, plan, report)
            memory.applied |= report.applied
            if plan.integrates:
                draft.verdicts.append(verdicts.integrations(why_withheld(plan, look.absent, report.absent)))
            else:
                draft.withdrawn.add(ConditionType.INTEGRATIONS_AVAILABLE)
        settings = decide.settings_of((memory.in_force or serving).spec)
        pods = [*look.pods, *look.plain]
        targets = observe.targets(draft.raw, pods, ring)
        moving = scale.settling(memory, hands.clock, draft.raw, look, settings.interval_seconds)
        if memory.frozen or moving:
            canaries = rolling.names(rolling.of_track(look.pods, naming.TRACK_CANARY))
            target = draft.fields.get("rollout", draft.previous.rollout).target
            contract = serving.spec.rollout.canary.output_contract
            question = (contract, serving.spec.model.served_name or self._name) if contract else None
            why = "pods are replaced" if memory.frozen else "pods come or go"
            tuned = await hold(
                hands.engines, hands.clock, memory, settings, targets, pods, canaries, target, question, why
            )
        else:
            tuned = await retune(hands.engines, hands.clock, memory, settings, draft.previous, targets, pods)
            known = recall(hands.prometheus, hands.clock, memory, serving, draft.previous, tuned)
            draft.fields |= known.fields
            self._propose(draft, serving.spec, look, tuned, known.load)
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
        ENGINES.put((self._namespace, self._name), memory.sightings)
        due = None if memory.look_at is None else max(0.0, memory.look_at - hands.clock.monotonic())
        soon = SOON_SECONDS if plan and plan.waits else None
        return min((each for each in (soon, due, tuned.after) if each is not None), default=None)

    def _propose(self, draft: Draft, asked: ServingSpec, look: Observation, tuned: Retuned, load: Load | None) -> None:
        """What a restart would bring, in status and for the next look at children."""
        if tuned.step is None:
            return
        memory, previous = self._memory, draft.previous.model_copy(update=tuned.fields)
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
            self._hands.clock.now(),
        )
        draft.fields |= fields

    def _workload(
        self, raw: Object, serving: SpeculativeServing | None, accepted: Verdict, look: Observation, draft: Draft
    ) -> list[Verdict]:
        spec, replicas = serving.spec if serving else None, verdicts.replicas_of(raw)
        available = verdicts.available(replicas, spec.rollout.max_unavailable if spec else 1, look.pods)
        found = [accepted, available, verdicts.ready(accepted, available)]
        found.append(verdicts.suspended(bool(spec and spec.suspend)))
        if draft.report.errors:
            found.append(verdicts.failed([str(error) for error in draft.report.errors]))
        elif look.children is not None and not draft.tells(ConditionType.PROGRESSING):
            children = {**look.children, **draft.report.results}  # what was just applied has not begun to roll out
            keys = workload.keys(self._name, naming.TRACK_STABLE)
            found.append(verdicts.progressing(replicas, next((children[key] for key in keys if key in children), None)))
        return found

    async def _conclude(self, draft: Draft) -> None:
        """The one status write, then the events. Status that cannot be written is kept for the next pass."""
        memory, now = self._memory, rfc3339(self._hands.clock.now())
        generation = draft.raw["metadata"]["generation"]
        before = [condition for condition in draft.previous.conditions if condition.type not in draft.withdrawn]
        conditions = verdicts.merge(before, draft.verdicts, generation, now)
        if not draft.report.errors:
            draft.fields["observed_generation"] = generation
        status = draft.previous.model_copy(update={**draft.fields, "conditions": conditions})
        memory.unsaved = status
        SERVINGS.put((self._namespace, self._name), status, self._hands.clock.now().timestamp())
        await act.write_status(self._hands.kube, draft.raw, status)
        memory.unsaved = None
        news = [*draft.report.events, *events.of_change(verdicts.status_of(draft.raw, ServingStatus), status)]
        fresh = memory.recorder.fresh(news, self._hands.clock.monotonic())
        await act.post(self._hands.kube, draft.raw, fresh, now)
