"""What a serving has come to: all that is ours in its namespace, without what differs between two equal lives."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

from paceline_operator import naming
from paceline_operator.plan import CHILD_KINDS
from tests.cluster.lives import plain
from tests.cluster.operators import Object, Place

KINDS = (*CHILD_KINDS, "Secret")
NOTES = {"ChildCreated", "ChildCorrected", "ChildPruned", "ApplyFailed"}
"""Events about a write that was made, or refused: who is killed between the two tells of none, and the next finds it
made."""
DECIDED = {"Load", "Acceptance", "Cost", "Baseline", "Incumbent"}
"""Events about another k: where the process that decided it was killed, the next tells that it finds it decided."""
Snapshot = dict[str, Any]


def taken(place: Place, name: str) -> Snapshot:
    """Children, status, records, events (which, not how often: one may be told twice), pods by track."""
    serving = place.get(naming.KIND_SERVING, name) or {}
    records = place.get("ConfigMap", naming.child(name, naming.INCIDENTS))
    pods = [pod for pod in place.list("Pod") if "deletionTimestamp" not in pod["metadata"]]
    return {
        "children": {
            f"{kind}/{item['metadata']['name']}": plain(item) for kind in KINDS for item in _ours(place, kind)
        },
        "status": status(serving),
        "records": sorted(map(_record, ((records or {}).get("data") or {}).values())),
        "events": sorted({_told(event["reason"]) for event in place.list("Event") if _from_us(event)} - NOTES),
        "pods": dict(Counter(pod["metadata"]["labels"][naming.LABEL_TRACK] for pod in pods)),
    }


def status(serving: Mapping[str, Any]) -> Object:
    """What is decided and remembered; measured numbers, times and names of pods left out."""
    found = serving.get("status") or {}
    rollout, safety = found.get("rollout") or {}, found.get("safety") or {}
    kept = ("replicas", "readyReplicas", "selector", "tier", "k", "acknowledgedPods", "table", "loadRequests")
    return {
        **{name: found.get(name) for name in kept},
        "observed": found.get("observedGeneration") == serving.get("metadata", {}).get("generation"),
        "conditions": {c["type"]: _said(c) for c in found.get("conditions", [])},
        "decided": [(one["toK"], one["requests"]) for one in found.get("decisions", [])][:1],
        "rollout": {name: rollout.get(name) for name in ("phase", "revision", "target", "fields", "own")}
        | {
            "canary": (rollout.get("canary") or {}).get("revision"),
            "verdict": bool(rollout.get("verdict")),
            "changed": "changedAt" in rollout,
            "failed": [(one["revision"], one["reason"]) for one in rollout.get("failed", [])],
        },
        "safety": {name: safety.get(name) for name in ("breaker", "phase", "rung", "changes", "tried", "fault")}
        | {
            "deaths": [(one["kind"], one["fingerprint"]) for one in safety.get("deaths", [])],
            "since": "since" in safety,
        },
    }


def _told(reason: str) -> str:
    return "a k" if reason in DECIDED else reason


def _said(condition: Object) -> tuple[str, str]:
    """Why k is what it is (Tuned) is told of the last look: one process decided it, the next finds it decided."""
    return condition["status"], "" if condition["type"] == "Tuned" else condition["reason"]


def _ours(place: Place, kind: str) -> list[Object]:
    return [one for one in place.list(kind) if naming.LABEL_SERVING in (one["metadata"].get("labels") or {})]


def _from_us(event: Object) -> bool:
    return bool(event.get("source", {}).get("component") == naming.FIELD_MANAGER)


def _record(text: str) -> tuple[str, str, str]:
    found = json.loads(text)
    return found["kind"], found["fingerprint"], found["action"].partition(":")[0]
