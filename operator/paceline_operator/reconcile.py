"""One pass over one SpeculativeServing: gather, decide, act, one status write. The only orchestration there is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from paceline_operator import act, events, naming, observe, tokens, verdicts
from paceline_operator.acceptance import accept
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.keys import KeyFile, KeyRing
from paceline_operator.clients.kube import ForbiddenError, Kube, Object
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.exported import ENGINES
from paceline_operator.memory import Remembered
from paceline_operator.plan import Observation, key_of, plan_children, why_withheld
from paceline_operator.resources import Defaults, render
from paceline_operator.retune import retune
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Settings
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
            return Result(gone=True)
        meta = raw["metadata"]
        if "deletionTimestamp" in meta:
            return Result()  # children go by their owner references
        if meta["uid"] != self._memory.uid:
            self._memory = Remembered(uid=meta["uid"])
        full = full or self._memory.generation != meta["generation"]
        draft = Draft(raw, self._memory.unsaved or verdicts.status_of(raw, ServingStatus), {}, [], act.Report())
        serving, accepted = accept(raw)
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
        ring = hands.keys.ring()
        suspended = serving is not None and serving.spec.suspend
        settings = decide.settings_of(serving.spec) if serving and not suspended else None
        wanted, secret = self._render(serving, settings, ring) if serving and settings else ([], None)
        look = await observe.surroundings(hands.kube, raw, list(map(key_of, wanted)) if full else None)
        plan = None
        if settings and look.children is not None:
            plan = plan_children(wanted, look.children, raw, memory.applied, look.absent)
        if plan and plan.conflicts:
            serving, settings, accepted = None, None, verdicts.conflict(plan.conflicts)
        after = CONFLICT_SECONDS if plan and plan.conflicts else None
        if serving and settings:
            if secret:
                await tokens.keep(hands.kube, memory, secret, look.missing_secrets, draft.report)
            if plan:
                await act.carry_out(hands.kube, self._namespace, plan, draft.report)
                memory.applied |= draft.report.applied
                draft.verdicts.append(verdicts.integrations(why_withheld(plan, look.absent, draft.report.absent)))
            targets = observe.targets(raw, look.pods, ring)
            tuned = await retune(hands.engines, hands.clock, memory, settings, draft.previous, targets, look.pods)
            if secret and tuned.engines:
                await tokens.answer_refusals(hands.kube, memory, secret, targets, tuned.engines, draft.report)
                await tokens.forget_previous(hands.kube, memory, secret, ring, targets, len(look.pods), draft.report)
            draft.fields |= tuned.fields
            draft.verdicts += tuned.verdicts
            draft.report.events += tuned.events
            after = SOON_SECONDS if plan and plan.waits else tuned.after
            ENGINES.put((self._namespace, self._name), memory.sightings)
        else:
            memory.sightings = {}
            ENGINES.put((self._namespace, self._name), {})
            draft.verdicts += verdicts.untuned(Reason.SUSPENDED if suspended else Reason.NOT_ACCEPTED)
        if look.children is not None:
            again = draft.report.errors or (plan and (plan.waits or plan.conflicts))
            memory.generation = 0 if again else raw["metadata"]["generation"]
        draft.verdicts += self._workload(raw, serving, accepted, look, draft.report)
        draft.fields |= {
            "replicas": len(look.pods),
            "ready_replicas": sum(map(verdicts.is_ready, look.pods)),
            "selector": ",".join(f"{key}={value}" for key, value in naming.selector(self._name).items()),
        }
        return after

    def _render(
        self, serving: SpeculativeServing, settings: Settings, ring: KeyRing
    ) -> tuple[list[Object], Object | None]:
        """Children, and apart from them the token Secret, which has a rule of its own."""
        manifests = render(serving, settings.boot_table, self._hands.defaults, ring.tokens(serving.metadata.uid))
        secret = next((manifest for manifest in manifests if manifest["kind"] == "Secret"), None)
        return [manifest for manifest in manifests if manifest is not secret], secret

    def _workload(
        self, raw: Object, serving: SpeculativeServing | None, accepted: Verdict, look: Observation, report: act.Report
    ) -> list[Verdict]:
        spec, replicas = serving.spec if serving else None, verdicts.replicas_of(raw)
        available = verdicts.available(replicas, spec.rollout.max_unavailable if spec else 1, look.pods)
        found = [accepted, available, verdicts.ready(accepted, available)]
        found.append(verdicts.suspended(bool(spec and spec.suspend)))
        if report.errors:
            found.append(verdicts.failed([str(error) for error in report.errors]))
        elif look.children is not None:
            children = {**look.children, **report.results}  # what was just applied has not begun to roll out
            deployment = children.get(("Deployment", naming.child(self._name)))
            found.append(verdicts.progressing(replicas, deployment))
        return found

    async def _conclude(self, draft: Draft) -> None:
        """The one status write, then the events. Status that cannot be written is kept for the next pass."""
        memory, now = self._memory, rfc3339(self._hands.clock.now())
        generation = draft.raw["metadata"]["generation"]
        conditions = verdicts.merge(draft.previous.conditions, draft.verdicts, generation, now)
        if not draft.report.errors:
            draft.fields["observed_generation"] = generation
        status = draft.previous.model_copy(update={**draft.fields, "conditions": conditions})
        memory.unsaved = status
        await act.write_status(self._hands.kube, draft.raw, status)
        memory.unsaved = None
        before = verdicts.status_of(draft.raw, ServingStatus)
        news = [*draft.report.events, *events.of_change(before, status)]
        fresh = memory.recorder.fresh(news, self._hands.clock.monotonic())
        await act.post(self._hands.kube, draft.raw, fresh, now)
