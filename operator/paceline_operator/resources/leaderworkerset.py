"""The LeaderWorkerSet of an engine over several nodes: groups of pods that start, fail and are replaced together.

vLLM runs one process tree a node without Ray: the leader serves, the workers (`--headless`) join it by its address
(vLLM, "Parallelism and scaling", multi-node with multiprocessing; the same options in 0.32 and 0.33). The address and
each pod's place in its group are variables that the LeaderWorkerSet sets; the kubelet puts them into the arguments.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.kinds import OPTIONAL
from paceline_operator.resources.inputs import Manifest
from paceline_operator.resources.merge import merge
from paceline_operator.resources.meta import child_metadata

KIND = "LeaderWorkerSet"
ANNOTATION_EXCLUSIVE = "leaderworkerset.sigs.k8s.io/exclusive-topology"
LEADER_ADDRESS = "$(LWS_LEADER_ADDRESS)"
WORKER_INDEX = "$(LWS_WORKER_INDEX)"
CONTAINER = "engine"
SERVER_FIELDS = ("ports", "startupProbe", "readinessProbe", "livenessProbe", "lifecycle")
"""Of the engine container: what only a pod that serves has."""


def name(serving: str, track: str) -> str:
    """`<serving>-group` or `<serving>-group-<track>`: the LeaderWorkerSet makes a headless Service of its own name, so
    it cannot have that of the Service which clients use."""
    return naming.child(serving, "group" if track == naming.TRACK_STABLE else f"group-{track}")


def build(
    serving: SpeculativeServing,
    template: Mapping[str, Any],
    *,
    track: str,
    replicas: int,
    annotations: Mapping[str, str],
) -> Manifest:
    """LeaderWorkerSet of `track` whose pods have `template` (resources.pod), an engine on each node's share of devices.

    The leader has the component of its track, so Services, /scale and readings find leaders alone.
    """
    multi_node, rollout = serving.spec.engine.multi_node, serving.spec.rollout
    assert multi_node is not None, "the caller's business"
    labels = naming.track_labels(track)
    metadata = child_metadata(serving)
    exclusive = multi_node.exclusive_topology_key
    placed = {ANNOTATION_EXCLUSIVE: exclusive} if exclusive else {}
    metadata |= {"name": name(serving.metadata.name, track), "annotations": dict(annotations) | placed}
    metadata["labels"] |= labels
    return {
        "apiVersion": OPTIONAL[KIND][0],
        "kind": KIND,
        "metadata": metadata,
        "spec": {
            "replicas": replicas,
            "startupPolicy": "LeaderCreated",
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {
                    "maxSurge": rollout.max_surge,
                    "maxUnavailable": rollout.max_unavailable,
                },
            },
            "leaderWorkerTemplate": {
                "size": multi_node.nodes,
                # An engine that lost one of its processes is lost: only all of them anew make one again.
                "restartPolicy": "RecreateGroupOnPodRestart",
                "leaderTemplate": _leader(template, multi_node.nodes, labels),
                "workerTemplate": _worker(template, multi_node.nodes, labels),
            },
        },
    }


def template_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """The template that `build` made the pods of a leaderWorkerTemplate from."""
    template = copy.deepcopy(dict(group["leaderTemplate"]))
    engine, own = _engine_of(template), _arguments(int(group["size"]), "0")
    if _items(engine, "args")[-len(own) :] == own:
        engine["args"] = engine["args"][: -len(own)]
    return template


def _leader(template: Mapping[str, Any], nodes: int, labels: Mapping[str, str]) -> dict[str, Any]:
    leader: dict[str, Any] = merge(copy.deepcopy(dict(template)), {"metadata": {"labels": dict(labels)}})
    engine = _engine_of(leader)
    engine["args"] = [*_items(engine, "args"), *_arguments(nodes, "0")]
    return leader


def _worker(template: Mapping[str, Any], nodes: int, labels: Mapping[str, str]) -> dict[str, Any]:
    """No server, so no port, probe or drain; no control port, so no token."""
    component = {naming.LABEL_COMPONENT: naming.COMPONENT_WORKER}
    worker: dict[str, Any] = merge(copy.deepcopy(dict(template)), {"metadata": {"labels": dict(labels) | component}})
    spec, engine = worker["spec"], _engine_of(worker)
    engine["args"] = [*_items(engine, "args"), *_arguments(nodes, WORKER_INDEX), "--headless"]
    for field in SERVER_FIELDS:
        engine.pop(field, None)
    for of, field, without in (
        (engine, "env", {naming.ENV_TOKEN_DIRECTORY, naming.ENV_CONTROL_PORT}),
        (engine, "volumeMounts", {naming.TOKEN_VOLUME}),
        (spec, "volumes", {naming.TOKEN_VOLUME}),
    ):
        of[field] = [item for item in _items(of, field) if item["name"] not in without]
    return worker


def _engine_of(template: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = next(each for each in template["spec"]["containers"] if each["name"] == CONTAINER)
    return found


def _items(of: Mapping[str, Any], field: str) -> list[Any]:
    """A list that podTemplate may have removed."""
    return list(of.get(field) or [])


def _arguments(nodes: int, rank: str) -> list[str]:
    return ["--nnodes", str(nodes), "--node-rank", rank, "--master-addr", LEADER_ADDRESS]
