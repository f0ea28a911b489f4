"""The values between gather, decide and act, and the plan for children. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_engine.pull.report import Report
from paceline_operator import drift, naming
from paceline_operator.api.conditions import Reason
from paceline_operator.kinds import OPTIONAL, crd_of

Object = dict[str, Any]
"""A Kubernetes object as JSON."""
ChildKey = tuple[str, str]
"""(kind, name); the namespace is the owner's."""

CHILD_KINDS = (
    "ServiceAccount",
    "NetworkPolicy",
    "Service",
    "PodDisruptionBudget",
    "PersistentVolumeClaim",
    "Job",
    "ControllerRevision",
    "Deployment",
)
"""All kinds of children that are read and pruned, beside those of kinds.OPTIONAL. The token Secret is not: it is
written, never read."""
WORKLOAD_KINDS = ("Deployment", "LeaderWorkerSet")
"""Those that run pods."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where one engine is, and how to address it."""

    pod: str
    uid: str
    control_url: str
    serving_url: str
    secret: str
    """Name of the token Secret that it mounts; empty where it mounts none of ours."""
    token: str = field(repr=False)


@dataclass(frozen=True)
class Absence:
    """Why children of an optional kind can neither be seen nor made."""

    reason: Reason
    message: str


def not_served(kind: str) -> Absence:
    """The cluster lacks the kind."""
    text = f"the cluster has no {crd_of(kind)}: install the product that brings it, and it is taken up within a minute"
    return Absence(Reason.KIND_NOT_SERVED, text)


def forbidden(why: object) -> Absence:
    """The operator has no right to it. `why`: what the API server says."""
    return Absence(Reason.KIND_FORBIDDEN, f"{why}: grant it (the chart's integrations), and it is taken up in minutes")


@dataclass(frozen=True)
class Observation:
    """What is around one object in the cluster."""

    pods: tuple[Object, ...]
    """Engines that live, by name; of one over several nodes, its leader."""
    children: Mapping[ChildKey, Object] | None
    """Live children and what stands in the place of one; None: not looked at in this pass."""
    missing_secrets: Mapping[str, str]
    """Pod UID -> resourceVersion of the event in which the kubelet says that it cannot find the pod's token Secret."""
    absent: Mapping[str, Absence] = field(default_factory=dict)
    """Optional kinds of which nothing can be read."""
    plain: tuple[Object, ...] = ()
    """As `pods`, engines without a drafter."""
    workers: tuple[Object, ...] = ()
    """The other pods of engines over several nodes."""
    pullers: tuple[Object, ...] = ()
    """Pods of pre-pull Jobs, those that ended too."""
    ended: tuple[Object, ...] = ()
    """Pods of engines that failed as a whole and are still there, newest first: nothing runs in them any more."""
    pulls: Mapping[str, Report] = field(default_factory=dict)
    """Pod -> what the puller that runs in it says now."""


@dataclass(frozen=True, slots=True)
class Applied:
    """What an apply sent and what the server made of it (digests): both unchanged means that nothing is to be done,
    even where the server writes a value in its own way."""

    sent: str
    stored: str


@dataclass(frozen=True)
class Apply:
    """A child to apply. `field`: what differs; empty: the child is not there."""

    manifest: Object
    field: str = ""


@dataclass(frozen=True)
class Delete:
    """An object to delete, this one and no other of its name."""

    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class ChildPlan:
    """What to do about children, in this order. A conflict is a wanted child in whose place another's object stands."""

    deletes: tuple[Delete, ...] = ()
    applies: tuple[Apply, ...] = ()
    conflicts: tuple[str, ...] = ()
    waits: bool = False
    """A child can be applied only once another object with its name is gone: look again soon."""
    withheld: tuple[ChildKey, ...] = ()
    """Wanted children whose kind is absent. The others do not wait for them."""
    integrates: bool = False
    """A child of an optional kind is wanted."""
    displaced: tuple[str, ...] = ()
    """Conflicts in the place of plain pods, which are not among the wanted children for that: the others are."""


def key_of(manifest: Mapping[str, Any]) -> ChildKey:
    """(kind, name) of a manifest."""
    return manifest["kind"], manifest["metadata"]["name"]


def plan_children(
    wanted: Sequence[Object],
    live: Mapping[ChildKey, Object],
    owner: Object,
    applied: Mapping[ChildKey, Applied],
    absent: Collection[str] = (),
) -> ChildPlan:
    """Compare the manifests `wanted` with `live`, on behalf of the raw object `owner`.

    A namesake that an earlier object of the owner's name left behind is deleted, not adopted: its pods carry the token
    of another UID. Of kinds that are `absent` nothing is applied; where that is the workload, the one that runs stays.
    """
    deletes, applies, conflicts, waits = [], [], [], False
    withheld = tuple(key for key in map(key_of, wanted) if key[0] in absent)
    for manifest in wanted:
        key = key_of(manifest)
        if key in withheld:
            continue
        there = live.get(key)
        if there is None:
            applies.append(Apply(manifest))
            continue
        controller = _controller(there)
        if controller.get("uid") == owner["metadata"]["uid"]:
            if "deletionTimestamp" in there["metadata"]:
                waits = True
            elif applied.get(key) != Applied(drift.digest(manifest), drift.digest(there)) and (
                differing := drift.difference(manifest, there)
            ):
                applies.append(Apply(manifest, differing))
        elif (controller.get("kind"), controller.get("name")) == (naming.KIND_SERVING, owner["metadata"]["name"]):
            waits = True
            if "deletionTimestamp" not in there["metadata"]:
                deletes.append(Delete(*key, there["metadata"]["uid"]))
        else:
            whose = f"belongs to {controller['kind']} {controller['name']}" if controller else "belongs to nobody"
            conflicts.append(f"{key[0]} {key[1]} exists and {whose}")
    keys = {key_of(manifest) for manifest in wanted}
    kept = WORKLOAD_KINDS if any(kind in WORKLOAD_KINDS for kind, _ in withheld) else ()
    for key, there in live.items():
        mine = _controller(there).get("uid") == owner["metadata"]["uid"]
        if mine and key not in keys and key[0] not in kept and "deletionTimestamp" not in there["metadata"]:
            deletes.append(Delete(*key, there["metadata"]["uid"]))
    integrates = any(kind in OPTIONAL for kind, _ in keys)
    return ChildPlan(tuple(deletes), tuple(applies), tuple(conflicts), waits, withheld, integrates)


def why_withheld(
    plan: ChildPlan, seen: Mapping[str, Absence], found: Mapping[str, Absence]
) -> dict[str, tuple[Reason, str]]:
    """`<kind> <name>` of a child -> why it is not there: its kind was not there when `seen`, or when `found` out. And
    why there are no plain pods."""
    pairs = [(key, seen[key[0]]) for key in plan.withheld]
    pairs += [(key, found[key[0]]) for key in (key_of(each.manifest) for each in plan.applies) if key[0] in found]
    displaced = {
        "spec.routing.plain": (
            Reason.CHILD_CONFLICT,
            f"{'; '.join(plan.displaced)}: delete them, and plain pods are made",
        )
    }
    withheld = {f"{kind} {name}": (why.reason, why.message) for (kind, name), why in pairs}
    return withheld | (displaced if plan.displaced else {})


def _controller(child: Mapping[str, Any]) -> Mapping[str, Any]:
    owners = child["metadata"].get("ownerReferences") or []
    return next((owner for owner in owners if owner.get("controller")), {})
