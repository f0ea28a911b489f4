"""What was found, as conditions: of the spec, the pods, the Deployment. Pure.

`merge` turns verdicts into conditions, whose lastTransitionTime moves with the status alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from pydantic import ValidationError

from paceline_operator import naming
from paceline_operator.api.base import ApiModel
from paceline_operator.api.conditions import Condition, ConditionType, Reason

Raw = Mapping[str, Any]
S = TypeVar("S", bound=ApiModel)
MAX_CONDITIONS = 24
"""As many as the CRD takes: those of others give way to ours."""
_ORDER = list(ConditionType)
_TELLING = (Reason.OUT_OF_MEMORY, Reason.CRASH_LOOP, Reason.UNSCHEDULABLE)
_OUT_OF_MEMORY = re.compile(r"[^\n]{0,300}out of memory[^\n]{0,300}", re.IGNORECASE)
_CLIPPED = 300
_FIELDS = 8
_SHOWN = 3
"""Pods or errors that a message names; more make it longer, not clearer."""


@dataclass(frozen=True)
class Verdict:
    """One condition as this pass sees it. `status` None is Unknown."""

    type: ConditionType
    status: bool | None
    reason: Reason
    message: str = ""


def status_of(raw: Raw, model: type[S]) -> S:
    """The status that is stored, or an empty one where it cannot be read (it is ours: it is written anew)."""
    try:
        return model.model_validate(raw.get("status") or {})
    except ValidationError:
        return model()


def is_ready(pod: Raw) -> bool:
    """The pod's own Ready condition."""
    return _condition(pod, "Ready").get("status") == "True"


def is_plain(pod: Raw) -> bool:
    """An engine without a drafter beside those that have one."""
    labels = pod["metadata"].get("labels") or {}
    return bool(labels.get(naming.LABEL_TRACK) == naming.TRACK_PLAIN)


def is_alive(pod: Raw) -> bool:
    """Not terminating, not finished."""
    return "deletionTimestamp" not in pod["metadata"] and _phase(pod) not in ("Failed", "Succeeded")


def has_failed(pod: Raw) -> bool:
    """Over and not taken away yet, as a pod that was evicted: another takes its place."""
    return "deletionTimestamp" not in pod["metadata"] and _phase(pod) == "Failed"


def replicas_of(raw: Raw) -> int:
    """spec.replicas, also of an object whose spec is refused."""
    replicas = (raw.get("spec") or {}).get("replicas", 1)
    return replicas if isinstance(replicas, int) else 1


def available(replicas: int, max_unavailable: int, pods: Sequence[Raw]) -> Verdict:
    """Enough ready pods: at least one, and at most `max_unavailable` fewer than `replicas`."""
    if replicas == 0:
        return Verdict(ConditionType.AVAILABLE, True, Reason.SCALED_TO_ZERO, "spec.replicas is 0")
    ready = sum(map(is_ready, pods))
    enough = max(1, replicas - max_unavailable)
    count = f"{ready} of {replicas} replicas are ready"
    if ready >= enough:
        return Verdict(ConditionType.AVAILABLE, True, Reason.REPLICAS_READY, count)
    reason, causes = _why([pod for pod in pods if not is_ready(pod)])
    return Verdict(ConditionType.AVAILABLE, False, reason, "; ".join([count, *causes]))


def progressing(replicas: int, workload: Raw | None) -> Verdict:
    """True while the Deployment, or LeaderWorkerSet, is not what the spec asks for, all pods renewed and ready."""
    status = (workload or {}).get("status") or {}
    available = status.get("availableReplicas", status.get("readyReplicas", 0))
    settled = (
        workload is not None
        and status.get("observedGeneration", 0) >= workload["metadata"].get("generation", 0)
        and status.get("updatedReplicas", 0) == status.get("replicas", 0) == replicas
        and available == replicas
    )
    if settled:
        return Verdict(ConditionType.PROGRESSING, False, Reason.SETTLED, "All pods run the present template")
    message = f"{status.get('updatedReplicas', 0)} of {replicas} pods have the present template, "
    message += f"{available} are available"
    return Verdict(ConditionType.PROGRESSING, True, Reason.ROLLING_OUT, message)


def unjudged(accepted: Verdict) -> Verdict:
    """Progressing while a canary serves that cannot be promoted: the spec is suspended or was not accepted."""
    why = "spec.suspend is true" if accepted.status else f"the spec is not accepted ({accepted.reason.value})"
    what = "is neither judged nor taken back" if accepted.status else "is taken back if it is bad, and not promoted"
    text = f"A canary serves and {what} while {why}; the other pods keep their template"
    return Verdict(ConditionType.PROGRESSING, True, Reason.CANARY_UNJUDGED, text)


def ready(accepted: Verdict, available: Verdict) -> Verdict:
    """Accepted and Available, with the reason of the first that is not."""
    telling = available if accepted.status else accepted
    return Verdict(ConditionType.READY, telling.status, telling.reason, telling.message)


def failed(errors: Sequence[str]) -> Verdict:
    """Progressing, where the API server did not let a pass do its work."""
    return Verdict(ConditionType.PROGRESSING, False, Reason.APPLY_FAILED, "; ".join(errors[:_SHOWN]))


def conflict(conflicts: Sequence[str]) -> Verdict:
    """Accepted, where children of somebody else have the names that ours need."""
    text = "; ".join(conflicts[:_SHOWN]) + ": delete them, or give this object another name"
    return Verdict(ConditionType.ACCEPTED, False, Reason.CHILD_CONFLICT, text)


def integrations(withheld: Mapping[str, tuple[Reason, str]]) -> Verdict:
    """Whether the cluster has what the spec asks for beyond Kubernetes. `withheld`: child -> why it cannot be made."""
    if not withheld:
        return Verdict(ConditionType.INTEGRATIONS_AVAILABLE, True, Reason.KINDS_SERVED)
    text = "; ".join([f"{child}: {why}" for child, (_, why) in withheld.items()][:_SHOWN])
    return Verdict(ConditionType.INTEGRATIONS_AVAILABLE, False, next(iter(withheld.values()))[0], text)


def pod_security(weaknesses: Sequence[tuple[str, str]]) -> Verdict:
    """Whether engine pods are as safe as they are rendered. `weaknesses`: field of spec, and what it gives up."""
    if not weaknesses:
        return Verdict(ConditionType.POD_SECURITY, True, Reason.RESTRICTED)
    more = f"; and {len(weaknesses) - _FIELDS} more" if len(weaknesses) > _FIELDS else ""
    text = "; ".join(f"spec.{field}: {what}" for field, what in weaknesses[:_FIELDS]) + more
    return Verdict(ConditionType.POD_SECURITY, False, Reason.WEAKENED, text)


def suspended(is_suspended: bool) -> Verdict:
    """Whether the operator keeps its hands off."""
    if is_suspended:
        text = "spec.suspend is true: no child is written and no table pushed; running pods serve on"
        return Verdict(ConditionType.SUSPENDED, True, Reason.SUSPENDED, text)
    return Verdict(ConditionType.SUSPENDED, False, Reason.ACTIVE)


def untuned(reason: Reason) -> list[Verdict]:
    """The tuning conditions while nothing is measured, and why."""
    kinds = (ConditionType.METRICS_AVAILABLE, ConditionType.SPECULATION_EFFECTIVE, ConditionType.TUNED)
    return [Verdict(kind, None, reason, "Engines are not read now; the last table stays in force") for kind in kinds]


def merge(
    previous: Iterable[Condition], verdicts: Iterable[Verdict], generation: int, now_rfc3339: str
) -> list[Condition]:
    """`previous` with `verdicts` over it, in the order of ConditionType; types without a verdict stay as they are.

    Of several verdicts of a type the last counts, and alone: one that it takes back is no transition.
    """
    merged = {condition.type: condition for condition in previous}
    for verdict in {verdict.type: verdict for verdict in verdicts}.values():
        status: Literal["True", "False", "Unknown"] = (
            "Unknown" if verdict.status is None else "True" if verdict.status else "False"
        )
        before = merged.get(verdict.type)
        merged[verdict.type] = Condition(
            type=verdict.type.value,
            status=status,
            reason=verdict.reason.value,
            message=verdict.message,
            last_transition_time=before.last_transition_time if before and before.status == status else now_rfc3339,
            observed_generation=generation,
        )
    known = [merged.pop(kind) for kind in _ORDER if kind in merged]
    return (known + list(merged.values()))[:MAX_CONDITIONS]


def _phase(pod: Raw) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _condition(pod: Raw, kind: str) -> Raw:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return next((c for c in conditions if c.get("type") == kind), {})


def _why(pods: Sequence[Raw]) -> tuple[Reason, list[str]]:
    """The reason that explains pods which are not ready, most telling first, and a line for the first few."""
    found = [(*_cause(pod), str(pod["metadata"]["name"])) for pod in pods]
    reasons = {reason for reason, _, _ in found}
    reason = next((one for one in _TELLING if one in reasons), Reason.REPLICAS_UNAVAILABLE)
    return reason, [f"{name}: {text}" for _, text, name in found if text][:_SHOWN]


def _cause(pod: Raw) -> tuple[Reason, str]:
    scheduled = _condition(pod, "PodScheduled")
    if scheduled.get("status") == "False" and scheduled.get("reason") == "Unschedulable":
        return Reason.UNSCHEDULABLE, str(scheduled.get("message", "no node fits"))
    status = pod.get("status") or {}
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        ended = (container.get("lastState") or {}).get("terminated") or {}
        if waiting.get("reason") == "CrashLoopBackOff" or (waiting and ended):
            # `vllm serve` with a dead engine exits 0: the restart is what tells, not the code.
            exit_text = f"{ended.get('reason', 'ended')}, exit code {ended.get('exitCode', '?')}"
            text = f"{container['name']} restarts ({container.get('restartCount', 0)}): {exit_text}"
            said = _OUT_OF_MEMORY.search(str(ended.get("message", "")))
            if said or ended.get("reason") == "OOMKilled":
                return Reason.OUT_OF_MEMORY, "; ".join(filter(None, [text, said and said[0].strip()[:_CLIPPED]]))
            return Reason.CRASH_LOOP, text
        if waiting:
            text = f"{waiting.get('reason', 'Waiting')} {waiting.get('message', '')}".strip()
            return Reason.REPLICAS_UNAVAILABLE, f"{container['name']}: {text}"
    return Reason.REPLICAS_UNAVAILABLE, ""
