"""How each field of a SpeculativeServing's spec is led through its life: values, and the rest of the spec around it.

The schema says most of it (tests/harness/fields.py); here is what it cannot say. A field that is added to the API is
taken up by itself, unless nobody can guess values for it: then it needs a line here, and a test says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tests.harness.fields import Field, fields, refused, values
from tests.harness.objects import EAGLE, ROWS, Change, merged

SMALL: Change = {"replicas": 0, "model": {"source": "hf://owner/target"}, "speculation": {"method": "ngram"}}
"""No pods: a template that no pod runs needs no rollout, so it is in force at once."""
MANUAL: Change = {"tuning": {"mode": "Manual", "table": ROWS}}
OWNED = "OwnedArgument"
INVALID = "InvalidSpec"
SETS = ("set", "changed", "rolled back")
"""Steps to a value: where a change is live, pods stay as they were made."""
BOOTED = "live; restart for a k that the pods did not boot with"


@dataclass(frozen=True)
class Way:
    """One field's. Empty `values`, `refused`: as the schema has them."""

    values: tuple[Any, ...] = ()
    """Two that are accepted: the field is set to the first and changed to the second."""
    base: Change | None = None
    """What the field needs around it, laid over SMALL."""
    refused: tuple[Any, ...] = ()
    """What the API server refuses besides, by a rule over several fields."""
    not_accepted: tuple[tuple[Any, str], ...] = ()
    """What the API server takes and `Accepted` refuses, with its reason."""
    frozen: tuple[str, ...] = ()
    """Steps after which the cluster is not as after a fresh apply, by design: children stay as they were before."""
    refused_steps: tuple[str, ...] = ()
    """Steps that the API server refuses, because the field knows one direction alone."""
    alone: bool = False
    """It travels in a serving of its own."""
    note: str = ""
    """What docs/fields.md says of a change, where live or restart depends on more than the field."""


DRAFTED: Change = {"speculation": {"method": "draft_model", "draft": {"source": "hf://owner/draft"}}}
SUFFIX: Change = {"speculation": {"method": "suffix"}}
CACHED: Change = {"model": {"cache": {"claimName": "kept"}}}
CLAIMED: Change = {"model": {"cache": {"claim": {"size": "1Gi"}}}}
GROWS = "grows"
GROWABLE: Change = {"model": {"cache": {"claim": {"size": "1Gi", "storageClassName": GROWS}}}}
LORA: Change = {"engine": {"lora": {"maxLoras": 2}}}
WINDOW: Change = {"rollout": {"maintenanceWindows": [{"start": "02:00", "durationMinutes": 60}]}}
SCALED: Change = {"autoscaling": {"mode": "Builtin", "maxReplicas": 4, "targetRunningRequests": 8}}
KEDA: Change = merged(
    SCALED, {"autoscaling": {"mode": "KEDA", "keda": {"serverAddress": "http://metrics.example:9090"}}}
)
POOL: Change = {"routing": {"inferencePool": {"endpointPicker": {"name": "picker"}}}}
PLAIN: Change = {"routing": {"plain": {"replicas": 1}, "gateway": {"parentRefs": [{"name": "gate"}]}}}
GROUP: Change = {"engine": {"tensorParallelSize": 4, "multiNode": {"nodes": 2}}}

WAYS: Mapping[str, Way] = {
    "replicas": Way(values=(1, 2), alone=True),
    "model.revision": Way(not_accepted=(("-x", INVALID),)),
    "model.servedName": Way(values=("a-name", "b-name"), not_accepted=((" ", INVALID),)),
    "model.source": Way(values=("hf://owner/first", "pvc://claim/folder"), not_accepted=(("/models/../etc", INVALID),)),
    "model.cache.claimName": Way(values=("kept", "moved"), base=CACHED),
    "model.cache.claim.size": Way(base=GROWABLE, values=("2Gi", "3Gi"), refused_steps=("rolled back", "unset")),
    "model.cache.claim.storageClassName": Way(base=CLAIMED),
    "model.cache.claim.accessMode": Way(base=CLAIMED),
    "model.cache.download": Way(base=CACHED),
    "model.cache.compiled": Way(base=CACHED),
    "speculation.method": Way(values=("suffix", "mtp"), refused=("eagle3",)),
    "speculation.draft.source": Way(base=EAGLE, not_accepted=(("/models/../etc", INVALID),)),
    "speculation.draft.revision": Way(base=EAGLE),
    "speculation.draft.quantization": Way(base=DRAFTED, values=("fp8", "awq")),
    "speculation.draft.tensorParallelSize": Way(
        values=(1, 2), base=merged(DRAFTED, {"engine": {"tensorParallelSize": 2}})
    ),
    "speculation.suffix.maxTreeDepth": Way(base=SUFFIX),
    "speculation.suffix.maxCachedRequests": Way(base=SUFFIX),
    "speculation.suffix.maxSpecFactorPercent": Way(base=SUFFIX),
    "speculation.suffix.minTokenProbabilityPercent": Way(base=SUFFIX),
    "speculation.draftSampleMethod": Way(base=EAGLE),
    "speculation.extraConfig": Way(
        values=({"parallel_drafting": True}, {"parallel_drafting": False}), not_accepted=(({"method": "x"}, OWNED),)
    ),
    "speculation.ngram.promptLookupMin": Way(refused=(6,)),
    "speculation.ngram.promptLookupMax": Way(refused=(1,)),
    "speculation.adaptiveVerification": Way(base=EAGLE),
    "engine.vllmVersion": Way(values=("0.32.0", "0.33.0"), note="restart where it renders other arguments, else live"),
    "engine.maxNumBatchedTokens": Way(values=(4096, 8192), refused=(255,)),
    "engine.quantization": Way(values=("fp8", "awq")),
    "engine.kvCacheDtype": Way(values=("fp8", "auto")),
    "engine.cudagraphMode": Way(values=("PIECEWISE", "NONE")),
    "engine.lora.maxLoras": Way(base=LORA, values=(3, 4)),
    "engine.lora.maxLoraRank": Way(base=LORA),
    "engine.lora.maxCpuLoras": Way(base=LORA, values=(3, 4), refused=(1,)),
    "engine.extraArgs": Way(
        values=(["--seed", "1"], ["--seed", "2"]),
        not_accepted=((["--max-num-seqs", "9"], OWNED), (["--"], INVALID), (["first"], INVALID)),
    ),
    "engine.resources": Way(
        values=({"requests": {"memory": "1Gi"}}, {"limits": {"memory": "2Gi"}}),
        not_accepted=(({"limits": 1}, INVALID), ({"limits": {"memory": "much"}}, INVALID)),
    ),
    "engine.podTemplate": Way(
        values=(
            {"spec": {"priorityClassName": "first"}},
            {"spec": {"tolerations": [{"key": "gpu", "operator": "Exists"}]}, "metadata": {"annotations": {"a": "b"}}},
        ),
        not_accepted=(({"spec": {"containers": "none"}}, INVALID),),
    ),
    "tuning.mode": Way(values=("Observe", "Auto"), refused=("Manual",)),
    "tuning.table": Way(
        values=(ROWS[:2], ROWS[:1]), base=MANUAL, frozen=SETS, refused=([{"fromRequests": 2, "k": 1}],), note=BOOTED
    ),
    "tuning.ladder": Way(values=([5, 3, 1, 0], [5, 0]), frozen=SETS, refused=([5, 3], [9, 0]), note=BOOTED),
    "engine.multiNode.nodes": Way(values=(2, 4), base=GROUP),
    "engine.multiNode.exclusiveTopologyKey": Way(base=GROUP),
    "autoscaling.mode": Way(values=("Disabled", "KEDA"), base=KEDA, refused=()),
    "autoscaling.minReplicas": Way(base=KEDA, refused=(5, 0)),
    "autoscaling.maxReplicas": Way(values=(5, 6), base=KEDA),
    "autoscaling.targetRunningRequests": Way(values=(9, 10), base=KEDA),
    "autoscaling.behavior.scaleUp.stabilizationWindowSeconds": Way(base=KEDA),
    "autoscaling.behavior.scaleUp.maxStepReplicas": Way(base=KEDA),
    "autoscaling.behavior.scaleDown.stabilizationWindowSeconds": Way(base=KEDA),
    "autoscaling.behavior.scaleDown.maxStepReplicas": Way(base=KEDA),
    "autoscaling.keda.serverAddress": Way(base=KEDA),
    "autoscaling.keda.query": Way(values=("sum(a)", "sum(b)"), base=KEDA),
    "autoscaling.keda.wakeUpQuery": Way(values=("sum(a)", "sum(b)"), base=KEDA),
    "autoscaling.keda.cooldownPeriodSeconds": Way(base=KEDA),
    "routing.inferencePool.endpointPicker.name": Way(base=POOL),
    "routing.inferencePool.endpointPicker.port": Way(base=POOL),
    "routing.inferencePool.endpointPicker.failureMode": Way(base=POOL),
    "routing.plain.replicas": Way(base=PLAIN),
    "routing.plain.weightPercent": Way(base=PLAIN),
    "routing.gateway.parentRefs": Way(base=PLAIN),
    "routing.gateway.hostnames": Way(base=PLAIN),
    "routing.gateway.requestTimeoutSeconds": Way(base=PLAIN),
    "metrics.prometheus.url": Way(values=("http://first.example:9090", "http://second.example:9090")),
    "metrics.prometheus.labels": Way(values=({"job": "first"}, {"job": "second"}), refused=({"a-b": "c"},)),
    "rollout.maxUnavailable": Way(values=(2, 3), refused=(0,)),
    "rollout.windowsForUserChanges": Way(base=WINDOW),
    "suspend": Way(frozen=("set", "rolled back")),
}


@dataclass(frozen=True)
class Journey:
    """Of one field."""

    field: Field
    base: Change
    """What it needs around it."""
    first: Any
    second: Any
    refused: tuple[Any, ...]
    """By the API server."""
    not_accepted: tuple[tuple[Any, str], ...]
    frozen: tuple[str, ...]
    refused_steps: tuple[str, ...]
    alone: bool
    note: str


def journey(field: Field) -> Journey:
    """Raises LookupError where neither schema nor WAYS has two values for it."""
    way = WAYS.get(field.path, Way())
    found = way.values or tuple(values(field.node))
    if len(found) < 2:
        raise LookupError(f"spec.{field.path}: no two values are known: add them to WAYS in {__file__}")
    wrong = [*refused(field.node), *way.refused]
    special = bool(way.frozen or way.refused_steps or way.alone)
    rest = way.not_accepted, way.frozen, way.refused_steps, special, way.note
    return Journey(field, way.base or {}, found[0], found[1], tuple(wrong), *rest)


def journeys() -> list[Journey]:
    """Of all fields for which values are known; those of a list's items travel with their list."""
    found = []
    for field in fields():
        with suppress(LookupError):
            found += [] if field.of_items else [journey(field)]
    return found
