"""Is this object one that can be acted on? Pure: the raw object in, a parsed one and the Accepted verdict out.

The API server has checked schema and CEL already, but a stored object may be older than either.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

from pydantic import ValidationError

from paceline_operator import naming
from paceline_operator.api.base import ApiModel, shared
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.engine import Device
from paceline_operator.api.experiment import SpeculationExperiment
from paceline_operator.api.profiles import SpeculationProfile
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.preflight import evidence, legality
from paceline_operator.resources import Defaults
from paceline_operator.verdicts import Verdict

M = TypeVar("M", bound=ApiModel)
_SHOWN = 3
MAX_DEPTH = 64
"""Levels of a spec; a pod template of Kubernetes' own has some 15. Deeper ones have no purpose but to break readers."""


class _Unused(NamedTuple):
    """A kind of which no more is done than its spec judged."""

    model: type[SpeculationExperiment] | type[SpeculationProfile]
    problems: Callable[[Any], Iterator[str]]
    limit: str


_UNUSED: Mapping[str, _Unused] = {
    naming.KIND_EXPERIMENT: _Unused(
        SpeculationExperiment, evidence.of_experiment, "variants are measured one at a time, each beside the serving"
    ),
    naming.KIND_PROFILE: _Unused(
        SpeculationProfile, evidence.of_profile, "servings with its key that name it in tuning.profileRef start from it"
    ),
}


def accept(raw: Mapping[str, Any], defaults: Defaults | None = None) -> tuple[SpeculativeServing | None, Verdict]:
    """The parsed object, None where it is refused; the verdict names the field. Status is not looked at."""
    serving = _parse(raw, SpeculativeServing)
    if isinstance(serving, Verdict):
        return None, serving
    gpu = serving.spec.engine.device is Device.GPU
    image = (defaults.engine_image if gpu else defaults.cpu_engine_image) if defaults else ""
    findings = legality.check(serving.spec, image)
    if findings:
        return None, _refused(findings[0].reason, [finding.message for finding in findings])
    kept = serving.model_copy(update={"spec": shared(serving.spec)})
    return kept, Verdict(ConditionType.ACCEPTED, True, Reason.VALID, "The spec is valid")


def judgement(kind: str, raw: Mapping[str, Any]) -> Verdict:
    """Of a SpeculationExperiment or SpeculationProfile; where it is good, it says what comes of it."""
    model, problems, limit = _UNUSED[kind]
    parsed = _parse(raw, model)
    if isinstance(parsed, Verdict):
        return parsed
    if texts := list(problems(parsed.spec)):
        return _refused(Reason.INVALID_SPEC, texts)
    return Verdict(ConditionType.ACCEPTED, True, Reason.VALID, f"The spec is valid; {limit}")


def _parse(raw: Mapping[str, Any], model: type[M]) -> M | Verdict:
    if _too_deep(raw.get("spec")):
        text = (
            f"spec is nested deeper than {MAX_DEPTH} levels: are podTemplate, resources and extraConfig what you mean?"
        )
        return _refused(Reason.INVALID_SPEC, [text])
    try:
        return model.model_validate({key: value for key, value in raw.items() if key != "status"})
    except ValidationError as error:
        details = error.errors(include_url=False, include_context=False, include_input=False)
        texts = [f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}" for detail in details]
        return _refused(Reason.INVALID_SPEC, texts)


def _too_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [item for one in level for item in _members(one)]
    return bool(level)


def _members(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()


def _refused(reason: Reason, texts: list[str]) -> Verdict:
    more = [f"and {len(texts) - _SHOWN} more"] if len(texts) > _SHOWN else []
    return Verdict(ConditionType.ACCEPTED, False, reason, "; ".join([*texts[:_SHOWN], *more]))
