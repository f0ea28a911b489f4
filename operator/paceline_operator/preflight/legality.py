"""Whether a spec can work at all: every finding makes Accepted False.

The rules that the CRD states in CEL are here again: `paceline local` has no API server, and a stored object may be
older than a rule. What vLLM can do together is data: matrix.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import CudagraphMode, Device
from paceline_operator.api.runner import keeps_k
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.speculation import (
    DRAFT_METHODS,
    DRAFTLESS_METHODS,
    AdaptiveVerification,
    Method,
    Ngram,
    Speculation,
)
from paceline_operator.api.tuning import TuningMode
from paceline_operator.preflight import matrix, overrides
from paceline_operator.preflight.arguments import OWNED, OWNED_CONFIG, name_of, owner_of

LABEL_NAME = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]{0,63}")


class Finding(NamedTuple):
    """Why a spec is refused: the condition's reason, and a message that names the field and what to do."""

    reason: Reason
    message: str
    rule: str = ""
    """Of the compatibility matrix; empty where the finding is none of its."""
    source: str = ""
    """Link to where vLLM says so."""


def check(spec: ServingSpec, image: str = "") -> list[Finding]:
    """Everything that is wrong with `spec`; empty if it is acceptable. The first is the gravest.

    `image`: the operator's own for such an engine, whose tag tells the vLLM version where the spec does not.
    """
    said = [finding for rule in RULES for finding in rule(spec)]
    return [*said, *_compatibility(spec, matrix.version_of(spec.engine, image))]


def _invalid(message: str) -> Finding:
    return Finding(Reason.INVALID_SPEC, message)


def _extra_arguments(spec: ServingSpec) -> Iterator[Finding]:
    arguments = spec.engine.extra_args
    for element in arguments:
        owned = owner_of(element)
        if owned:
            written = name_of(element)
            yield Finding(
                Reason.OWNED_ARGUMENT,
                f"spec.engine.extraArgs sets {written}: {OWNED[owned]}"
                if written == owned
                else f"spec.engine.extraArgs sets {written}, which is {owned}: {OWNED[owned]}",
            )
        elif element == "--":
            yield _invalid("spec.engine.extraArgs has `--`: what follows it would not be read as arguments; remove it")
    if arguments and not arguments[0].startswith("-"):
        yield _invalid(
            f"spec.engine.extraArgs begins with {arguments[0]!r}, which is no argument: write `--name` before its value"
        )


def _extra_config(spec: ServingSpec) -> Iterator[Finding]:
    for key in spec.speculation.extra_config or {}:
        if key in OWNED_CONFIG:
            message = f"spec.speculation.extraConfig sets {key}: {OWNED_CONFIG[key]}"
            yield Finding(Reason.OWNED_ARGUMENT, message)


def _compatibility(spec: ServingSpec, version: str) -> Iterator[Finding]:
    for rule in matrix.holding(matrix.combination(spec, version)):
        if rule.effect is matrix.Effect.REFUSED:
            link = rule.source.link(version)
            message = f"spec.{rule.field}: {rule.reason}; {rule.remedy} (vLLM {version}, rule {rule.id}, {link})"
            yield Finding(Reason.INCOMPATIBLE, message, rule.id, link)
    for field, value in matrix.unknown_options(spec.engine, version).items():
        link = matrix.load().options[field].source.link(version)
        yield Finding(
            Reason.INCOMPATIBLE,
            f"spec.{field} is {value}, which vLLM {version} does not know: use another, or an image of a vLLM that "
            f"knows it and say so in spec.engine.vllmVersion ({link})",
            source=link,
        )


def _texts(spec: ServingSpec) -> Iterator[Finding]:
    for field, value in (("servedName", spec.model.served_name), ("revision", spec.model.revision)):
        if value is not None and (not value.strip() or value.startswith("-")):
            yield _invalid(f"spec.model.{field} is {value!r}: it must not be blank or begin with `-`")


def _sources(spec: ServingSpec) -> Iterator[Finding]:
    draft = spec.speculation.draft
    models = [("spec.model", spec.model.source, spec.model.revision)]
    if draft:
        models.append(("spec.speculation.draft", draft.source, draft.revision))
    for field, source, revision in models:
        if ".." in source.split("://")[-1].split("/"):
            yield _invalid(f"{field}.source has a `..`: name the folder itself")
        if revision is not None and not source.startswith("hf://"):
            yield _invalid(f"{field}.revision is for hf:// sources: put the version into {field}.source")


def of_speculation(speculation: Speculation, where: str) -> Iterator[str]:
    """Messages for a method and what does not go with it; `where` is the field that holds them."""
    yield from _of_method(speculation, where)
    found = matrix.Combination(
        version=matrix.load().default,
        method=speculation.method,
        adaptive_verification=speculation.adaptive_verification is AdaptiveVerification.ENABLED,
    )
    for rule in matrix.holding(found):
        if rule.effect is matrix.Effect.REFUSED and rule.when.method and rule.when.adaptive_verification:
            yield f"{where}{rule.field.removeprefix('speculation')}: {rule.reason}; {rule.remedy}"


def _of_method(speculation: Speculation, where: str) -> Iterator[str]:
    method = speculation.method.value
    if method in DRAFT_METHODS and speculation.draft is None:
        yield f"{where}.method {method} needs a draft: set {where}.draft.source"
    if method in DRAFTLESS_METHODS and speculation.draft is not None:
        yield f"{where}.method {method} has no draft model: remove {where}.draft"
    if speculation.method is Method.MTP and speculation.draft is not None:
        yield (
            f"{where}.method mtp drafts with the target's own layers: remove {where}.draft, "
            "or use the method of the draft model"
        )
    if method in DRAFTLESS_METHODS and speculation.draft_sample_method is not None:
        yield f"{where}.method {method} has no draft model that samples: remove {where}.draftSampleMethod"
    if method != Method.SUFFIX and speculation.suffix is not None:
        yield f"{where}.suffix is for the method suffix, not {method}: remove it"
    if speculation.ngram is not None:
        yield from of_window(speculation.ngram, speculation.method, f"{where}.ngram")


def of_window(window: Ngram, method: Method | None, where: str) -> Iterator[str]:
    """Messages for a window of prompt lookup; `method` None where it is not known."""
    if method and method not in (Method.NGRAM, Method.NGRAM_GPU):
        yield f"{where} is for the methods ngram and ngram_gpu, not {method.value}: remove it"
    if window.prompt_lookup_min > window.prompt_lookup_max:
        yield f"{where}.promptLookupMin exceeds promptLookupMax: lower it"


def _method(spec: ServingSpec) -> Iterator[Finding]:
    yield from map(_invalid, _of_method(spec.speculation, "spec.speculation"))


def _ladder(spec: ServingSpec) -> Iterator[Finding]:
    tuning, limit = spec.tuning, spec.speculation.max_tokens
    ladder = tuning.ladder
    if ladder is None:
        return
    if len(set(ladder)) > spec.engine.max_num_seqs:
        yield Finding(
            Reason.LADDER_TOO_LONG,
            f"spec.tuning.ladder names {len(set(ladder))} ks and spec.engine.maxNumSeqs is {spec.engine.max_num_seqs}: "
            "each k needs a batch size of its own in the boot schedule; shorten the ladder or raise maxNumSeqs",
        )
    if 0 not in ladder:
        yield _invalid("spec.tuning.ladder lacks 0, the way to stop speculating: add it")
    if max(ladder) > limit:
        yield _invalid(
            f"spec.tuning.ladder has k={max(ladder)} above spec.speculation.maxTokens {limit}: raise maxTokens"
        )


def _table(spec: ServingSpec) -> Iterator[Finding]:
    tuning, limit = spec.tuning, spec.speculation.max_tokens
    if tuning.table is None:
        if tuning.mode is TuningMode.MANUAL:
            yield _invalid("spec.tuning.mode Manual needs spec.tuning.table")
        return
    if tuning.mode is not TuningMode.MANUAL:
        yield _invalid("spec.tuning.table is for mode Manual: remove it or set spec.tuning.mode to Manual")
    starts = [row.from_requests for row in tuning.table]
    if starts[0] != 1 or any(a >= b for a, b in pairwise(starts)):
        yield _invalid("spec.tuning.table must have rows in ascending order of fromRequests, the first from 1")
    ks = {row.k for row in tuning.table}
    if max(ks) > limit:
        yield _invalid(f"spec.tuning.table has k={max(ks)} above spec.speculation.maxTokens {limit}: raise maxTokens")
    if len(ks) > spec.engine.max_num_seqs:
        yield Finding(
            Reason.LADDER_TOO_LONG,
            f"spec.tuning.table names {len(ks)} ks and spec.engine.maxNumSeqs is {spec.engine.max_num_seqs}: each k "
            "needs a batch size of its own in the boot schedule; use fewer ks or raise maxNumSeqs",
        )
    unseeded = sorted(ks - set(tuning.ladder or ks))
    if unseeded:
        yield _invalid(
            f"spec.tuning.table uses k={', '.join(map(str, unseeded))}, for which the engine captures no graphs: "
            "add it to spec.tuning.ladder"
        )


def _fixed_k(spec: ServingSpec) -> Iterator[Finding]:
    speculation, tuning = spec.speculation, spec.tuning
    if not keeps_k(spec):
        return
    fixed = f"vLLM's {speculation.method.value} cannot change k and always drafts spec.speculation.maxTokens"
    if tuning.ladder is not None:
        yield _invalid(f"spec.tuning.ladder has no effect: {fixed}; remove the ladder")
    if tuning.table is not None and {row.k for row in tuning.table} != {speculation.max_tokens}:
        yield _invalid(f"spec.tuning.table cannot be followed: {fixed}; remove it, or use another method")


def _device(spec: ServingSpec) -> Iterator[Finding]:
    engine = spec.engine
    if engine.device is not Device.CPU:
        return
    for field, size in (
        ("tensorParallelSize", engine.tensor_parallel_size),
        ("pipelineParallelSize", engine.pipeline_parallel_size),
    ):
        if size > 1:
            yield _invalid(f"spec.engine.{field} is {size}, but a CPU engine has 1: use spec.replicas")
    if engine.cudagraph_mode not in (None, CudagraphMode.NONE):
        yield _invalid("spec.engine.cudagraphMode is for GPUs: a CPU engine has no CUDA graphs; remove it")


def _sizes(spec: ServingSpec) -> Iterator[Finding]:
    engine = spec.engine
    if engine.max_num_batched_tokens is not None and engine.max_num_batched_tokens < engine.max_num_seqs:
        yield _invalid(
            f"spec.engine.maxNumBatchedTokens {engine.max_num_batched_tokens} is below maxNumSeqs "
            f"{engine.max_num_seqs}: each request needs a token of the step; raise it"
        )
    if engine.enforce_eager and engine.cudagraph_mode not in (None, CudagraphMode.NONE):
        yield _invalid("spec.engine.enforceEager means no CUDA graphs: remove spec.engine.cudagraphMode")
    if engine.lora and engine.lora.max_cpu_loras is not None and engine.lora.max_cpu_loras < engine.lora.max_loras:
        yield _invalid("spec.engine.lora.maxCpuLoras is below maxLoras: raise it")


def _rollout(spec: ServingSpec) -> Iterator[Finding]:
    if spec.rollout.max_surge == 0 and spec.rollout.max_unavailable == 0:
        yield _invalid("spec.rollout.maxSurge and maxUnavailable are both 0, so no pod could be replaced: raise one")


def _labels(spec: ServingSpec) -> Iterator[Finding]:
    source = spec.metrics.prometheus
    for name in source.labels if source else ():
        if not LABEL_NAME.fullmatch(name):
            yield _invalid(
                f"spec.metrics.prometheus.labels has {name[:80]!r}: a label's name is of letters, digits and _"
            )


def _free_form(spec: ServingSpec) -> Iterator[Finding]:
    yield from map(_invalid, overrides.problems(spec.engine))


RULES: tuple[Callable[[ServingSpec], Iterator[Finding]], ...] = (
    _extra_arguments,
    _extra_config,
    _ladder,
    _table,
    _fixed_k,
    _method,
    _device,
    _sizes,
    _texts,
    _sources,
    _rollout,
    _labels,
    _free_form,
)
