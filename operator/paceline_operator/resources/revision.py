"""A template that pods run, and the ControllerRevision that keeps it: enough to apply it again byte for byte."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from paceline_operator import naming
from paceline_operator.api.multinode import MultiNode
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.resources import leaderworkerset
from paceline_operator.resources.hashing import template_hash
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.merge import merge
from paceline_operator.resources.meta import child_metadata


@dataclass(frozen=True)
class Revision:
    """A template and what it came from."""

    name: str
    """Of the ControllerRevision."""
    number: int
    """Ascending by the order in which they came up."""
    hash: str
    """`<version of rendering>:<hash of the template>` (hashing)."""
    boot: Mapping[str, Any]
    """The part of the spec that it was rendered from (rollout.diff)."""
    key_version: str
    """Of the operator's key, whose Secret the template mounts; empty where it mounts none."""
    template: Mapping[str, Any]

    @property
    def is_whole(self) -> bool:
        """Whether the spec that it was rendered from is known; of a rebuilt one it is not."""
        return "model" in self.boot


def of(serving: str, template: Mapping[str, Any], boot: Mapping[str, Any], key_version: str, number: int) -> Revision:
    """A revision of what was just rendered, named after all that it holds."""
    content = json.dumps([boot, key_version, template], sort_keys=True, separators=(",", ":"))
    suffix = hashlib.sha256(content.encode()).hexdigest()[:10]
    hashed = template_hash(dict(template))
    return Revision(naming.child(serving, suffix), number, hashed, boot, key_version, template)


def rebuilt(live: Mapping[str, Any], name: str) -> Revision:
    """What a workload runs, where the stored revision called `name` is gone: of what it came from only the shape."""
    annotations, spec = live["metadata"].get("annotations") or {}, live["spec"]
    group = spec.get("leaderWorkerTemplate")
    template = merge({}, leaderworkerset.template_of(group) if group else spec["template"])
    boot: dict[str, Any] = {}
    if group:
        key = annotations.get(leaderworkerset.ANNOTATION_EXCLUSIVE)
        boot = {"engine": {"multiNode": merge({}, {"nodes": group["size"], "exclusiveTopologyKey": key})}}
    return Revision(name, 0, str(annotations.get(naming.ANNOTATION_TEMPLATE_HASH, "")), boot, "", template)


def shaped(spec: ServingSpec, revision: Revision) -> ServingSpec:
    """`spec` with as many nodes an engine as a rebuilt revision has: all that is known of what it came from."""
    engine = revision.boot.get("engine")
    nodes = engine.get("multiNode") if isinstance(engine, Mapping) else None
    try:
        multi_node = MultiNode.model_validate(nodes) if nodes else None
    except ValidationError:  # not of our making
        return spec
    return spec.model_copy(update={"engine": spec.engine.model_copy(update={"multi_node": multi_node})})


def build(serving: SpeculativeServing, revision: Revision) -> Manifest:
    """ControllerRevision; its data never changes."""
    metadata = child_metadata(serving)
    metadata["name"] = revision.name
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": metadata,
        "revision": revision.number,
        "data": {
            "hash": revision.hash,
            "keyVersion": revision.key_version,
            "spec": revision.boot,
            "template": revision.template,
        },
    }


def read(stored: Mapping[str, Any]) -> Revision | None:
    """Of a stored ControllerRevision; None where it is not of our making."""
    data = stored.get("data")
    if not isinstance(data, Mapping) or not all(isinstance(data.get(part), Mapping) for part in ("spec", "template")):
        return None
    number = stored.get("revision")
    return Revision(
        name=str(stored["metadata"]["name"]),
        number=number if isinstance(number, int) else 0,
        hash=str(data.get("hash", "")),
        boot=data["spec"],
        key_version=str(data.get("keyVersion", "")),
        template=data["template"],
    )
