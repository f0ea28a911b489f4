"""Whether an experiment can be run, and what is run: the spec and the serving as they were when it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator import experimenting_kept as keeping
from paceline_operator import naming
from paceline_operator.acceptance import accept, judgement
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.experiment import BASELINE, SERVING, SpeculationExperiment
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status_experiment import Phase
from paceline_operator.clients.kube import Object
from paceline_operator.draft import Hands
from paceline_operator.experiment import shown, variants
from paceline_operator.experiment.course import Act, Step
from paceline_operator.experiment.plan import Costs, Plan, PlanError, plan
from paceline_operator.experiment.variants import Variant
from paceline_operator.experimenting_kept import Beginning, Kept
from paceline_operator.resources import Defaults
from paceline_operator.resources.trial import LOAD_CONTAINER, PROMPTS_VOLUME
from paceline_operator.verdicts import Verdict

FREE = {"budget_gpu_minutes", "repetitions", "suspend", "cancel"}
"""Fields of the spec that may change while it runs."""


@dataclass(frozen=True)
class Begun:
    """What is run, and what there is of it."""

    experiment: SpeculationExperiment
    serving: SpeculativeServing
    plan: Plan
    variants: Mapping[str, Variant]
    defaults: Defaults
    kept: Mapping[str, Kept]

    @property
    def gpus(self) -> int:
        """Of one engine."""
        return variants.gpus_of(self.serving.spec)


async def begun_with(hands: Hands, raw: Object, experiment: SpeculationExperiment) -> Begun | Step | Verdict:
    """What is run, which begins now where it has not. A Step: why it has not begun; a Verdict: why it is refused.

    Raises KeptError and KubeError.
    """
    spec = experiment.spec
    there = await keeping.begun(hands.kube, raw, hands.defaults)
    if there is None:
        for name in (BASELINE, SERVING, *(one.name for one in spec.variants)):
            if await keeping.of_variant(hands.kube, raw, name):
                raise keeping.lost(raw)
        try:
            plan(spec)
        except PlanError as error:
            return _invalid(str(error))
        if spec.cancel:
            return Step(Act.FINISH, Phase.CANCELLED, Reason.CANCELLED, "cancelled before it began")
        if spec.suspend:
            return Step(Act.WAIT, Phase.SUSPENDED, Reason.SUSPENDED, "spec.suspend is true; it has not begun")
        serving = await hands.kube.get(naming.KIND_SERVING, raw["metadata"]["namespace"], spec.serving_ref.name)
        found = _of_serving(serving, experiment, hands)
        if isinstance(found, Step):
            return found
        assert serving is not None
        try:
            plan(spec, Costs(gpus=variants.gpus_of(found.spec)))
        except PlanError as error:
            return _invalid(str(error))
        await keeping.begin(hands.kube, experiment, hands.defaults, serving, raw)
        there = Beginning(experiment, found, hands.defaults)
    serving_then = there.serving
    if there.experiment.spec.model_dump(exclude=FREE) != spec.model_dump(exclude=FREE):
        text = "the spec was changed after it began: put it back, or delete the experiment and make another"
        return _invalid(text)
    # A budget that is less now ends it where it is spent; what was planned stays.
    budget = max(spec.budget_gpu_minutes, there.experiment.spec.budget_gpu_minutes)
    try:
        planned = plan(
            spec.model_copy(update={"budget_gpu_minutes": budget}), Costs(gpus=variants.gpus_of(serving_then.spec))
        )
    except PlanError as error:
        return _invalid(str(error))
    known = variants.of(spec, serving_then.spec)
    stored = {name: await keeping.of_variant(hands.kube, raw, name) for name in known}
    kept = {
        name: one or Kept(shown.first(experiment, serving_then, planned, known[name], there.defaults))
        for name, one in stored.items()
    }
    for name in (name for name, one in stored.items() if one is None):
        await keeping.keep(hands.kube, experiment.metadata, kept[name])
    return Begun(experiment, serving_then, planned, known, there.defaults, kept)


def judged(raw: Object) -> tuple[SpeculationExperiment | None, Verdict]:
    """Whether its spec can be run at all; its budget, and what it is run with, are looked at when it begins."""
    verdict = judgement(naming.KIND_EXPERIMENT, raw)
    if not verdict.status:
        return None, verdict
    experiment = SpeculationExperiment.model_validate({key: value for key, value in raw.items() if key != "status"})
    return experiment, verdict


def _invalid(text: str) -> Verdict:
    return Verdict(ConditionType.ACCEPTED, False, Reason.INVALID_SPEC, text)


def _of_serving(raw: Object | None, experiment: SpeculationExperiment, hands: Hands) -> SpeculativeServing | Step:
    """The serving, or why nothing can be measured beside it now."""
    name = experiment.spec.serving_ref.name
    if raw is None:
        text = f"no {naming.KIND_SERVING} {name} is there, which spec.servingRef names"
        return Step(Act.WAIT, Phase.PENDING, Reason.SERVING_NOT_FOUND, text)
    serving, verdict = accept(raw, hands.defaults)
    if serving is None:
        text = f"{naming.KIND_SERVING} {name} is not accepted: {verdict.message}"
        return Step(Act.WAIT, Phase.PENDING, Reason.NOT_ACCEPTED, text)
    wrong = list(variants.refusals(variants.of(experiment.spec, serving.spec)))
    if serving.spec.engine.multi_node:
        wrong.append("spec.engine.multiNode of the serving: an engine of an experiment is one pod")
    wrong += _taken((serving.spec.engine.pod_template or {}).get("spec") or {})
    if wrong:
        return Step(Act.WAIT, Phase.PENDING, Reason.INCOMPATIBLE, "; ".join(wrong)[:1024])
    return serving


def _taken(template: Mapping[str, Any]) -> list[str]:
    """Names in engine.podTemplate of the serving that are those of what is put beside the engine."""
    ours = {"containers": LOAD_CONTAINER, "initContainers": LOAD_CONTAINER, "volumes": PROMPTS_VOLUME}
    return [
        f"spec.engine.podTemplate.spec.{field} of the serving has one named {name}: the name is an experiment's own"
        for field, name in ours.items()
        if any(one.get("name") == name for one in template.get(field) or [])
    ]
