"""The scaling part of a pass: who writes replicas, how many there should be, one write through /scale, and a word.

Replicas follow the engines' numbers, so they are decided in the passes in which the tuner read them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_operator import act, demand, events, metrics, naming
from paceline_operator.api.autoscaling import AutoscalingMode
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import ServingStatus
from paceline_operator.api.status_scaling import ScalingStatus
from paceline_operator.clients.kube import Kube
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object, Observation
from paceline_operator.scaling import replicas, writers
from paceline_operator.tuning.model import Engine, Step
from paceline_operator.verdicts import Verdict, replicas_of

logger = logging.getLogger(__name__)

TOLD_SECONDS = 60.0
"""Reasons that change nothing are told anew at most this often: a load that wavers is no reason for many writes."""
QUIET = frozenset({Reason.WITHIN_TARGET, Reason.STABILIZING, Reason.AT_MINIMUM, Reason.PODS_PENDING})


@dataclass(frozen=True)
class Scaled:
    """What is to be told."""

    fields: dict[str, Any] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()


async def scale(
    kube: Kube,
    clock: Clock,
    memory: Remembered,
    raw: Object,
    spec: ServingSpec,
    previous: ServingStatus,
    look: Observation,
    step: Step | None,
    engines: Sequence[Engine],
    frozen: str,
    report: act.Report,
) -> Scaled:
    """One look at replicas. `step` is None in passes in which the tuner did not read the engines; `frozen` says why
    nothing may move, where something forbids it."""
    mode, now = spec.autoscaling.mode, rfc3339(clock.now())
    if mode is AutoscalingMode.DISABLED:
        return rest(previous, Reason.AUTOSCALING_DISABLED, "spec.autoscaling.mode is Disabled", forget=True)
    held, writer, at = previous.scaling, writers.last(raw), replicas_of(raw)
    if mode is AutoscalingMode.KEDA:
        verdict = keda(raw["metadata"]["name"], look)
        if verdict is None and held is not None:
            verdict = Verdict(ConditionType.SCALING_ACTIVE, None, Reason(held.reason), held.message)
            return Scaled({"scaling": _status(held, at, verdict, writer, now)})
        verdict = verdict or Verdict(ConditionType.SCALING_ACTIVE, None, Reason.SCALED_OBJECT_NOT_READY, "not seen yet")
        return Scaled({"scaling": _status(held, at, verdict, writer, now)}, [verdict])
    if other := writers.foreign(writer, at, held):
        assert held is not None
        memory.scaling = replicas.Past()
        verdict = Verdict(ConditionType.SCALING_ACTIVE, False, Reason.FOREIGN_REPLICAS_WRITER, _foreign(other, at))
        if held.foreign_writer != other.manager:
            report.events.append(events.foreign_writer(verdict.message))
        accepted = writers.Writer(held.writer, "", held.written_at or "")
        status = _status(held, held.desired_replicas, verdict, accepted, now)
        return Scaled({"scaling": status.model_copy(update={"foreign_writer": other.manager})}, [verdict])
    sight = demand.seen(raw, spec, look.pods, step, engines, frozen)
    decision = replicas.decide(demand.terms(spec), sight, memory.scaling, clock.monotonic())
    if step is not None:
        memory.scaling = decision.past
    elif decision.replicas == at and held is not None and held.foreign_writer is None:
        return _again(previous)
    verdict = Verdict(ConditionType.SCALING_ACTIVE, not decision.holding, decision.reason, decision.message)
    to = decision.replicas
    if to != at:
        if not await act.scale(kube, raw, to, report):
            return _again(previous)
        writer = writers.Writer(naming.FIELD_MANAGER, "scale", "")
        metrics.SCALINGS.labels(decision.reason).inc()
        report.events.append(events.scaled(decision.reason, decision.message))
        logger.info("Scaled: object=%s reason=%s %s", raw["metadata"]["name"], decision.reason, decision.message)
    elif _wavers(held, decision) and clock.monotonic() - memory.scaling_told_at < TOLD_SECONDS:
        return _again(previous)
    status = _status(held, to, verdict, writer, now)
    if held is None or status.at != held.at:
        memory.scaling_told_at = clock.monotonic()
    told = Verdict(verdict.type, verdict.status, verdict.reason, status.message)
    return Scaled({"scaling": status.model_copy(update={"foreign_writer": None})}, [told])


def rest(previous: ServingStatus, reason: Reason, message: str, *, forget: bool = False) -> Scaled:
    """Nothing is scaled now. Of a serving that never was, nothing is said; `forget`: whoever wrote replicas is accepted
    the next time."""
    known = any(condition.type == ConditionType.SCALING_ACTIVE for condition in previous.conditions)
    fields = {"scaling": None} if forget and previous.scaling else {}
    return Scaled(fields, [Verdict(ConditionType.SCALING_ACTIVE, False, reason, message)] if known else [])


def keda(name: str, look: Observation) -> Verdict | None:
    """What the ScaledObject says of itself; None in a pass that did not look."""
    if absence := look.absent.get("ScaledObject"):
        return Verdict(ConditionType.SCALING_ACTIVE, False, absence.reason, absence.message)
    if look.children is None:
        return None
    found = look.children.get(("ScaledObject", naming.child(name)), {})
    conditions = (found.get("status") or {}).get("conditions") or []
    ready: Object = next((one for one in conditions if one.get("type") == "Ready"), {})
    if ready.get("status") == "True":
        return Verdict(ConditionType.SCALING_ACTIVE, True, Reason.SCALED_OBJECT_READY, "KEDA scales this object")
    why = str(ready.get("message") or "KEDA has said nothing of it yet")
    status = False if ready.get("status") == "False" else None
    return Verdict(ConditionType.SCALING_ACTIVE, status, Reason.SCALED_OBJECT_NOT_READY, f"its ScaledObject: {why}")


def _wavers(held: ScalingStatus | None, decision: replicas.Decision) -> bool:
    """Another reason for the same replicas, of those between which a load may go to and fro."""
    if held is None or held.foreign_writer is not None or held.desired_replicas != decision.replicas:
        return False
    return {held.reason, decision.reason} <= QUIET


def _again(previous: ServingStatus) -> Scaled:
    """As it was told before."""
    found = next((one for one in previous.conditions if one.type == ConditionType.SCALING_ACTIVE), None)
    if found is None:
        return Scaled()
    status = {"True": True, "False": False}.get(found.status)
    return Scaled({}, [Verdict(ConditionType.SCALING_ACTIVE, status, Reason(found.reason), found.message)])


def _status(
    held: ScalingStatus | None, desired: int, verdict: Verdict, writer: writers.Writer | None, now: str
) -> ScalingStatus:
    """The numbers of a message are those of when its reason came up."""
    same = held is not None and (held.desired_replicas, held.reason) == (desired, verdict.reason)
    ours = writer is None or writer.ours
    return ScalingStatus(
        desired_replicas=desired,
        reason=verdict.reason.value,
        message=held.message if held and same else verdict.message[:1024],
        at=held.at if held and same else now,
        writer=writer.manager if writer else "",
        written_at=None if writer is None or ours else writer.at or None,
    )


def _foreign(writer: writers.Writer, at: int) -> str:
    through = f" through /{writer.subresource}" if writer.subresource else ""
    return (
        f"{writer.manager} set replicas to {at}{through}: mode Builtin holds, so that two writers do not fight. Stop "
        "the other one, then set spec.autoscaling.mode to Disabled and back to Builtin"
    )
