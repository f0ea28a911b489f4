"""One pass over one SpeculativeServing: gather, decide, act, one status write. The only orchestration there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from paceline_operator import act, children, engines, events, naming, observe, safeguard, scale, unaccepted, verdicts
from paceline_operator.acceptance import accept
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import ServingStatus
from paceline_operator.beheld import beheld
from paceline_operator.calm import calm, minor, patience
from paceline_operator.clients.kube import ForbiddenError, Object, UnavailableError
from paceline_operator.clock import rfc3339
from paceline_operator.draft import Draft, Hands
from paceline_operator.exported import ENGINES
from paceline_operator.gauges import SERVINGS
from paceline_operator.memory import Remembered
from paceline_operator.plan import ChildKey, Observation
from paceline_operator.resources import workload
from paceline_operator.verdicts import Verdict

ServingKey = tuple[str, str]
"""(namespace, name)"""
CONFLICT_SECONDS = 30.0
"""Nothing wakes an object when somebody else's, without its label, goes out of its way."""


@dataclass(frozen=True)
class Result:
    """When to look again: after `after` seconds (None: when something changes), or never."""

    after: float | None = None
    gone: bool = False
    comes: bool = False
    """A pod that is asked for has not acknowledged a table."""


class ServingPass:
    """The passes over one object. Not for concurrent use."""

    def __init__(self, key: ServingKey, hands: Hands) -> None:
        self._namespace, self._name = key
        self._hands = hands
        self._memory = Remembered()
        self._judged: tuple[Object, tuple[SpeculativeServing | None, Verdict]] | None = None

    async def run(self, full: bool, *, believing: bool = False) -> Result:
        """One pass; `full` also compares all children, of which some are believed to be as they were seen last where
        `believing`. Raises a KubeError where it is to be tried again soon."""
        now = self._hands.clock.monotonic()
        due = self._memory.look_at is not None and self._memory.look_at <= now
        known, self._memory.calm = self._memory.calm, None
        if full or due or self._memory.unsaved or (known is not None and not known.holds(now)):
            known = None
        raw = known.raw if known else await self._hands.kube.get(naming.KIND_SERVING, self._namespace, self._name)
        if raw is None:
            ENGINES.put((self._namespace, self._name), {})
            SERVINGS.put((self._namespace, self._name), None)
            self._hands.versions.forget((self._namespace, self._name))
            return Result(gone=True)
        meta = raw["metadata"]
        if "deletionTimestamp" in meta:
            return Result()  # children go by their owner references
        if meta["uid"] != self._memory.uid:
            self._memory = Remembered(uid=meta["uid"])
        if not known and (why := self._memory.newest.why_old(raw, now)):
            raise UnavailableError(0, "OldView", f"{self._namespace}/{self._name} was {why}")
        stored = known.status if known else verdicts.status_of(raw, ServingStatus)
        full = full or due or self._memory.generation != meta["generation"]
        waiting = self._memory.waiting[1] if self._memory.waiting else {}
        draft = Draft(raw, self._memory.unsaved or stored.model_copy(update=waiting), {}, [], act.Report(), stored)
        serving, accepted = self._accepted(raw)
        after = None
        try:
            told = self._hands.versions.of(draft.key)
            seen = self._beheld(raw, told, now) if full and believing else None
            look = known.look if known else await observe.surroundings(self._hands.kube, raw, full, seen)
            there, after = await self._work(draft, serving, accepted, look)
            if not known:
                at = now if seen is None or not self._memory.beheld else self._memory.beheld.listed_at
                self._memory.beheld = beheld(there, draft.report.results, told, at) if there is not None else None
        except ForbiddenError as error:  # waiting does not help, a role does: said where people look
            draft.report.errors.append(error)
            draft.verdicts = [accepted, verdicts.failed([str(error)])]
        await self._conclude(draft, live=known is None)
        if draft.report.errors:
            raise draft.report.errors[0]
        memory = self._memory
        rests = memory.generation == meta["generation"] and memory.look_at is None
        answering = all(one.answering for one in memory.sightings.values())
        if serving is not None and rests and answering and not (memory.frozen or memory.hung):
            if known:
                memory.calm = known if draft.stored is stored else known.told(draft.stored)
            else:
                memory.calm = calm(draft.raw, serving, draft.stored, look, now)
        asked = verdicts.replicas_of(raw) if serving is not None and not serving.spec.suspend else 0
        return Result(after=after, comes=draft.stored.acknowledged_pods < asked)

    def _beheld(
        self, raw: Object, told: tuple[int, Mapping[ChildKey, str]], now: float
    ) -> Mapping[ChildKey, Object] | None:
        """Children that need not be listed: none, of an object that nobody has looked at yet: whatever has the name of
        a child is found by that name all the same."""
        if not raw.get("status") and not self._memory.applied:
            return {}
        seen = self._memory.beheld
        return seen.children if seen and seen.holds(told, now) else None

    def _accepted(self, raw: Object) -> tuple[SpeculativeServing | None, Verdict]:
        """As it was judged last, where nothing has changed but status and the versions of the whole."""
        meta = {
            name: value for name, value in raw["metadata"].items() if name not in ("resourceVersion", "managedFields")
        }
        asked = {**raw, "metadata": meta, "status": None}
        if self._judged is not None and self._judged[0] == asked:
            found = self._judged[1]
        else:
            found = accept(raw, self._hands.defaults)
        self._judged = asked, found  # also where it is known: what is kept of it is then the same object
        return found

    async def _work(
        self, draft: Draft, serving: SpeculativeServing | None, accepted: Verdict, look: Observation
    ) -> tuple[Mapping[ChildKey, Object] | None, float | None]:
        """Children, token and table; the children that were seen (None: one may have gone meanwhile), and the seconds
        to the next pass."""
        hands, memory, raw = self._hands, self._memory, draft.raw
        suspended = serving is not None and serving.spec.suspend
        asked = serving if not suspended else None
        plan = None
        if asked and look.children is not None:
            if asked.spec.model.cache:
                pods = [*look.pods, *look.plain, *look.pullers]
                look = dataclasses.replace(look, pulls=await observe.pulls(hands.engines, raw, pods, hands.keys.ring()))
            there, plan = await children.decided(hands, memory, draft, asked, look)
            if plan.conflicts:
                serving, asked, accepted = None, None, verdicts.conflict(plan.conflicts)
            look = dataclasses.replace(look, children=there)
        after = CONFLICT_SECONDS if plan and plan.conflicts else None
        if asked:
            await self._foretell(draft)
            after = await engines.carried_out(hands, memory, draft, asked, look, plan)
        else:
            if suspended and serving is not None:
                await safeguard.look(hands, memory, draft, serving, look, (), (), acts=False)
            elif not suspended and after is None:
                after = await unaccepted.judged(hands, memory, draft, look)
            memory.sightings, memory.tuned = {}, None  # whoever is looked after again is told of at once
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
        return None if plan and plan.deletes else look.children, after

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
            stable, canary = (
                next((children[key] for key in workload.keys(self._name, track) if key in children), None)
                for track in (naming.TRACK_STABLE, naming.TRACK_CANARY)
            )
            if canary is not None and (spec is None or spec.suspend):
                found.append(verdicts.unjudged(accepted))
            else:
                found.append(verdicts.progressing(replicas, stable))
        return found

    async def _foretell(self, draft: Draft) -> None:
        """A step of the rollout is told and remembered before it is taken: whoever follows a process that is killed in
        between would find it taken, and not why."""
        if not draft.report.events:  # of steps: nothing was written yet
            return
        await self._tell(draft, draft.report.events)
        status = draft.previous.model_copy(update={"rollout": draft.fields["rollout"]})
        await self._write(draft.raw, status)
        draft.raw, draft.stored = {**draft.raw, "status": act.as_json(status)}, status

    async def _tell(self, draft: Draft, news: Sequence[events.Event]) -> None:
        clock = self._hands.clock
        fresh = self._memory.recorder.fresh(news, clock.monotonic())
        await act.post(self._hands.kube, draft.raw, fresh, rfc3339(clock.now()))

    async def _conclude(self, draft: Draft, *, live: bool) -> None:
        """Events, then the one status write. Status that cannot be written is kept for the next pass.

        In this order: whoever is killed in between tells of it twice, which is better than never.
        """
        memory, now = self._memory, rfc3339(self._hands.clock.now())
        generation = draft.raw["metadata"]["generation"]
        before = [condition for condition in draft.previous.conditions if condition.type not in draft.withdrawn]
        conditions = verdicts.merge(before, draft.verdicts, generation, now)
        if not draft.report.errors:
            draft.fields["observed_generation"] = generation
        status = draft.previous.model_copy(update={**draft.fields, "conditions": conditions})
        memory.unsaved = status
        SERVINGS.put((self._namespace, self._name), status, self._hands.clock.now().timestamp())
        news = [*draft.report.events, *events.of_change(draft.stored, status)]
        await self._tell(draft, news)
        if self._may_wait(draft.stored, status):
            memory.unsaved = None
            return
        if live or status != draft.stored:
            raw = draft.raw if live else {**draft.raw, "status": act.as_json(draft.stored)}
            await self._write(raw, status)
            draft.stored = status
        memory.unsaved = None

    async def _write(self, raw: Object, status: ServingStatus) -> None:
        if (written := await act.write_status(self._hands.kube, raw, status)) is not None:
            self._memory.newest.wrote(written)

    def _may_wait(self, stored: ServingStatus, status: ServingStatus) -> bool:
        """Whether the difference is one that is written a little later, if nothing else is until then."""
        memory, now = self._memory, self._hands.clock.monotonic()
        since, memory.waiting = memory.waiting[0] if memory.waiting else now, None
        waits = patience(self._hands.servings())
        if status == stored or now - since >= waits or (news := minor(stored, status)) is None:
            return False
        memory.waiting = since, news
        return True
