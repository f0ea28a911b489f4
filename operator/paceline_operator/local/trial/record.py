"""What a run writes into its result files beside the windows: how it was done, the engine's log, what is missing."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator, Mapping
from pathlib import Path

from paceline_operator.clock import Clock, rfc3339
from paceline_operator.experiment import enginelog, load, progress
from paceline_operator.experiment.plan import Plan, Visit
from paceline_operator.experiment.results import Methods, VariantResult, Window
from paceline_operator.experiment.variants import Variant, gpus_of
from paceline_operator.local.container import DISTRIBUTION
from paceline_operator.local.mistake import UserError
from paceline_operator.local.runner import EngineFailedError
from paceline_operator.local.trial import gpus
from paceline_operator.local.trial.engine import Engine, arguments
from paceline_operator.local.trial.files import Given, sha256, tree

ENGINES = "engines"
RESUMED = "resumed"
EXPERIMENT = "experiment"
LONGEST = 1024


def impossible(variants: Mapping[str, Variant]) -> Iterator[str]:
    """Variants that engines of this machine cannot be."""
    base = next(iter(variants.values())).spec.engine
    for one in variants.values():
        if one.spec.engine.image != base.image:
            yield f"variant {one.name}: engines of this machine have no image: run it in a cluster, or without `image`"
        if one.spec.engine.multi_node:
            yield "spec.engine.multiNode: this machine is one node"
            return


def first(
    given: Given, plan: Plan, variants: Mapping[str, Variant], earlier: Mapping[str, VariantResult], clock: Clock
) -> dict[str, VariantResult]:
    """A result for each variant, with the windows of an earlier run of the same experiment. Raises UserError."""
    if earlier and {one.methods.digests.get(EXPERIMENT) for one in earlier.values()} != {given.digest}:
        raise UserError(
            "the folder of results has those of another experiment, or of this one before it was changed: give "
            "another folder with -o"
        )
    source = None
    if given.prompts:
        lengths = given.experiment.spec.load.prompts.lengths
        source = given.prompts_name if lengths else f"{given.prompts_name}, {len(given.prompts.splitlines())} prompts"
    described = load.described(given.experiment.spec.load, source)
    digests = {EXPERIMENT: given.digest} | ({"prompts": sha256(given.prompts)} if given.prompts else {})
    kept = next(iter(earlier.values())).methods.load if earlier else {}
    if any(one.windows for one in earlier.values()):
        times = [*filter(None, [kept.get(RESUMED)]), rfc3339(clock.now())]
        described[RESUMED] = ", ".join(times)[:LONGEST]
    described |= {
        name: value for name, value in kept.items() if name.startswith(progress.REQUESTS) or name == progress.MINUTES
    }
    parents = {one.name: one.parent for one in variants.values()}
    found = {}
    for name, variant in variants.items():
        before = earlier.get(name)
        methods = before.methods if before else Methods(gpu="unknown", digests=digests)
        found[name] = VariantResult(
            experiment=given.name,
            variant=name,
            parent=parents[name],
            change={field[:LONGEST]: value[:LONGEST] for field, value in plan.changes.get(name, {}).items()},
            k=variant.k,
            gpus=gpus_of(given.serving.spec),
            methods=methods.model_copy(update={"load": described}),
            windows=before.windows if before else (),
            warnings=before.warnings if before else (),
            lengths=before.lengths if before else (),
        )
    return found


def spent(results: Mapping[str, VariantResult]) -> float:
    """GPU-minutes of earlier runs."""
    return float(next(iter(results.values())).methods.load.get(progress.MINUTES, 0.0))


async def with_methods(result: VariantResult, engine: Engine, before: gpus.Look) -> VariantResult:
    """With the machine, versions, digests and arguments."""
    device = ", ".join(sorted({gpu.name for gpu in before.gpus})) if engine.on_gpu else gpus.processor()
    versions = {"vllm": await engine.version(), "paceline": _installed()}
    if engine.on_gpu and before.gpus:
        versions["driver"] = before.gpus[0].driver
    spec = engine.variant.spec
    draft = spec.speculation.draft if engine.variant.drafter else None
    sources = {"model": spec.model.source} | ({"draft": draft.source} if draft else {})
    digests = {name: found for name, source in sources.items() if (found := _weights(source, engine))}
    methods = result.methods.model_copy(
        update={
            "gpu": device or "unknown",
            "versions": {name: value for name, value in versions.items() if value},
            "digests": result.methods.digests | digests,
            "arguments": tuple(one[:LONGEST] for one in arguments(engine.template)),
        }
    )
    return result.model_copy(update={"methods": methods})


def _installed() -> str:
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:  # its source on a path
        return ""


def _weights(source: str, engine: Engine) -> str | None:
    """Of a folder; of a hub's model, what it is called there is all that is known before it is downloaded."""
    for place, folder in engine.folders.items():
        if source.startswith(f"{place}/"):
            return tree(folder / source.removeprefix(f"{place}/"))
    return tree(Path(source)) if source.startswith("/") else None


def with_log(result: VariantResult, earlier: VariantResult, engine: Engine) -> VariantResult:
    """With what the engine's log tells beside what `earlier` engines of the variant had told."""
    with engine.log.open(encoding="utf-8", errors="replace") as lines:
        warnings, lengths = enginelog.read(lines, engine.started)
    return result.model_copy(
        update={"warnings": (*earlier.warnings, *warnings), "lengths": (*earlier.lengths, *lengths)}
    )


def told(
    result: VariantResult,
    plan: Plan,
    reasons: Mapping[progress.Place, str],
    chosen: Mapping[int, int],
    minutes: float,
    keep: bool,
) -> VariantResult:
    """With what is missing, and how far it is."""
    facts = {f"{progress.REQUESTS}{load}": str(count) for load, count in sorted(chosen.items())} | {
        progress.MINUTES: f"{minutes:.2f}",
        ENGINES: "one a variant for all rounds: rounds do not show how far two starts are apart"
        if keep
        else "a new one each round",
    }
    methods = result.methods.model_copy(update={"load": {**result.methods.load, **facts}})
    return result.model_copy(update={"methods": methods, "missing": progress.missing(plan, result, reasons)})


def first_line(error: EngineFailedError, engine: Engine) -> str:
    """What happened, and the last line of its log, in one."""
    said = str(error).partition(". The end of its log")[0]
    return str(engine.failure(said))


def line(visit: Visit, window: Window) -> str:
    """A window in one line."""
    tpot = f", TPOT p50 {window.client.tpot.p50:.1f} ms" if window.client.tpot else ""
    drafts = window.acceptance
    length = f", {1 + drafts.accepted / drafts.drafts:.2f} tokens a draft step" if drafts and drafts.drafts else ""
    failed = f", {sum(window.errors.values())} failed" if window.errors else ""
    return (
        f"round {visit.round + 1}, {visit.variant} at {window.load}: {window.tokens_per_second:.1f} tok/s over "
        f"{window.seconds:.1f} s, {window.requests} requests{tpot}{length}{failed}"
    )
