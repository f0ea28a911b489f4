"""A step of the rollout as conditions: Progressing, RolledBack, RolloutBlocked. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from paceline_operator import naming
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.status_rollout import FailedRollout, Phase, RolloutStatus
from paceline_operator.rollout.situation import Situation
from paceline_operator.verdicts import Verdict

_SHOWN = 3


def in_words(fields: Sequence[str]) -> str:
    """Fields of spec, the first few by name."""
    shown = ", ".join(fields[:_SHOWN])
    return f"{shown} and {len(fields) - _SHOWN} more" if len(fields) > _SHOWN else shown or "the template"


def reason_of(failed: FailedRollout) -> Reason:
    """Why it was taken back; CanaryUnjudged where status has a word of another version: its message says the rest."""
    return Reason(failed.reason) if failed.reason in Reason.__members__.values() else Reason.CANARY_UNJUDGED


def verdicts(s: Situation, memory: RolloutStatus, reason: Reason, message: str) -> tuple[Verdict, ...]:
    """What follows from the phase; Progressing only where it tells more than the workloads do by themselves."""
    what, phase = in_words(memory.fields), memory.phase
    found = [_rolled_back(memory), _blocked(phase, reason, f"{what}: {message}")]
    match phase:
        case Phase.CANARY:
            text = f"{what} changed: a canary goes first: {message}"
            found.append(Verdict(ConditionType.PROGRESSING, True, reason, text))
        case Phase.PROMOTING:
            text = f"{what} changed: the canary was promoted ({message}), and the other pods follow"
            found.append(Verdict(ConditionType.PROGRESSING, True, reason, text))
        case Phase.ROLLING:
            text = f"{what} changed: pods are replaced without a canary: {message}"
            found.append(Verdict(ConditionType.PROGRESSING, True, reason, text))
        case Phase.BLOCKED | Phase.ROLLED_BACK:
            text = f"The pods keep the template that they had: {what}: {message}"
            found.append(Verdict(ConditionType.PROGRESSING, False, reason, text))
    return tuple(found)


def _rolled_back(memory: RolloutStatus) -> Verdict:
    """True while the pods lack what was asked for, or the last try of the operator's own was one that failed."""
    last = memory.failed[0] if memory.failed else None
    own = last is not None and last.own and (memory.changed_at is None or memory.changed_at <= last.at)
    asked = memory.phase is Phase.ROLLED_BACK
    tried = next((one for one in memory.failed if one.revision == memory.target), last) if asked else last
    if tried is None or not (asked or own):
        return Verdict(ConditionType.ROLLED_BACK, False, Reason.SETTLED)
    text = (
        f"{in_words(tried.fields)} was taken back at {tried.at}: {tried.message}. It is not tried again until the spec "
    )
    text += f"changes or the annotation {naming.ANNOTATION_RETRY} has another value"
    return Verdict(ConditionType.ROLLED_BACK, True, reason_of(tried), text)


def _blocked(phase: Phase, reason: Reason, message: str) -> Verdict:
    if phase is Phase.BLOCKED:
        return Verdict(ConditionType.ROLLOUT_BLOCKED, True, reason, message)
    return Verdict(ConditionType.ROLLOUT_BLOCKED, False, Reason.SETTLED)
