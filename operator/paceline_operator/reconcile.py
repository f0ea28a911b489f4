"""One pass over one SpeculativeServing: gather, decide, act, one status write. The only orchestration there is.

What a pass remembers for the next is a saving of work, never truth: a new process starts with nothing, sees the rest in
the cluster and in the engines, and carries on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import act, events, naming, observe, verdicts
from paceline_operator.acceptance import accept
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import ServingStatus, SpeculativeServing
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.keys import KeyFile
from paceline_operator.clients.kube import ForbiddenError, Kube, Object
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.drift import digest
from paceline_operator.plan import Applied, ChildKey, ChildPlan, Observation, Target, key_of, plan_children
from paceline_operator.resources import Defaults, render
from paceline_operator.tuning import prior
from paceline_operator.tuning.model import Engine, Memory
from paceline_operator.verdicts import Verdict

ServingKey = tuple[str, str]
"""(namespace, name)"""
SOON_SECONDS = 1.0


@dataclass(frozen=True)
class Hands:
    """What all passes share."""

    kube: Kube
    engines: EngineClient
    keys: KeyFile
    defaults: Defaults
    clock: Clock


@dataclass
class Remembered:
    """What one object's task carries from pass to pass."""

    uid: str = ""
    generation: int = 0
    """Of the spec whose children are all applied."""
    applied: dict[ChildKey, Applied] = field(default_factory=dict)
    token: str = ""
    """Digest of the token Secret written last."""
    refusals: set[str] = field(default_factory=set)
    """UIDs of pods whose refusal of the token was answered with a new Secret: once each."""
    missing: dict[str, str] = field(default_factory=dict)
    """Pod UID -> event about a missing Secret that was answered."""
    tuner: Memory = field(default_factory=Memory)
    unsaved: ServingStatus | None = None
    """Status that could not be written: the decisions in it must not be lost."""
    recorder: events.Recorder = field(default_factory=events.Recorder)


@dataclass(frozen=True)
class Result:
    """When to look again: after `after` seconds (None: when something changes), or never."""

    after: float | None = None
    gone: bool = False


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
            return Result(gone=True)
        meta = raw["metadata"]
        if "deletionTimestamp" in meta:
            return Result()  # children go by their owner references
        if meta["uid"] != self._memory.uid:
            self._memory = Remembered(uid=meta["uid"])
        serving, accepted = accept(raw)
        acting = serving is not None and not serving.spec.suspend
        wanted, secret = self._render(serving) if serving and acting else ([], None)
        full = full or self._memory.generation != meta["generation"]
        report = act.Report()
        try:
            look = await observe.surroundings(self._hands.kube, raw, list(map(key_of, wanted)) if full else None)
        except ForbiddenError as error:  # waiting does not help, a role does: say so where people look
            report.errors.append(error)
            await self._conclude(raw, [accepted, verdicts.failed([str(error)])], {}, report)
            raise
        plan = None
        if look.children is not None:
            plan = plan_children(wanted, look.children, raw, self._memory.applied)
            if plan.conflicts:
                serving, accepted, acting = None, verdicts.conflict(plan.conflicts), False
        fields: dict[str, Any] = {
            "replicas": len(look.pods),
            "ready_replicas": sum(map(verdicts.is_ready, look.pods)),
            "selector": ",".join(f"{key}={value}" for key, value in naming.selector(self._name).items()),
        }
        after: float | None = None
        if serving and acting:
            after = await self._act(raw, serving, secret, look, plan, report)
        elif plan:
            self._memory.generation = meta["generation"]
        found = [accepted, *self._workload(raw, serving, accepted, look, report)]
        await self._conclude(raw, found, fields, report)
        if report.errors:
            raise report.errors[0]
        return Result(after=after)

    def _workload(
        self, raw: Object, serving: SpeculativeServing | None, accepted: Verdict, look: Observation, report: act.Report
    ) -> list[Verdict]:
        spec = serving.spec if serving else None
        replicas = verdicts.replicas_of(raw)
        available = verdicts.available(replicas, spec.rollout.max_unavailable if spec else 1, look.pods)
        found = [available, verdicts.ready(accepted, available), verdicts.suspended(bool(spec and spec.suspend))]
        if report.errors:
            found.append(verdicts.failed([str(error) for error in report.errors]))
        elif look.children is not None:
            deployment = look.children.get(("Deployment", naming.child(self._name)))
            found.append(verdicts.progressing(replicas, deployment))
        if spec is None or spec.suspend:
            found += verdicts.untuned(Reason.SUSPENDED if spec else Reason.NOT_ACCEPTED)
        return found

    async def _act(
        self,
        raw: Object,
        serving: SpeculativeServing,
        secret: Object | None,
        look: Observation,
        plan: ChildPlan | None,
        report: act.Report,
    ) -> float | None:
        """Children, token and table; the seconds to the next pass."""
        hands, memory = self._hands, self._memory
        targets = observe.targets(raw, look.pods, hands.keys.ring())
        engines = await observe.engines(hands.engines, targets, look.pods, memory.tuner)
        if secret:
            await self._write_token(secret, look, targets, engines, report)
        if plan:
            await act.carry_out(hands.kube, self._namespace, plan, report)
            memory.applied |= report.applied
            memory.generation = 0 if plan.waits or report.errors else raw["metadata"]["generation"]
        if plan and plan.waits:
            return SOON_SECONDS
        return serving.spec.tuning.interval_seconds if targets else None

    def _render(self, serving: SpeculativeServing) -> tuple[list[Object], Object | None]:
        """Children, and apart from them the token Secret, which has a rule of its own."""
        table = prior.boot_table(prior.ladder_of(serving.spec), serving.spec.engine.max_num_seqs)
        tokens = self._hands.keys.ring().tokens(serving.metadata.uid)
        manifests = render(serving, table, self._hands.defaults, tokens)
        secret = next((manifest for manifest in manifests if manifest["kind"] == "Secret"), None)
        return [manifest for manifest in manifests if manifest is not secret], secret

    async def _write_token(
        self,
        secret: Object,
        look: Observation,
        targets: Sequence[Target],
        engines: Sequence[Engine],
        report: act.Report,
    ) -> None:
        """At start, on another key or UID, when a pod misses the Secret, and anew when a pod refuses its content."""
        memory = self._memory
        refusing = {engine.name for engine in engines if engine.failure is Reason.TOKEN_REFUSED}
        refused = {target.uid: target.pod for target in targets if target.pod in refusing}
        memory.refusals &= refused.keys()
        news = {uid: pod for uid, pod in refused.items() if uid not in memory.refusals}
        missing = look.missing_secrets
        if memory.token == digest(secret) and not news and missing.items() <= memory.missing.items():
            return
        if await act.write_token(self._hands.kube, secret, sorted(news.values()), report):
            memory.token, memory.missing = digest(secret), dict(missing)
            memory.refusals |= news.keys()

    async def _conclude(
        self, raw: Object, found: Sequence[Verdict], fields: dict[str, Any], report: act.Report
    ) -> None:
        """The one status write, then the events. Status that cannot be written is kept for the next pass."""
        memory, now = self._memory, self._hands.clock.now()
        generation = raw["metadata"]["generation"]
        previous = memory.unsaved or verdicts.status_of(raw)
        if not report.errors:
            fields = {**fields, "observed_generation": generation}
        fields["conditions"] = verdicts.merge(previous.conditions, found, generation, rfc3339(now))
        status = previous.model_copy(update=fields)
        memory.unsaved = status
        await act.write_status(self._hands.kube, raw, status.model_dump(mode="json", by_alias=True, exclude_none=True))
        memory.unsaved = None
        news = [*report.events, *events.of_change(previous, status)]
        fresh = memory.recorder.fresh(news, self._hands.clock.monotonic())
        await act.post(self._hands.kube, raw, fresh, rfc3339(now))
