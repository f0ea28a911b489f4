"""Act: make a plan true. Writes only, and only where something differs.

What the API refuses is collected, not raised: one bad child must not keep the others from the pods, nor the status from
saying so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from paceline_engine.protocol import Policy, PolicyAck
from paceline_operator import drift, events, metrics, naming
from paceline_operator.api.base import ApiModel
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.kube import (
    ConflictError,
    ForbiddenError,
    InvalidError,
    Kube,
    KubeError,
    NotFoundError,
    Object,
)
from paceline_operator.clock import Clock
from paceline_operator.kinds import OPTIONAL
from paceline_operator.plan import Absence, Applied, ChildKey, ChildPlan, Target, forbidden, key_of, not_served

logger = logging.getLogger(__name__)


@dataclass
class Report:
    """What came of a plan."""

    applied: dict[ChildKey, Applied] = field(default_factory=dict)
    results: dict[ChildKey, Object] = field(default_factory=dict)
    """Children as the server has them after an apply."""
    events: list[events.Event] = field(default_factory=list)
    errors: list[KubeError] = field(default_factory=list)
    absent: dict[str, Absence] = field(default_factory=dict)
    """Optional kinds that went, or whose writing is not allowed."""


async def carry_out(kube: Kube, namespace: str, plan: ChildPlan, report: Report) -> None:
    """Delete, then apply in order: what a pod refers to comes before the pods."""
    for delete in plan.deletes:
        try:
            if await kube.delete(delete.kind, namespace, delete.name, delete.uid):
                report.events.append(events.pruned(delete.kind, delete.name))
        except KubeError as error:
            report.errors.append(error)
    for apply in plan.applies:
        kind, name = key_of(apply.manifest)
        try:
            result = await kube.apply(apply.manifest)
        except KubeError as error:
            if kind in OPTIONAL and isinstance(error, NotFoundError | ForbiddenError):
                report.absent[kind] = forbidden(error) if isinstance(error, ForbiddenError) else not_served(kind)
            else:
                report.errors.append(error)
            continue
        # What the server made of it is what an apply leads to: not compared again until either side changes.
        report.applied[(kind, name)] = Applied(drift.digest(apply.manifest), drift.digest(result))
        report.results[(kind, name)] = result
        logger.info("Applied child: namespace=%s kind=%s name=%s field=%s", namespace, kind, name, apply.field or "-")
        event = events.corrected(kind, name, apply.field) if apply.field else events.created(kind, name)
        report.events.append(event)


async def write_token(kube: Kube, secret: Object, refused_by: Sequence[str], report: Report) -> bool:
    """Apply the token Secret; delete it first where pods refuse what it holds. True when it is written.

    It is immutable: where it exists with another content, an apply is invalid, and a new one takes its place.
    """
    namespace, name = secret["metadata"]["namespace"], secret["metadata"]["name"]
    try:
        if refused_by:
            await kube.delete("Secret", namespace, name, None)
            report.events.append(events.token_replaced(name, refused_by))
        try:
            await kube.apply(secret)
        except InvalidError:
            await kube.delete("Secret", namespace, name, None)
            await kube.apply(secret)
    except KubeError as error:
        report.errors.append(error)
        return False
    return True


async def delete_token(kube: Kube, namespace: str, name: str, report: Report) -> bool:
    """Delete a token Secret that nobody mounts. True when it is gone."""
    try:
        if await kube.delete("Secret", namespace, name, None):
            report.events.append(events.pruned("Secret", name))
    except KubeError as error:
        report.errors.append(error)
        return False
    return True


async def push(client: EngineClient, clock: Clock, policy: Policy, targets: Sequence[Target]) -> dict[str, str]:
    """Push to all targets at once. Pod -> why it did not take the policy, empty where it did."""

    async def one(target: Target) -> str:
        began = clock.monotonic()
        answer = await client.push(target.control_url, target.token, policy)
        taken = isinstance(answer, PolicyAck) and answer.generation == policy.generation
        result = metrics.RESULT_OK if taken else metrics.RESULT_ERROR
        metrics.PUSH_SECONDS.labels(result).observe(clock.monotonic() - began)
        if taken:
            return ""
        return f"runs generation {answer.generation}" if isinstance(answer, PolicyAck) else answer.message

    said = await asyncio.gather(*(one(target) for target in targets))
    answers = {target.pod: text for target, text in zip(targets, said, strict=True)}
    for pod, text in answers.items():
        if text:
            logger.warning("Pod did not take a policy: pod=%s generation=%d why=%s", pod, policy.generation, text)
    return answers


async def scale(kube: Kube, serving: Object, replicas: int, report: Report) -> bool:
    """Write replicas through the scale subresource. True when they are written.

    Not where the object changed since it was read: then somebody else may have written them, and the next pass decides.
    """
    try:
        await kube.scale(serving, replicas)
    except ConflictError as error:
        logger.info("Not scaled, the object changed: object=%s error=%s", serving["metadata"]["name"], error)
        return False
    except KubeError as error:
        report.errors.append(error)
        return False
    return True


def as_json(status: ApiModel) -> Object:
    """As it is stored."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)


async def write_status(kube: Kube, raw: Object, status: ApiModel) -> Object | None:
    """Write `status` where it differs from what `raw` has. Returns the object as it is then; None: nothing differed."""
    wanted = as_json(status)
    if wanted == (raw.get("status") or {}):
        return None
    meta = raw["metadata"]
    body = {
        "apiVersion": naming.API_VERSION,
        "kind": raw["kind"],
        # The UID, so that the status of an object that was deleted meanwhile does not land on its successor.
        "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
        "status": wanted,
    }
    return await kube.apply(body, "status")


async def post(kube: Kube, serving: Object, news: Sequence[events.Event], now_rfc3339: str) -> None:
    """Events are for people: one that cannot be posted is logged, and the pass goes on."""
    for event in news:
        try:
            await kube.create(events.body(event, serving, now_rfc3339))
        except KubeError as error:
            logger.warning(
                "Event not posted: object=%s reason=%s error=%s", serving["metadata"]["name"], event.reason, error
            )
