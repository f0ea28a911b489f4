"""The rollout part of a pass: what the cluster shows of both tracks → a decision → manifests. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.checked import refused
from paceline_operator.clock import moment
from paceline_operator.modelcache import is_pulled, unobtainable
from paceline_operator.plan import WORKLOAD_KINDS, ChildKey, Object, Observation, key_of
from paceline_operator.resources import Defaults, Tokens, leaderworkerset, pod, revision, workload
from paceline_operator.resources import job as pull_job
from paceline_operator.resources.revision import Revision
from paceline_operator.rollout.accept import Accepted, is_own, name_of
from paceline_operator.rollout.decide import decide
from paceline_operator.rollout.diff import boot_spec, with_boot
from paceline_operator.rollout.proposal import overlay, value_at
from paceline_operator.rollout.revision import changes, find, kept, next_number
from paceline_operator.rollout.situation import Ask, CanaryPod, Decision, Judgement, Situation, Track, of_trial
from paceline_operator.safety.detect import ended
from paceline_operator.safety.lay import OFF, OFF_PATHS, Laid
from paceline_operator.tuning.decide import settings_of
from paceline_operator.verdicts import is_ready

STUCK = frozenset(
    {
        "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError",
        "CreateContainerError", "CrashLoopBackOff",
    }
)  # fmt: skip
"""Reasons of the kubelet for a container that waits (pkg/kubelet/images/types.go, kuberuntime)."""
TRIAL_SECONDS = 10.0
"""Between two looks at a canary of the safety ladder that is up: what ends it wakes a pass."""
UNWATCHED_SECONDS = 10.0
"""Between two looks at a LeaderWorkerSet that is not settled: of optional kinds no change is told."""


@dataclass(frozen=True)
class Rolled:
    """What a pass makes of the serving's pods."""

    decision: Decision
    in_force: SpeculativeServing
    """The object with what its stable pods run in place of what its spec says of their template."""
    manifests: tuple[Object, ...] = ()
    """ControllerRevisions, then workloads."""
    job: Object | None = None
    """That brings the weights before pods are made or changed, where the spec asks for it."""


def roll(
    serving: SpeculativeServing,
    raw: Object,
    look: Observation,
    accepted: Accepted,
    judgement: Judgement,
    watched_seconds: float,
    defaults: Defaults,
    tokens: Tokens,
    now: datetime,
    occupied: str = "",
    remedy: Laid | None = None,
) -> Rolled:
    """One step of the rollout of `serving` (as asked for: what is `accepted` is laid over its spec already, and so is a
    `remedy`).

    `occupied`: whose object stands where the canary's workload would be; empty: nobody's.
    """
    remedy = remedy or Laid(serving.spec)
    name, uid, pods, children = serving.metadata.name, serving.metadata.uid, look.pods, look.children or {}
    mine = {key: child for key, child in children.items() if _owner(child) == uid}
    stored = revisions(children, name, uid)
    memory = accepted.memory
    stable, canary = (_track(mine, pods, name, track) for track in (naming.TRACK_STABLE, naming.TRACK_CANARY))
    live = _live(mine, name, naming.TRACK_STABLE)
    if stable and live and stable.revision.rpartition("-")[0] != name:
        stable = replace(stable, revision=_unnamed(live, stored, memory.revision))
    plugged = serving.spec.engine.plugin.injection is not PluginInjection.NONE
    key_version = tokens.key_version if plugged else ""
    running = next((one for one in stored if stable and one.name == stable.revision), None)
    if remedy.urgent and running and running.is_whole and value_at(running.boot, "speculation.enabled") is not False:
        serving = _alone(serving, running)
    asking = (stored, key_version, defaults, tokens)
    wanted = _asked_for(serving, running, *asking)
    # All others run without speculation first; a pod of theirs that fails later does not end the trial.
    calm = stable is not None and (stable.settled or (canary is not None and stable.renewed))
    trial = remedy.trial is not None and wanted is running and calm
    if remedy.trial is not None and trial:
        serving = serving.model_copy(update={"spec": remedy.trial})
        wanted = _asked_for(serving, running, *asking)
    boot = boot_spec(serving.spec)
    if stable and live and stable.revision and running is None and stable.revision != wanted.name:
        running = revision.rebuilt(live, stable.revision)  # it was deleted: what runs is still there to be kept
    sought, job = wanted, pull_job.build(serving, wanted.template)
    held = job is not None and not is_pulled(children.get(key_of(job), {}))
    if running and held:
        wanted = running  # pods are changed once the weights are there
    if running and serving.spec.engine.multi_node and leaderworkerset.KIND in look.absent:
        wanted = running  # what is asked for cannot be: pods stay as they are, and why is told of what is withheld
    fields = changes(running, boot, key_version) if running and running is not wanted else ()
    own = is_own(fields, accepted.paths | remedy.paths)
    remedied = is_own(fields, remedy.paths) and not is_own(fields, accepted.paths)
    if trial:
        judgement, watched_seconds = of_trial(judgement), 0.0
    elif remedy.settled and remedied:
        judgement, watched_seconds = Judgement(True, Reason.STABLE_UNDER_CHANGE, remedy.settled), math.inf
    if fields and running and not running.is_whole and memory.target == wanted.name:
        fields, own = tuple(memory.fields), memory.own  # what it was made from is lost: as found before that
    situation = Situation(
        replicas=serving.spec.replicas,
        rollout=serving.spec.rollout,
        wanted=wanted,
        own=own,
        proposal=remedy.name if trial else name_of(memory.applied[-1]) if memory.applied else "",
        fields=fields,
        stable=stable,
        canary=canary,
        pod=_canary_pod(pods, look.workers),
        judgement=judgement,
        watched_seconds=watched_seconds,
        memory=memory,
        retry=retry_of(raw),
        startup_seconds=float(serving.spec.engine.startup_timeout_seconds),
        now=now,
        occupied=occupied,
        urgent=remedy.urgent if is_own(fields, OFF_PATHS) else "",
        trial=trial,
    )
    decision = decide(situation)
    if trial and situation.pod and situation.pod.ready_since and decision.after is not None:
        decision = replace(decision, after=max(decision.after, TRIAL_SECONDS))
    known = {one.name: one for one in (*stored, *([running] if running else []), wanted)}
    in_force = _in_force(serving, known[decision.stable.revision])
    if decision.after is None and stable and not stable.settled and in_force.spec.engine.multi_node:
        decision = replace(decision, after=UNWATCHED_SECONDS)
    manifests = _manifests(serving, decision, known)
    if held:
        kept_back = () if running else WORKLOAD_KINDS
        return Rolled(decision, in_force, tuple(one for one in manifests if one["kind"] not in kept_back), job)
    if sought is not wanted:
        manifests += (_workload(serving, naming.TRACK_STABLE, Ask(sought.name, situation.replicas), sought),)
    return Rolled(decision, in_force, manifests, job)


def retry_of(raw: Object) -> str:
    """Value of the annotation that asks for another try; empty where there is none."""
    return str((raw["metadata"].get("annotations") or {}).get(naming.ANNOTATION_RETRY, ""))[:256]


def _asked_for(
    serving: SpeculativeServing,
    running: Revision | None,
    stored: Sequence[Revision],
    key_version: str,
    defaults: Defaults,
    tokens: Tokens,
) -> Revision:
    """The template of `serving`: the stored one, that which runs first, or one that is made now."""
    boot = boot_spec(serving.spec)
    found = find(stored, boot, key_version, running.name if running else "")
    if found is not None:
        return found
    template = pod.build(serving, settings_of(serving.spec).boot_table, defaults, tokens)
    if running and running.template == template and _shape(running.boot) == _shape(boot):
        return running  # another spec, the same pods
    made = revision.of(serving.metadata.name, template, boot, key_version, next_number(stored))
    return next((one for one in stored if one.name == made.name), made)  # data of a stored one cannot change


def _alone(serving: SpeculativeServing, running: Revision) -> SpeculativeServing:
    """With no other change than that engines do not speculate, where those that run do: whatever the user has changed
    besides waits for its canary."""
    try:
        spec = with_boot(serving.spec, overlay(running.boot, OFF))
    except (ValueError, TypeError):
        return serving
    return serving.model_copy(update={"spec": spec})


def _shape(boot: Mapping[str, Any]) -> object:
    """How pods make up an engine: what of the spec is in the workload around the template."""
    engine = boot.get("engine")
    return engine.get("multiNode") if isinstance(engine, Mapping) else None


def _manifests(serving: SpeculativeServing, decision: Decision, known: Mapping[str, Revision]) -> tuple[Object, ...]:
    asks = [(naming.TRACK_STABLE, decision.stable)]
    asks += [(naming.TRACK_CANARY, decision.canary)] if decision.canary else []
    used = [ask.revision for _, ask in asks] + [one.revision for one in decision.memory.failed]
    revisions = kept(list(known.values()), [*used, decision.memory.target])
    return (
        *(revision.build(serving, one) for one in revisions),
        *(_workload(serving, track, ask, known[ask.revision]) for track, ask in asks),
    )


def _workload(serving: SpeculativeServing, track: str, ask: Ask, of: Revision) -> Object:
    annotations = {naming.ANNOTATION_REVISION: of.name, naming.ANNOTATION_TEMPLATE_HASH: of.hash}
    made_from = _in_force(serving, of)
    return workload.build(made_from, of.template, track=track, replicas=ask.replicas, annotations=annotations)


def revisions(children: Mapping[ChildKey, Object], workload: str, owner: str) -> list[Revision]:
    """Stored templates of a workload (`<workload>-<digest>`) of the object with UID `owner`, by name."""
    mine = [
        child
        for (kind, name), child in sorted(children.items())
        if kind == "ControllerRevision" and name.rpartition("-")[0] == workload and _owner(child) == owner
    ]
    return [one for one in map(revision.read, mine) if one is not None]


def _in_force(serving: SpeculativeServing, running: Revision) -> SpeculativeServing:
    try:
        spec = with_boot(serving.spec, dict(running.boot))
        settings_of(spec)
    except (ValueError, TypeError):  # of another version, or a ladder that its engines cannot have: the spec's own word
        if running.is_whole:
            return serving
        spec = revision.shaped(serving.spec, running)
    return serving.model_copy(update={"spec": spec})


def _track(children: Mapping[ChildKey, Object], pods: Sequence[Object], serving: str, track: str) -> Track | None:
    there = _live(children, serving, track)
    if there is None:
        return None
    return Track(
        revision=str((there["metadata"].get("annotations") or {}).get(naming.ANNOTATION_REVISION, "")),
        replicas=int(there["spec"].get("replicas", 1)),
        ready=sum(map(is_ready, of_track(pods, track))),
        settled=is_settled(there),
        renewed=is_renewed(there),
        unplaced_since=_unplaced(of_track(pods, track)),
    )


def _live(children: Mapping[ChildKey, Object], serving: str, track: str) -> Object | None:
    """The workload of a track."""
    found = (children[key] for key in workload.keys(serving, track) if key in children)
    return next((one for one in found if "deletionTimestamp" not in one["metadata"]), None)


def _unnamed(live: Object, stored: Sequence[Revision], remembered: str) -> str:
    """Revision of a workload whose annotation somebody took away: by the hash of its template, else as remembered."""
    hashed = (live["metadata"].get("annotations") or {}).get(naming.ANNOTATION_TEMPLATE_HASH)
    fitting = [one.name for one in stored if one.hash == hashed]
    return remembered if remembered in fitting or not fitting else fitting[-1]


def of_track(pods: Sequence[Object], track: str) -> list[Object]:
    """The pods of one track."""
    return [pod for pod in pods if (pod["metadata"].get("labels") or {}).get(naming.LABEL_TRACK) == track]


def names(pods: Sequence[Object]) -> list[str]:
    """Of pods."""
    return [str(pod["metadata"]["name"]) for pod in pods]


def is_settled(there: Mapping[str, Any]) -> bool:
    """Whether a workload has seen its spec, and all its pods have the template and are available."""
    status, replicas = there.get("status") or {}, there["spec"].get("replicas", 1)
    available = status.get("availableReplicas", status.get("readyReplicas", 0))
    return is_renewed(there) and bool(status.get("replicas", 0) == available == replicas)


def is_renewed(there: Mapping[str, Any]) -> bool:
    """Whether a workload has seen its spec, and none of its pods has another template."""
    status = there.get("status") or {}
    seen = status.get("observedGeneration", 0) >= there["metadata"].get("generation", 0)
    return bool(seen and status.get("updatedReplicas", 0) == status.get("replicas", 0))


def _canary_pod(pods: Sequence[Object], workers: Sequence[Object]) -> CanaryPod | None:
    """`workers`: the other pods of engines over several nodes; one without a node keeps its whole engine back."""
    mine = of_track(pods, naming.TRACK_CANARY)
    if not mine:
        return None
    newest = max(mine, key=lambda pod: (str(pod["metadata"].get("creationTimestamp", "")), pod["metadata"]["name"]))
    return CanaryPod(
        ready_since=_since(_condition(newest, "Ready")) if is_ready(newest) else None,
        unschedulable_since=_unplaced([newest, *of_track(workers, naming.TRACK_CANARY)]),
        crash=ended(newest),
        refused=refused(newest),
        weightless=unobtainable(newest),
        stuck=_stuck(newest),
    )


def _unplaced(pods: Sequence[Object]) -> datetime | None:
    """Since when the scheduler finds no node for the first of them that it finds none for."""
    found = [_condition(pod, "PodScheduled") for pod in pods]
    none = [one for one in found if one.get("status") == "False" and one.get("reason") == "Unschedulable"]
    return _since(none[0]) if none else None


def _stuck(pod: Object) -> str:
    """What a container waits for that is not just time."""
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in STUCK:
            return f"{container['name']}: {waiting['reason']} {waiting.get('message', '')}".strip()
    return ""


def _condition(pod: Object, kind: str) -> Mapping[str, Any]:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((each for each in conditions if each.get("type") == kind), {})


def _since(condition: Mapping[str, Any]) -> datetime | None:
    return moment(condition.get("lastTransitionTime"))


def _owner(child: Mapping[str, Any]) -> str:
    owners = child["metadata"].get("ownerReferences") or []
    return next((str(owner["uid"]) for owner in owners if owner.get("controller")), "")
