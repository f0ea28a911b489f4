"""The scaling part of a pass: who writes replicas, how many there should be, one write through /scale, and a word.

Replicas follow the engines' numbers, so they are decided in the passes in which the tuner read them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline_operator import act, demand, events, metrics, naming
from paceline_operator.api.autoscaling import AutoscalingMode
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import ServingStatus
from paceline_operator.api.status_scaling import ScalingStatus
from paceline_operator.clients.kube import Kube
from paceline_operator.clock import Clock, rfc3339
from paceline_operator.firsttokens import FirstTokens
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object, Observation
from paceline_operator.retune import Retuned
from paceline_operator.scaling import motion, replicas, writers
from paceline_operator.scaling.values import Decision, Past
from paceline_operator.verdicts import Verdict, is_ready, replicas_of

logger = logging.getLogger(__name__)

_TYPE = ConditionType.SCALING_ACTIVE
TOLD_SECONDS = 60.0
"""Reasons that change nothing are told anew at most this often: a load that wavers is no reason for many writes."""
PAUSE_INTERVALS = 2
"""Of the tuner, for which k stays after a pod came or went."""
QUIET = frozenset({Reason.WITHIN_TARGET, Reason.STABILIZING, Reason.AT_MINIMUM, Reason.PODS_PENDING})


@dataclass(frozen=True)
class Scaled:
    """What is to be told."""

    fields: dict[str, Any] = field(default_factory=dict)
    verdicts: Sequence[Verdict] = ()
    withdrawn: Sequence[ConditionType] = ()
    """Conditions that are about nothing any more."""


async def scale(
    kube: Kube,
    clock: Clock,
    memory: Remembered,
    raw: Object,
    spec: ServingSpec,
    previous: ServingStatus,
    look: Observation,
    tuned: Retuned,
    frozen: str,
    report: act.Report,
) -> Scaled:
    """One look at replicas, after the tuner's; `frozen` says why nothing may move, where something forbids it."""
    now, held = rfc3339(clock.now()), previous.scaling
    if spec.autoscaling.mode is AutoscalingMode.DISABLED:
        return Scaled({"scaling": None}, withdrawn=[_TYPE])
    writer, at = writers.last(raw), replicas_of(raw)
    if spec.autoscaling.mode is AutoscalingMode.KEDA:
        verdict = keda(raw["metadata"]["name"], look) or _before(previous)
        return Scaled({"scaling": _status(held, at, verdict, writer, now)}, [verdict])
    if held and (other := writers.foreign(writer, at, held)):
        memory.scaling = Past()
        return _stepped_back(held, other, at, now, report)
    sight = demand.seen(raw, spec, look.pods, tuned.step, tuned.engines, frozen)
    decision = replicas.decide(demand.terms(spec), sight, memory.scaling, clock.monotonic())
    to = decision.replicas
    if tuned.step is not None or frozen:
        memory.scaling = decision.past
    elif to == at and held is not None and held.foreign_writer is None:
        return Scaled({}, [_before(previous)])
    if to != at:
        if not await act.scale(kube, raw, to, report):
            return Scaled({}, [_before(previous)])
        writer = writers.Writer(naming.FIELD_MANAGER, "scale", "")
        metrics.SCALINGS.labels(decision.reason).inc()
        report.events.append(events.scaled(decision.reason, decision.message))
        logger.info("Scaled: object=%s reason=%s %s", raw["metadata"]["name"], decision.reason, decision.message)
    elif _wavers(held, decision) and clock.monotonic() - memory.scaling_told_at < TOLD_SECONDS:
        return Scaled({}, [_before(previous)])
    verdict = Verdict(_TYPE, not decision.holding, decision.reason, decision.message)
    status = _status(held, to, verdict, writer, now)
    if held is None or status.at != held.at:
        memory.scaling_told_at = clock.monotonic()
    return Scaled({"scaling": status}, [replace(verdict, message=status.message)])


def rest(previous: ServingStatus, reason: Reason) -> list[Verdict]:
    """Nothing is scaled now; of a serving that never was, nothing is said."""
    text = "Replicas are not scaled now; they stay as they are"
    return [Verdict(_TYPE, False, reason, text)] if previous.scaling else []


def settling(memory: Remembered, clock: Clock, raw: Object, look: Observation, interval_seconds: float) -> bool:
    """Whether k stays as it is because pods came or went by scaling; after it, latencies are read anew."""
    now, ready = clock.monotonic(), sum(map(is_ready, look.pods))
    memory.motion = motion.seen(memory.motion, replicas_of(raw), ready, now, PAUSE_INTERVALS * interval_seconds)
    rests = now < memory.motion.until
    if rests:
        memory.first_tokens = FirstTokens()
    return rests


def keda(name: str, look: Observation) -> Verdict | None:
    """What the ScaledObject says of itself; None in a pass that did not look."""
    if absence := look.absent.get("ScaledObject"):
        return Verdict(_TYPE, False, absence.reason, absence.message)
    if look.children is None:
        return None
    found = look.children.get(("ScaledObject", naming.child(name)), {})
    conditions = (found.get("status") or {}).get("conditions") or []
    ready: Object = next((one for one in conditions if one.get("type") == "Ready"), {})
    if ready.get("status") == "True":
        return Verdict(_TYPE, True, Reason.SCALED_OBJECT_READY, "KEDA scales this object")
    why = str(ready.get("message") or "KEDA has said nothing of it yet")
    status = False if ready.get("status") == "False" else None
    return Verdict(_TYPE, status, Reason.SCALED_OBJECT_NOT_READY, f"its ScaledObject: {why}")


def _wavers(held: ScalingStatus | None, decision: Decision) -> bool:
    """Another reason for the same replicas, of those between which a load may go to and fro."""
    if held is None or held.foreign_writer is not None or held.desired_replicas != decision.replicas:
        return False
    return {held.reason, decision.reason} <= QUIET


def _before(previous: ServingStatus) -> Verdict:
    """As it was told last."""
    for one in previous.conditions:
        if one.type == _TYPE and one.reason in list(Reason):
            return Verdict(_TYPE, {"True": True, "False": False}.get(one.status), Reason(one.reason), one.message)
    return Verdict(_TYPE, None, Reason.NO_PODS, "no engine was read yet")


def _stepped_back(held: ScalingStatus, other: writers.Writer, at: int, now: str, report: act.Report) -> Scaled:
    through = f" through /{other.subresource}" if other.subresource else ""
    text = (
        f"{other.manager} set replicas to {at}{through}: mode Builtin holds, so that two writers do not fight. Stop "
        "the other one, then set spec.autoscaling.mode to Disabled and back to Builtin"
    )
    if held.foreign_writer != other.manager:
        report.events.append(events.foreign_writer(text))
    verdict = Verdict(_TYPE, False, Reason.FOREIGN_REPLICAS_WRITER, text)
    accepted = writers.Writer(held.writer, "", held.written_at or "")
    status = _status(held, held.desired_replicas, verdict, accepted, now)
    return Scaled({"scaling": status.model_copy(update={"foreign_writer": other.manager, "message": text})}, [verdict])


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
