"""What is told of an experiment in a cluster: its results before anything was measured, and its status. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline_operator.api.experiment import SpeculationExperiment
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status_experiment import ENDED, LONGEST_TEXT, MAX_MISSING, MAX_VERDICTS, VerdictStatus
from paceline_operator.experiment import course, load, progress
from paceline_operator.experiment.course import Situation, Step
from paceline_operator.experiment.plan import Plan
from paceline_operator.experiment.results import Methods, VariantResult
from paceline_operator.experiment.variants import Variant, gpus_of, rendered
from paceline_operator.experiment.verdict import Comparison, Judge, compare
from paceline_operator.experiment.winner import winner
from paceline_operator.resources import Defaults
from paceline_operator.resources.pod import CONTAINER
from paceline_operator.safety.incident import clean_arguments

LONGEST = 1024


def first(
    experiment: SpeculationExperiment, serving: SpeculativeServing, plan: Plan, variant: Variant, defaults: Defaults
) -> VariantResult:
    """Before anything was measured of it."""
    template = rendered(serving, variant, defaults)
    engine = next(one for one in template["spec"]["containers"] if one["name"] == CONTAINER)
    prompts = experiment.spec.load.prompts
    source = None
    if prompts.kept:
        source = f"ConfigMap {prompts.kept.name}, {prompts.kept.key}"
    elif prompts.persistent_volume_claim:
        source = f"claim {prompts.persistent_volume_claim.claim_name}, {prompts.persistent_volume_claim.path}"
    return VariantResult(
        experiment=experiment.metadata.name,
        variant=variant.name,
        parent=variant.parent,
        change={field[:LONGEST]: value[:LONGEST] for field, value in plan.changes.get(variant.name, {}).items()},
        k=variant.k,
        gpus=gpus_of(serving.spec),
        methods=Methods(
            gpu="unknown",
            versions={"image": str(engine["image"])[:LONGEST]},
            arguments=tuple(one[:LONGEST] for one in clean_arguments(list(map(str, engine.get("args", []))))),
            load=load.described(experiment.spec.load, source),
        ),
    )


def with_requests(result: VariantResult, found: Mapping[int, int]) -> VariantResult:
    """With the requests of each window that its loads chose."""
    told = {f"{progress.REQUESTS}{at}": str(count) for at, count in sorted(found.items())}
    methods = result.methods.model_copy(update={"load": {**told, **result.methods.load}})
    return result.model_copy(update={"methods": methods})


def fields(s: Situation, step: Step) -> dict[str, Any]:
    """Of status, conditions and phase apart."""
    results = tuple(s.results.values())
    ended = step.phase in ENDED
    found = winner(results) if ended and any(one.windows for one in results) else None
    running = ""
    if step.visit is not None and step.act is not course.Act.CLEAR:
        visit = s.plan.visits[step.visit]
        running = f"{visit.variant}, round {visit.round + 1}"
    reasons = course.reasons(s, step)
    missing = [
        f"{one.variant}: {text}"[:LONGEST_TEXT] for one in results for text in progress.missing(s.plan, one, reasons)
    ]
    return {
        "running": running if step.act is not course.Act.END else "",
        "windows": sum(len(one.windows) for one in results),
        "planned_windows": sum(len(visit.measurements) for visit in s.plan.visits),
        "gpu_seconds": round(s.spent),
        "verdicts": verdicts(compare(results))[:MAX_VERDICTS] if ended else [],
        "winner": found.variant if found else "",
        "winner_message": found.message[:LONGEST_TEXT] if found else "",
        "missing": missing[:MAX_MISSING] if ended else [],
    }


def verdicts(comparisons: tuple[Comparison, ...]) -> list[VerdictStatus]:
    """A row for each variant and load."""
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for one in comparisons:
        row = rows.setdefault((one.variant, one.load), {"variant": one.variant, "concurrency": one.load})
        judge = "throughput" if one.judge is Judge.THROUGHPUT else "tpot"
        row |= {judge: one.word.value, f"{judge}_permille": round(1000 * min(one.ratio, 1e6))}
        if one.reason and "reason" not in row:
            row["reason"] = one.reason[:LONGEST_TEXT]
    return [VerdictStatus(**row) for row in rows.values()]
