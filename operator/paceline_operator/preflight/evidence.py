"""Whether an experiment can tell anything, and whether a profile's numbers can be true.

As in `legality`, the rules that the CRD states in CEL are here again: a stored object may be older than a rule.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline_operator.api.experiment import BASELINE, SERVING, ExperimentSpec, Variant
from paceline_operator.api.learned import AcceptanceRow
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.api.speculation import DRAFT_METHODS
from paceline_operator.preflight import legality

PLACEHOLDER = "hf://ORGANISATION/DRAFT"
"""In the templates of `paceline experiment template`: the one thing that only its user can name."""
OF_SPECULATION = {"ngram", "maxTokens", "adaptiveVerification"}
"""Changes of a speculation that is there already."""


def of_experiment(spec: ExperimentSpec) -> Iterator[str]:
    """Messages for everything that is wrong with an experiment's spec."""
    names = [variant.name for variant in spec.variants]
    variants = {variant.name: variant for variant in spec.variants if variant.name not in (BASELINE, SERVING)}
    for index, variant in enumerate(spec.variants):
        where = f"spec.variants[{index}]"
        if variant.name not in variants:
            yield f"{where}.name {variant.name} is taken, and always runs: choose another"
        elif names.index(variant.name) != index:
            yield f"{where}.name {variant.name} is there twice: choose another"
        yield from _variant(variant, variants, where)
    prompts = spec.load.prompts.model_dump(exclude_none=True, by_alias=True)
    if len(prompts) != 1:
        yield (
            f"spec.load.prompts has {_listed(prompts)}: "
            "name exactly one source, random, lengths, configMap or persistentVolumeClaim"
        )
    duration = spec.duration.model_dump(exclude_none=True, by_alias=True)
    if set(duration) not in ({"seconds"}, {"timesToFault", "secondsToFault"}):
        yield f"spec.duration has {_listed(duration)}: set seconds, or timesToFault together with secondsToFault"


def _variant(variant: Variant, variants: Mapping[str, Variant], where: str) -> Iterator[str]:
    change = variant.change
    changed = change.model_dump(exclude_none=True, by_alias=True)
    if len(changed) != 1:
        yield (
            f"{where}.change has {_listed(changed)}: a variant changes exactly one thing; "
            "make a second variant with this one as its parent"
        )
    line, root = [variant], variant.parent
    while root in variants and variants[root] not in line:
        line.append(variants[root])
        root = line[-1].parent
    if root not in (BASELINE, SERVING):
        yield f"{where}.parent {variant.parent} does not lead back to {BASELINE} or {SERVING}: it stops at {root}"
    speculation = next((each.change.speculation for each in line if each.change.speculation), None)
    if root == BASELINE and speculation is None and (vain := OF_SPECULATION & changed.keys()):
        yield (
            f"{where}.change.{min(vain)} has nothing to change: {BASELINE} has no speculation; "
            f"set {where}.parent to {SERVING}, or change speculation"
        )
    if change.speculation:
        if change.speculation.draft and change.speculation.draft.source == PLACEHOLDER:
            yield f"{where}.change.speculation.draft.source: replace what is in capitals in {PLACEHOLDER} by your draft"
        yield from legality.of_speculation(change.speculation, f"{where}.change.speculation")
    if change.ngram:
        method = speculation.method if speculation else None
        yield from legality.of_window(change.ngram, method, f"{where}.change.ngram")


def of_profile(spec: ProfileSpec) -> Iterator[str]:
    """Messages for everything that is wrong with a profile's spec."""
    key = spec.key
    if key.method in DRAFT_METHODS and key.draft_digest is None:
        yield f"spec.key.draftDigest is missing: the method {key.method.value} has a draft model"
    for field, ks in (("cost", [row.k for row in spec.cost]), ("acceptance", [row.k for row in spec.acceptance])):
        for index, k in enumerate(ks):
            if k > key.max_tokens:
                yield f"spec.{field}[{index}].k is {k}, above spec.key.maxTokens {key.max_tokens}: it never ran"
    for index, row in enumerate(spec.acceptance):
        yield from _counts(row, f"spec.acceptance[{index}]")


def _counts(row: AcceptanceRow, where: str) -> Iterator[str]:
    """Of each count only a part can go on to the next: request steps, drafts, drafted and accepted at a position."""
    for field, counts in (("drafted", row.drafted), ("accepted", row.accepted)):
        if len(counts) != row.k:
            yield f"{where}.{field} has {len(counts)} counts, and k is {row.k}: it needs one for each position"
    if row.drafts > row.request_steps:
        yield f"{where}.drafts {row.drafts} exceeds requestSteps {row.request_steps}"
    for position, (drafted, accepted) in enumerate(zip(row.drafted, row.accepted, strict=False)):
        if drafted > row.drafts:
            yield f"{where}.drafted[{position}] {drafted} exceeds drafts {row.drafts}"
        if accepted > drafted:
            yield f"{where}.accepted[{position}] {accepted} exceeds drafted[{position}] {drafted}"


def _listed(fields: Mapping[str, object]) -> str:
    return ", ".join(fields) or "nothing"
