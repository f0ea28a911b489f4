"""What is known of a manifest before anything runs: what refuses it, how far k can follow, what weakens its pods."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from pydantic import ValidationError

from paceline_operator import naming
from paceline_operator.acceptance import judgement
from paceline_operator.api import written
from paceline_operator.api.base import ApiModel
from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import CudagraphMode
from paceline_operator.api.experiment import SpeculationExperiment
from paceline_operator.api.profiles import SpeculationProfile
from paceline_operator.api.runner import Runner, graphs_of, runner_of, within_reach, without_schedule
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight import admission, legality, matrix
from paceline_operator.preflight.matrix import Effect
from paceline_operator.preflight.security import weaknesses
from paceline_operator.resources import Defaults, Tokens, pod
from paceline_operator.resources.capture import capture_sizes, covered
from paceline_operator.tuning.prior import boot_table, ladder_of

MODELS: Mapping[str, type[ApiModel]] = {
    naming.KIND_SERVING: SpeculativeServing,
    naming.KIND_EXPERIMENT: SpeculationExperiment,
    naming.KIND_PROFILE: SpeculationProfile,
}
FEW_GRAPHS = 0.65
"""Share of a k's steps below which it is worth saying that they miss full CUDA graphs; default ladders are above it."""
_ANY = Defaults(engine_image="engine", cpu_engine_image="engine", plugin_image="plugin")
"""Images are not looked at."""


class Level(StrEnum):
    """How much a remark matters. Refused: no pod comes of it. Weakens: it runs, less safe than by default."""

    REFUSED = "refused"
    WEAKENS = "weakens"
    LIMIT = "limit"
    NOTE = "note"


class Remark(NamedTuple):
    """One thing worth knowing."""

    level: Level
    reason: str
    """The condition's reason where it is refused, else the rule of the matrix or a word for programs."""
    message: str
    source: str = ""
    """Link to where it is written, if it is not paceline's own."""


class Examined(NamedTuple):
    """One document."""

    kind: str
    name: str
    accepted: bool
    remarks: tuple[Remark, ...]
    version: str = ""
    """vLLM's by which it was judged; empty for other kinds than servings."""
    runner: str = ""
    ladder: tuple[int, ...] = ()


def misspelt(raw: Mapping[str, Any], others: Sequence[str] = ()) -> Examined | None:
    """What is wrong with the kind of an object that is none of MODELS; None where it is somebody else's. `others`:
    kinds of our API version in files for other uses."""
    kind, version = str(raw.get("kind") or ""), str(raw.get("apiVersion") or "")
    if kind in MODELS or kind in others:
        return None
    near = written.meant(kind, MODELS)
    ours = version.partition("/")[0] == naming.GROUP
    if kind and not near and not ours:
        return None
    meant = near or f"{naming.API_VERSION} has {', '.join(MODELS)}"
    text = f"kind {kind[:64]!r} is none of {naming.GROUP}: {meant}" if kind else f"it has no kind: {meant}"
    metadata = raw.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""
    return Examined(kind[:64] or "document", name, False, _refused([text]))


def examine(raw: Mapping[str, Any]) -> Examined:
    """Of one object of a kind of ours, whatever its shape."""
    kind, metadata = str(raw.get("kind")), raw.get("metadata")
    name = str(metadata.get("name", "")) if isinstance(metadata, Mapping) else ""
    document = {key: value for key, value in raw.items() if key != "status"}
    try:
        parsed = MODELS[kind].model_validate(document)
    except ValidationError:
        return Examined(kind, name, False, _refused(written.refusals(document, MODELS[kind])))
    remarks = [*_refused(written.mistakes(document, parsed)), *_refused(admission.of_schema(MODELS[kind], raw["spec"]))]
    if not isinstance(parsed, SpeculativeServing):
        verdict = judgement(kind, raw)
        level = Level.NOTE if verdict.status else Level.REFUSED
        remarks.append(Remark(level, verdict.reason, verdict.message))
        return Examined(kind, name, _accepted(remarks), tuple(remarks))
    remarks += _refused(admission.problems(parsed.spec))
    findings = legality.check(parsed.spec)
    remarks += [Remark(Level.REFUSED, one.rule or one.reason, one.message, one.source) for one in findings]
    version = matrix.version_of(parsed.spec.engine)
    accepted, ladder = _accepted(remarks), ladder_of(parsed.spec) if not findings else ()
    remarks += _limits(parsed, version)
    if accepted:
        remarks += [*_graphs(parsed, ladder), *_weaknesses(parsed, ladder)]
    return Examined(kind, name, accepted, tuple(remarks), version, runner_of(parsed.spec).value, ladder)


def _refused(texts: Iterable[str]) -> tuple[Remark, ...]:
    return tuple(Remark(Level.REFUSED, Reason.INVALID_SPEC, text) for text in texts)


def _accepted(remarks: Iterable[Remark]) -> bool:
    return all(remark.level is not Level.REFUSED for remark in remarks)


def _limits(serving: SpeculativeServing, version: str) -> Iterator[Remark]:
    found = matrix.combination(serving.spec, version)
    fixed = matrix.abilities(found).live_k if without_schedule(serving.spec) else None
    for rule in matrix.holding(found):
        if rule.effect in (Effect.REFUSED, Effect.RUNNER_V1):
            continue
        if fixed and rule is not fixed and rule.effect in (Effect.FIXED_K, Effect.NO_FULL_GRAPHS):
            continue
        level = Level.NOTE if rule.effect is Effect.NOTE else Level.LIMIT
        before = "k stays at spec.speculation.maxTokens: " if rule is fixed else ""
        advice = f"; instead: {rule.remedy}" if rule.remedy else ""
        yield Remark(level, rule.id, f"{before}{rule.reason}{advice}", rule.source.link(version))


def _graphs(serving: SpeculativeServing, ladder: tuple[int, ...]) -> Iterator[Remark]:
    """Ks many of whose steps find no full graph, by the sizes that are captured."""
    engine = serving.spec.engine
    if graphs_of(serving.spec) is CudagraphMode.NONE or within_reach(serving.spec):
        return
    if runner_of(serving.spec) is Runner.V1:
        return
    shares = covered(capture_sizes(ladder, engine.max_num_seqs), ladder, engine.max_num_seqs)
    for k in sorted(k for k, share in shares.items() if share < FEW_GRAPHS):
        yield Remark(
            Level.LIMIT,
            "few-graphs",
            f"at k={k} {round(100 * shares[k])} % of the numbers of requests find a full CUDA graph: choose a "
            "spec.tuning.ladder whose k + 1 divide each other, or leave it out",
        )


def _weaknesses(serving: SpeculativeServing, ladder: tuple[int, ...]) -> Iterator[Remark]:
    table = boot_table(ladder, serving.spec.engine.max_num_seqs)
    template = pod.build(serving, table, _ANY, Tokens(key_version="", current=""))
    for weak in weaknesses(template, serving.spec.engine):
        refused = "; a namespace that enforces the Pod Security Standard restricted refuses it" * weak.restricted
        yield Remark(Level.WEAKENS, "security", f"spec.{weak.field}: {weak.weakens}{refused}")
