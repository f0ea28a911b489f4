"""What is kept of an experiment in its ConfigMaps: what is run, and for each variant what was measured and how its
engines ended. They are the truth that any process carries on from; the command line reads the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from paceline_operator import naming
from paceline_operator.api.experiment import SpeculationExperiment
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.clients.kube import Kube, Object
from paceline_operator.experiment.course import Record
from paceline_operator.experiment.results import ResultError, VariantResult, read
from paceline_operator.resources import trial

KEPT, VISITS = "experiment.yaml", "visits.json"
"""Keys beside `<variant>.json`; the first as in a folder of results."""
BETWEEN = "\n---\n"
"""Documents of JSON, which is YAML: each pass reads them."""
LARGEST = 900_000
"""Bytes of a ConfigMap; the API server takes a MiB."""
RECORDS = TypeAdapter(tuple[Record, ...])


class KeptError(Exception):
    """What is there cannot be used; the message says why, and what to do."""


@dataclass(frozen=True)
class Kept:
    """Of one variant."""

    result: VariantResult
    records: tuple[Record, ...] = ()


async def begun(kube: Kube, owner: Mapping[str, Any]) -> tuple[SpeculationExperiment, SpeculativeServing] | None:
    """What the experiment began with; None: it has not. Raises KeptError."""
    data = await _data(kube, owner, naming.EXPERIMENT)
    if data is None:
        return None
    try:
        found = {each["kind"]: each for each in map(json.loads, data[KEPT].split(BETWEEN))}
        return (
            SpeculationExperiment.model_validate(found[naming.KIND_EXPERIMENT]),
            SpeculativeServing.model_validate(found[naming.KIND_SERVING]),
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise KeptError(_useless(owner, naming.EXPERIMENT)) from None


async def begin(kube: Kube, experiment: SpeculationExperiment, *documents: Object) -> None:
    """Keep what is run, as it was written."""
    texts = [json.dumps(_plain(one), ensure_ascii=False) for one in documents]
    await _write(kube, experiment, naming.EXPERIMENT, {KEPT: BETWEEN.join(texts)})


async def of_variant(kube: Kube, owner: Mapping[str, Any], variant: str) -> Kept | None:
    """None: nothing is kept of it yet. Raises KeptError."""
    suffix = f"{naming.RESULT}-{variant}"
    data = await _data(kube, owner, suffix)
    if data is None:
        return None
    try:
        result = read(str(data[f"{variant}.json"]).encode(), variant)
        return Kept(result, RECORDS.validate_json(str(data[VISITS])))
    except (ResultError, LookupError, ValidationError):
        raise KeptError(_useless(owner, suffix)) from None


async def keep(kube: Kube, experiment: SpeculationExperiment, kept: Kept) -> None:
    """Of one variant."""
    variant = kept.result.variant
    data = {f"{variant}.json": _fitting(kept.result), VISITS: RECORDS.dump_json(kept.records).decode()}
    await _write(kube, experiment, f"{naming.RESULT}-{variant}", data)


def with_record(kept: Kept, record: Record) -> Kept:
    """Once for each round."""
    if any(one.round == record.round for one in kept.records):
        return kept
    return replace(kept, records=(*kept.records, record))


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


async def _write(kube: Kube, experiment: SpeculationExperiment, suffix: str, data: Mapping[str, str]) -> None:
    metadata = trial.metadata(experiment.metadata, naming.KIND_EXPERIMENT, suffix)
    await kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": dict(data)})


def _plain(raw: Object) -> Object:
    meta = {name: raw["metadata"][name] for name in ("name", "namespace")}
    return {"apiVersion": naming.API_VERSION, "kind": raw["kind"], "metadata": meta, "spec": raw["spec"]}
