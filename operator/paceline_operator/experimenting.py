"""One pass over one SpeculationExperiment: gather, decide, act, one status write."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline_engine.trial.visit import Measurement, Visit
from paceline_operator import act, events, naming, verdicts
from paceline_operator import experimenting_kept as keeping
from paceline_operator import experimenting_look as looking
from paceline_operator.api.base import ObjectMeta
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.status_experiment import ENDED, ExperimentStatus, Phase
from paceline_operator.clients.kube import ConflictError, ForbiddenError, InvalidError, Object
from paceline_operator.clock import rfc3339
from paceline_operator.draft import Hands
from paceline_operator.experiment import course, load, progress, seen, shown, variants
from paceline_operator.experiment.course import Act, Record, Running, Situation, Step
from paceline_operator.experimenting_begin import Begun, begun_with, judged
from paceline_operator.experimenting_kept import Kept, KeptError
from paceline_operator.experimenting_look import Look
from paceline_operator.resources import trial
from paceline_operator.resources.pod import CONTAINER
from paceline_operator.safety.incident import printable
from paceline_operator.verdicts import Verdict

logger = logging.getLogger(__name__)

POLL_SECONDS = 3.0
"""Between two looks at an engine that runs."""
SOON_SECONDS = 1.0
"""After something was done."""
PENDING_SECONDS = 30.0
"""Between two looks for what is waited for."""
ENGINE = f"http://127.0.0.1:{naming.SERVING_PORT}"
TRUST = "--trust-remote-code"
REFUSED = (InvalidError, ForbiddenError)
"""Waiting does not help: a quota, a right or the object does."""
LONGEST = 1024
TOLD = (Phase.RUNNING, *ENDED)
"""Phases that are events."""


@dataclass(frozen=True)
class PassResult:
    """When to look again; `gone`: the object is not there."""

    after: float | None = None
    gone: bool = False


class ExperimentPass:
    """Of one object; it remembers nothing."""

    def __init__(self, key: tuple[str, str], hands: Hands) -> None:
        self._namespace, self._name = key
        self._hands = hands
        self._kube = hands.kube

    async def run(self) -> PassResult:
        """Raises a KubeError where it is to be tried again soon."""
        raw = await self._kube.get(naming.KIND_EXPERIMENT, self._namespace, self._name)
        if raw is None:
            return PassResult(gone=True)
        before = verdicts.status_of(raw, ExperimentStatus)
        generation = raw["metadata"]["generation"]
        if "deletionTimestamp" in raw["metadata"]:
            await self._end_all(raw, "the experiment was deleted")  # somebody's finalizer may keep it
            return PassResult()
        if before.phase in ENDED and before.observed_generation == generation:
            return PassResult()
        experiment, accepted = judged(raw)
        if experiment is None:
            return await self._refuse(raw, before, accepted)
        try:
            begun: Begun | Step | Verdict = await begun_with(self._hands, raw, experiment)
        except (KeptError, *REFUSED) as error:
            reason = Reason.CHILD_CONFLICT if isinstance(error, KeptError) else Reason.APPLY_FAILED
            begun = Step(Act.WAIT, Phase.PENDING, reason, _said(error))
            if experiment.spec.cancel:
                text = _said(f"spec.cancel is true; {error}")
                begun = Step(Act.FINISH, Phase.CANCELLED, Reason.CANCELLED, text)
        if isinstance(begun, Verdict):
            return await self._refuse(raw, before, begun)
        if isinstance(begun, Step):
            if begun.phase in ENDED:
                await self._end_all(raw, begun.message)
            return await self._say(raw, before, accepted, begun, {})
        return await self._advance(raw, before, accepted, begun)

    async def _refuse(self, raw: Object, before: ExperimentStatus, accepted: Verdict) -> PassResult:
        await self._end_all(raw, accepted.message)
        step = Step(Act.WAIT, Phase.FAILED, Reason.NOT_ACCEPTED, accepted.message)
        return await self._say(raw, before, accepted, step, {})

    async def _end_all(self, raw: Object, reason: str) -> None:
        """End its Jobs, whatever else there is of it."""
        for job in await self._kube.list("Job", self._namespace, {naming.LABEL_EXPERIMENT: self._name}):
            if looking.owner(job) == raw["metadata"]["uid"]:
                await self._end(raw, job, reason)

    async def _end(self, raw: Object, job: Object, reason: str) -> None:
        """End a Job that no visit of the plan is of; the devices' time counts where its record can be written."""
        variant = str((job["metadata"].get("labels") or {}).get(naming.LABEL_VARIANT, ""))
        try:
            kept = await keeping.of_variant(self._kube, raw, variant)
            if kept and (now_closed := keeping.closed(kept, self._now(), reason[:LONGEST])) != kept:
                await keeping.keep(self._kube, ObjectMeta.model_validate(raw["metadata"]), now_closed)
        except (KeptError, *REFUSED) as error:
            logger.warning("Turn of an engine not recorded: object=%s/%s error=%s", self._namespace, self._name, error)
        await looking.delete(self._kube, job)

    def _now(self) -> float:
        return self._hands.clock.now().timestamp()

    async def _advance(self, raw: Object, before: ExperimentStatus, accepted: Verdict, begun: Begun) -> PassResult:
        look, remains, others = await looking.look(self._kube, raw, begun.plan)
        situation, kept, log = await self._situation(begun, look, remains, others)
        step = course.decide(situation)
        if step.act is Act.END and situation.running:
            kept, situation = self._ended(situation, kept, situation.running, step)
        waits: Step | None = None
        told = log or step.act in (Act.END, Act.FINISH)
        try:
            await self._store(begun, kept, course.reasons(situation, step), told)
            if step.act is Act.START:
                await self._start(begun, situation, step, kept)
        except REFUSED as error:
            waits = Step(Act.WAIT, Phase.PENDING, Reason.APPLY_FAILED, _said(error))
        if step.act in (Act.END, Act.CLEAR) and look:
            await looking.delete(self._kube, look.job)
        step = waits or step
        fields = await asyncio.to_thread(shown.fields, situation, step)
        return await self._say(raw, before, accepted, step, fields)

    async def _situation(
        self, begun: Begun, look: Look | None, remains: str, others: str
    ) -> tuple[Situation, dict[str, Kept], bool]:
        """With what an engine that runs has said since it was looked at last; whether it has said anything."""
        kept, fresh, running, now = dict(begun.kept), False, None, self._now()
        start_seconds = begun.serving.spec.engine.startup_timeout_seconds
        if not look:
            limit = course.limit_seconds(begun.plan, 0, start_seconds)
            gone = "its Job was gone before its end was recorded"
            kept = {name: keeping.closed(one, now, gone, limit) for name, one in kept.items()}
        else:
            visit = begun.plan.visits[look.number]
            name = visit.variant
            running = seen.running(look.job, look.number, look.pod, look.lines, look.not_made)
            if running.began is not None:
                kept[name] = keeping.with_record(kept[name], Record(round=visit.round, began=running.began))
            one, said = kept[name], look.lines or ()
            results = {each: it.result for each, it in kept.items()}
            if other := seen.differing(name, results, said, look.pod):
                running, said = replace(running, ended=other, done=False, load_ended=True), ()
            known = {(window.load, window.round) for window in one.result.windows}
            fresh = any(line.window and (line.window.load, line.window.round) not in known for line in said)
            if not other and (fresh or running.done or running.ended):
                merged = seen.merged(one.result, said, await looking.log(self._kube, look.pod), look.pod)
                kept[name] = replace(one, result=shown.with_requests(merged, seen.requests(said)))
        spec = begun.experiment.spec
        situation = Situation(
            plan=begun.plan,
            records={name: one.records for name, one in kept.items()},
            results={name: one.result for name, one in kept.items()},
            gpus=begun.gpus,
            budget_gpu_minutes=spec.budget_gpu_minutes,
            start_seconds=start_seconds,
            now=now,
            suspend=spec.suspend,
            cancel=spec.cancel,
            running=running,
            remains=remains,
            others=others,
        )
        return situation, kept, fresh

    def _ended(
        self, s: Situation, kept: dict[str, Kept], running: Running, step: Step
    ) -> tuple[dict[str, Kept], Situation]:
        """With the record of the visit that ends."""
        visit = s.plan.visits[running.visit]
        began = running.began or s.now
        ended = max(began, running.finished or s.now)
        record = Record(round=visit.round, began=began, ended=ended, reason=step.message[:LONGEST])
        one = keeping.with_record(kept[visit.variant], record)
        kept = {**kept, visit.variant: one}
        logger.info(
            "Engine of an experiment ended: object=%s/%s variant=%s round=%d reason=%s",
            self._namespace, self._name, visit.variant, visit.round + 1, step.message or "measured",
        )  # fmt: skip
        records = {name: each.records for name, each in kept.items()}
        return kept, replace(s, records=records)

    async def _store(
        self, begun: Begun, kept: Mapping[str, Kept], reasons: Mapping[progress.Place, str], told: bool
    ) -> None:
        """What differs from what is stored. `told`: also what is missing is told anew."""
        for name, one in kept.items():
            if told:
                missing = progress.missing(begun.plan, one.result, reasons)
                one = replace(one, result=one.result.model_copy(update={"missing": missing}))
            if one != begun.kept[name]:
                await keeping.keep(self._kube, begun.experiment.metadata, one)

    async def _start(self, begun: Begun, s: Situation, step: Step, kept: Mapping[str, Kept]) -> None:
        assert step.visit is not None
        visit = begun.plan.visits[step.visit]
        variant = begun.variants[visit.variant]
        experiment, serving = begun.experiment, begun.serving
        await keeping.keep(self._kube, experiment.metadata, kept[visit.variant])  # no engine whose end is not kept
        template = variants.rendered(serving, variant, begun.defaults)
        engine = next(one for one in template["spec"]["containers"] if one["name"] == CONTAINER)
        prompts = experiment.spec.load.prompts
        dataset = "" if prompts.random else trial.PROMPTS_FILE
        arguments = engine["args"]
        shared = load.shared(
            experiment.spec.load,
            url=ENGINE,
            model=serving.spec.model.served_name or serving.metadata.name,
            tokenizer=arguments[arguments.index("serve") + 1],
            dataset=dataset,
            trust=TRUST in arguments,
        )
        asked = Visit(
            url=ENGINE,
            round=visit.round,
            arguments=shared,
            dataset=dataset,
            making=load.making(experiment.spec.load, serving.spec.engine.max_model_len),
            seconds=begun.plan.seconds,
            start_seconds=s.start_seconds,
            warm_up=list(visit.warm_up),
            measurements=[Measurement(load=one.load, seed=one.seed) for one in progress.left(visit, s.results)],
            requests=progress.requests(s.results),
        )
        limit = course.limit_seconds(begun.plan, step.visit, s.start_seconds)
        job = trial.job(
            experiment.metadata,
            trial.Asked(step.visit, visit.variant, asked, limit),
            variant.spec,
            template,
            prompts,
            begun.defaults,
        )
        try:
            await self._kube.create(job)
        except ConflictError:  # another of its name is not gone yet
            return
        logger.info("Engine of an experiment started: object=%s/%s %s", self._namespace, self._name, step.message)

    async def _say(
        self, raw: Object, before: ExperimentStatus, accepted: Verdict, step: Step, fields: Mapping[str, Any]
    ) -> PassResult:
        complete = Verdict(ConditionType.COMPLETE, step.phase in ENDED, step.reason, step.message)
        now, generation = rfc3339(self._hands.clock.now()), raw["metadata"]["generation"]
        conditions = verdicts.merge(before.conditions, [accepted, complete], generation, now)
        kept = before.model_dump(include={"windows", "planned_windows", "gpu_seconds"}) if not fields else {}
        status = ExperimentStatus(
            **{**kept, **fields}, observed_generation=generation, conditions=conditions, phase=step.phase
        )
        if before.phase is not step.phase and step.phase in TOLD and step.reason is not Reason.NOT_ACCEPTED:
            kind = events.NORMAL if step.phase is not Phase.FAILED else events.WARNING
            await act.post(self._kube, raw, [events.Event(kind, step.reason, step.message)], now)
        await act.write_status(self._kube, raw, status)
        if step.phase in (*ENDED, Phase.SUSPENDED):
            return PassResult()
        if step.phase is Phase.PENDING:
            return PassResult(after=PENDING_SECONDS)
        return PassResult(after=POLL_SECONDS if step.act is Act.WAIT else SOON_SECONDS)


def _said(error: object) -> str:
    return printable(str(error))[:LONGEST]
