"""What is kept of an experiment in its ConfigMaps: what is run, and for each variant what was measured and how its
engines ended. They are the truth that any process carries on from; the command line reads the same."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter

from paceline_engine.trial.visit import Load, Requests
from paceline_operator import naming
from paceline_operator.api.base import ObjectMeta
from paceline_operator.api.experiment import SpeculationExperiment
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.clients.kube import Kube, Object
from paceline_operator.experiment import progress
from paceline_operator.experiment.course import Record
from paceline_operator.experiment.results import Fact, ResultError, VariantResult, read
from paceline_operator.resources import Defaults, trial

KEPT, VISITS, DEFAULTS = "experiment.yaml", "visits.json", "defaults"
"""Keys beside `<variant>.json`; the first as in a folder of results."""
BETWEEN = "\n---\n"
"""Documents of JSON, which is YAML: each pass reads them."""
LARGEST = 900_000
"""Bytes of a ConfigMap; the API server takes a MiB."""


class Images(Fact):
    """Of `resources.Defaults`."""

    engine_image: str
    cpu_engine_image: str
    plugin_image: str


RECORDS = TypeAdapter(tuple[Record, ...])
REQUESTS = TypeAdapter(dict[Load, Requests])


class KeptError(Exception):
    """What is there cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class Kept:
    """Of one variant."""

    result: VariantResult
    records: tuple[Record, ...] = ()


@dataclass(frozen=True)
class Beginning:
    """What is run, as it was when it began."""

    experiment: SpeculationExperiment
    serving: SpeculativeServing
    defaults: Defaults
    """Its images are those of then: another version of the operator has others."""


async def begun(kube: Kube, owner: Mapping[str, Any], defaults: Defaults) -> Beginning | None:
    """What the experiment began with; None: it has not. Raises KeptError."""
    data = await _data(kube, owner, naming.EXPERIMENT)
    if data is None:
        return None
    try:
        found = {each["kind"]: each for each in map(json.loads, data[KEPT].split(BETWEEN))}
        images = Images.model_validate_json(data[DEFAULTS]).model_dump() if DEFAULTS in data else {}
        return Beginning(
            SpeculationExperiment.model_validate(found[naming.KIND_EXPERIMENT]),
            SpeculativeServing.model_validate(found[naming.KIND_SERVING]),
            replace(defaults, **images),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise KeptError(_useless(owner, naming.EXPERIMENT)) from None


async def begin(kube: Kube, experiment: SpeculationExperiment, defaults: Defaults, *documents: Object) -> None:
    """Keep what is run, as it was written."""
    texts = [json.dumps(_plain(one), ensure_ascii=False) for one in documents]
    images = Images.model_validate({name: getattr(defaults, name) for name in Images.model_fields})
    data = {KEPT: BETWEEN.join(texts), DEFAULTS: images.model_dump_json()}
    await _write(kube, experiment.metadata, naming.EXPERIMENT, data)


def lost(owner: Mapping[str, Any]) -> KeptError:
    """There are results, and not what they are of."""
    name = naming.child(owner["metadata"]["name"], naming.EXPERIMENT)
    return KeptError(f"ConfigMap {name} is gone, which says what its results are of: delete the experiment")


async def of_variant(kube: Kube, owner: Mapping[str, Any], variant: str) -> Kept | None:
    """None: nothing is kept of it yet. Raises KeptError."""
    suffix = f"{naming.RESULT}-{variant}"
    data = await _data(kube, owner, suffix)
    if data is None:
        return None
    try:
        result = read(str(data[f"{variant}.json"]).encode(), variant)
        if result.variant != variant:
            raise ResultError(f"it is of {result.variant}")
        REQUESTS.validate_python(progress.requests({variant: result}))
        return Kept(result, RECORDS.validate_json(str(data[VISITS])))
    except (LookupError, ValueError):
        raise KeptError(_useless(owner, suffix)) from None


async def keep(kube: Kube, owner: ObjectMeta, kept: Kept) -> None:
    """Of one variant."""
    variant = kept.result.variant
    data = {f"{variant}.json": _fitting(kept.result), VISITS: RECORDS.dump_json(kept.records).decode()}
    await _write(kube, owner, f"{naming.RESULT}-{variant}", data)


def with_record(kept: Kept, record: Record) -> Kept:
    """Once for each round: one that has ended stays."""
    if any(one.round == record.round and one.ended is not None for one in kept.records):
        return kept
    return replace(kept, records=(*(one for one in kept.records if one.round != record.round), record))


def closed(kept: Kept, now: float, reason: str, limit: float = math.inf) -> Kept:
    """Without a turn that goes on: its Job is no more. It took `limit` seconds at most, or until `now`."""
    for one in kept.records:
        if one.ended is None:
            ended = max(one.began, min(now, one.began + limit))
            kept = with_record(kept, one.model_copy(update={"ended": ended, "reason": reason}))
    return kept


def _fitting(result: VariantResult) -> str:
    """As JSON; of a very long experiment only the first acceptance lengths and warnings."""
    while True:
        text = result.model_dump_json(exclude_defaults=True)
        if len(text.encode()) <= LARGEST or not (result.lengths or result.warnings):
            return text
        half = {"lengths": result.lengths[: len(result.lengths) // 2]}
        result = result.model_copy(update={**half, "warnings": result.warnings[: len(result.warnings) // 2]})


async def _data(kube: Kube, owner: Mapping[str, Any], suffix: str) -> Mapping[str, Any] | None:
    meta = owner["metadata"]
    name = naming.child(meta["name"], suffix)
    found = await kube.get("ConfigMap", meta["namespace"], name)
    if found is None:
        return None
    if meta["uid"] not in [one.get("uid") for one in found["metadata"].get("ownerReferences") or []]:
        raise KeptError(f"ConfigMap {name} is not this experiment's: delete it, or give the experiment another name")
    return found.get("data") or {}


def _useless(owner: Mapping[str, Any], suffix: str) -> str:
    name = naming.child(owner["metadata"]["name"], suffix)
    return f"ConfigMap {name} cannot be read any more: delete the experiment and create it again"


async def _write(kube: Kube, owner: ObjectMeta, suffix: str, data: Mapping[str, str]) -> None:
    metadata = trial.metadata(owner, naming.KIND_EXPERIMENT, suffix)
    await kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)})


def _plain(raw: Object) -> Object:
    meta = {name: raw["metadata"][name] for name in ("name", "namespace")}
    return {"apiVersion": naming.API_VERSION, "kind": raw["kind"], "metadata": meta, "spec": raw["spec"]}
