"""Every variant of an experiment as a serving that can be rendered: its parent with the one change in it. Pure.

Each drafts its maxTokens at every load: there is no plugin in it and no tuner beside it, so that a difference between
two variants is that of the change alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.experiment import BASELINE, SERVING, Change, ExperimentSpec
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.api.speculation import Ngram, Speculation
from paceline_operator.api.status import TableRow
from paceline_operator.api.tuning import Tuning, TuningMode
from paceline_operator.preflight import legality
from paceline_operator.resources import Defaults, Manifest, Tokens, pod
from paceline_operator.tuning.decide import settings_of

VERBOSE = "--jit-monitor-verbose"
"""vLLM 0.32 and 0.33: every compilation while requests are served is logged, and not each kernel's first alone."""


@dataclass(frozen=True)
class Variant:
    """One configuration to measure."""

    name: str
    parent: str | None
    spec: ServingSpec
    """As the user would write it: what `apply` brings into the serving."""
    drafter: bool

    @property
    def k(self) -> int:
        """Tokens drafted at every load."""
        return self.spec.speculation.max_tokens if self.drafter else 0


def of(experiment: ExperimentSpec, serving: ServingSpec) -> Mapping[str, Variant]:
    """Baseline, serving and all variants, by name in the order of the spec, which must have been planned."""
    found = {
        BASELINE: Variant(BASELINE, None, serving, drafter=False),
        SERVING: Variant(SERVING, None, serving, drafter=serving.speculation.enabled),
    }
    left = list(experiment.variants)
    while left:
        one = next(variant for variant in left if variant.parent in found)
        left.remove(one)
        parent = found[one.parent]
        speculation = one.change.speculation
        found[one.name] = Variant(
            one.name,
            one.parent,
            changed(parent.spec, one.change),
            drafter=speculation.enabled if speculation else parent.drafter,
        )
    return {name: found[name] for name in (BASELINE, SERVING, *(variant.name for variant in experiment.variants))}


def changed(spec: ServingSpec, change: Change) -> ServingSpec:
    """`spec` with the one thing changed."""
    speculation, engine = spec.speculation, spec.engine
    if change.speculation is not None:
        speculation = change.speculation
    elif change.ngram is not None:
        window = Ngram(
            prompt_lookup_min=change.ngram.prompt_lookup_min, prompt_lookup_max=change.ngram.prompt_lookup_max
        )
        speculation = speculation.model_copy(
            update={"ngram": window, "max_tokens": change.ngram.max_tokens or speculation.max_tokens}
        )
    elif change.max_tokens is not None:
        speculation = speculation.model_copy(update={"max_tokens": change.max_tokens})
    elif change.adaptive_verification is not None:
        speculation = speculation.model_copy(update={"adaptive_verification": change.adaptive_verification})
    else:
        engine = engine.model_copy(update=dict(_of_engine(change)))
    return spec.model_copy(update={"speculation": speculation, "engine": engine})


def _of_engine(change: Change) -> Iterator[tuple[str, Any]]:
    for field in ("cudagraph_mode", "enforce_eager", "enable_prefix_caching", "image"):
        if (value := getattr(change, field)) is not None:
            yield field, value


def gpus_of(spec: ServingSpec) -> int:
    """GPUs of one engine; a CPU counts as one device."""
    return spec.engine.tensor_parallel_size * spec.engine.pipeline_parallel_size


def refusals(variants: Mapping[str, Variant]) -> Iterator[str]:
    """Why they are not measured: what vLLM would not run, by the variant's name, and what is its parent once more."""
    for variant in variants.values():
        parent = variants.get(variant.parent or "")
        if parent and (variant.spec, variant.drafter) == (parent.spec, parent.drafter):
            yield f"variant {variant.name}: its change changes nothing: {parent.name} is like that already"
        for finding in legality.check(variant.spec):
            yield f"variant {variant.name}: {finding.message}"


def rendered(serving: SpeculativeServing, variant: Variant, defaults: Defaults) -> Manifest:
    """The pod template of `variant`, by the builder that renders the operator's pods."""
    spec = variant.spec
    engine = spec.engine.model_copy(
        update={
            "plugin": spec.engine.plugin.model_copy(update={"injection": PluginInjection.NONE}),
            "extra_args": [*spec.engine.extra_args, *([] if VERBOSE in spec.engine.extra_args else [VERBOSE])],
        }
    )
    fixed = Tuning(mode=TuningMode.MANUAL, table=[TableRow(from_requests=1, k=spec.speculation.max_tokens)])
    whole = serving.model_copy(update={"spec": spec.model_copy(update={"engine": engine, "tuning": fixed})})
    table = settings_of(whole.spec).boot_table
    return pod.build(whole, table, defaults, Tokens(key_version="", current=""), drafter=variant.drafter)


def patch(serving: Mapping[str, Any], variant: Variant, base: ServingSpec) -> dict[str, Any]:
    """The merge patch that makes a serving (as stored, its spec raw) what `variant` is, in exactly the fields in which
    it differs from `base`, the serving that was measured."""
    raw = serving.get("spec") or {}
    changes: dict[str, Any] = {}
    if not variant.drafter:
        changes["speculation"] = {"enabled": False}
    elif variant.spec.speculation != base.speculation:
        changes["speculation"] = _speculation(raw.get("speculation") or {}, variant.spec.speculation, base.speculation)
    engine = {
        name: wanted for name, wanted in _plain(variant.spec.engine).items() if wanted != _plain(base.engine).get(name)
    }
    return {"spec": changes | ({"engine": engine} if engine else {})}


def _speculation(raw: Mapping[str, Any], wanted: Speculation, base: Speculation) -> dict[str, Any]:
    new, old = _plain(wanted), _plain(base)
    differing = {name: new.get(name) for name in new.keys() | old.keys() if new.get(name) != old.get(name)}
    # What a merge patch does not name stays: a window of the old one is not the new one's.
    return {
        name: {**dict.fromkeys(raw[name].keys() - value.keys()), **value}
        if isinstance(value, dict) and isinstance(raw.get(name), dict)
        else value
        for name, value in sorted(differing.items())
    }


def _plain(model: Any) -> dict[str, Any]:
    found: dict[str, Any] = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def differences(patch: Mapping[str, Any], raw: Any, path: str = "") -> Iterator[str]:
    """`spec.speculation.maxTokens: 5 -> 2`, a line for each field that the patch changes in `raw`."""
    for name, value in patch.items():
        place = f"{path}.{name}" if path else name
        now = raw.get(name) if isinstance(raw, Mapping) else None
        if isinstance(value, Mapping):
            yield from differences(value, now, place)
        elif value != now:
            yield f"{place}: {_said(now)} -> {_said(value)}"


def _said(value: Any) -> str:
    return "unset" if value is None else str(value)
