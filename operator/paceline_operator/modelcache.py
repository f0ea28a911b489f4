"""What is on the claim of a model cache, from what pullers said and how their containers ended. Pure.

The newest word of a puller counts; one that is at work counts more than those that ended, and where no pod is left the
status before holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from paceline_engine.pull.report import FINAL_STATUS, Artefact, Failure, Phase, Report
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status_cache import ArtefactStatus, CachePhase, ModelCacheStatus
from paceline_operator.resources.cache import PULL_CONTAINER, artefacts, claim_name
from paceline_operator.verdicts import Verdict

Raw = Mapping[str, Any]
LOOK_SECONDS = 10.0
"""Between two looks at a download."""
PROGRESS_STEP = 10
"""Percent: a download of hours is ten writes of status."""
TEXT = 600
NOW = "~"
"""After every RFC 3339 time, as text."""


@dataclass(frozen=True)
class View:
    """What a pass tells of the cache."""

    status: ModelCacheStatus
    verdict: Verdict
    after: float | None
    """Seconds to the next look; None: when something changes."""


def view(
    serving: SpeculativeServing,
    pods: Sequence[Raw],
    working: Mapping[str, Report],
    job: Raw | None,
    before: ModelCacheStatus | None,
) -> View:
    """`pods`: engines and those of the pre-pull Job, ended ones too; `working`: pod -> what its puller says now."""
    claim = claim_name(serving)
    said = [*_ended(pods), *((NOW, one) for report in working.values() for one in report.artefacts)]
    known = {one.name: one for one in before.artefacts} if before and before.claim_name == claim else {}
    rows = []
    for name, source, asked in artefacts(serving.spec):
        mine = [(at, one) for at, one in said if (one.name, one.source, one.asked) == (name, source, asked)]
        rows.append(_row(serving, name, mine, known.get(name)))
    trouble = _trouble(pods)
    if trouble and not any(row.phase is CachePhase.DOWNLOADING for row in rows):
        rows = [row if row.phase is not CachePhase.PENDING else _failed(row, *trouble) for row in rows]
    status = ModelCacheStatus(claim_name=claim, artefacts=rows)
    after = LOOK_SECONDS if working else None
    return View(status, _verdict(rows, job), after)


def is_pulled(job: Raw) -> bool:
    """The pre-pull Job has done what it is for."""
    return _condition(job, "Complete")


def is_pulling(pod: Raw) -> bool:
    """A puller runs in it now."""
    return any("running" in (state.get("state") or {}) for state in _pullers(pod))


def unobtainable(pod: Raw) -> str:
    """Why a pod's weights do not come, which another attempt would not change; empty: they are there, or may come."""
    for container in _pullers(pod):
        states = [(container.get(at) or {}).get("terminated") or {} for at in ("state", "lastState")]
        ended = states[0] or states[1]
        code, report = ended.get("exitCode"), _report(ended)
        if isinstance(code, int) and code >= FINAL_STATUS and report is not None:
            failed = [one for one in report.artefacts if one.phase is Phase.FAILED]
            return "; ".join(f"{one.name} {one.source}: {one.reason}: {one.message}" for one in failed)[:TEXT]
    return ""


def _row(
    serving: SpeculativeServing, name: str, said: Sequence[tuple[str, Artefact]], before: ArtefactStatus | None
) -> ArtefactStatus:
    source, asked = _written(serving, name)
    kept = before if before and (before.source, before.asked) == (source, asked) else None
    told = [one for one in said if one[1].phase is not Phase.PENDING]
    if not told:
        return kept or ArtefactStatus(name=name, source=source, asked=asked, phase=CachePhase.PENDING)
    newest = max(told, key=lambda one: one[0])[1]
    row = ArtefactStatus(
        name=name,
        source=source,
        asked=asked,
        phase=CachePhase(newest.phase.value),
        revision=newest.revision,
        bytes=newest.bytes or None,
    )
    if newest.phase is Phase.FAILED:
        return _failed(row, Reason(newest.reason or Failure.DOWNLOAD_FAILED), newest.message)
    if newest.phase is Phase.DOWNLOADING and newest.bytes:
        percent = min(newest.done * 100 // newest.bytes, 100) // PROGRESS_STEP * PROGRESS_STEP
        return row.model_copy(update={"progress_percent": percent})
    return row


def _written(serving: SpeculativeServing, name: str) -> tuple[str, str]:
    """Source and revision as the spec has them."""
    spec = serving.spec
    one = spec.model if name == "model" or spec.speculation.draft is None else spec.speculation.draft
    return one.source, one.revision or ""


def _failed(row: ArtefactStatus, reason: Reason, message: str) -> ArtefactStatus:
    return row.model_copy(update={"phase": CachePhase.FAILED, "reason": reason.value, "message": message[:1024]})


def _verdict(rows: Sequence[ArtefactStatus], job: Raw | None) -> Verdict:
    failed = [row for row in rows if row.phase is CachePhase.FAILED]
    gave_up = job is not None and _condition(job, "Failed")
    if failed or gave_up:
        texts = [f"{row.name} {row.source}: {row.message}" for row in failed]
        if job is not None and gave_up:
            name = job["metadata"]["name"]
            texts.append(f"Job {name} has given up: correct what is wrong and delete it, and it is made again")
        reason = Reason(failed[0].reason) if failed else Reason.DOWNLOAD_FAILED
        return Verdict(ConditionType.MODEL_AVAILABLE, False, reason, "; ".join(texts))
    if all(row.phase is CachePhase.READY for row in rows):
        return Verdict(ConditionType.MODEL_AVAILABLE, True, Reason.MODEL_READY, "All weights are there")
    texts = [f"{row.name}: {_doing(row)}" for row in rows if row.phase is not CachePhase.READY]
    busy = any(row.phase is CachePhase.DOWNLOADING for row in rows)
    reason = Reason.DOWNLOADING if busy else Reason.DOWNLOAD_PENDING
    return Verdict(ConditionType.MODEL_AVAILABLE, False, reason, "; ".join(texts))


def _doing(row: ArtefactStatus) -> str:
    if row.phase is CachePhase.PENDING:
        return "no pod has begun to look for it"
    return f"{row.progress_percent or 0} % of {(row.bytes or 0) / 2**30:.1f} GiB"


def _ended(pods: Sequence[Raw]) -> Iterator[tuple[str, Artefact]]:
    """(when, what) pullers said as they ended; RFC 3339 times sort as text."""
    for pod in pods:
        for container in _pullers(pod):
            for state in (container.get("lastState") or {}, container.get("state") or {}):
                ended = state.get("terminated") or {}
                report = _report(ended)
                for artefact in report.artefacts if report else ():
                    yield str(ended.get("finishedAt", "")), artefact


def _report(ended: Raw) -> Report | None:
    try:
        return Report.model_validate_json(str(ended.get("message", "")))
    except ValidationError:
        return None


def _trouble(pods: Sequence[Raw]) -> tuple[Reason, str] | None:
    """Why a puller does not run, or ended without a word: its newest one's."""
    found = ("", "")
    for pod in pods:
        for container in _pullers(pod):
            waiting = (container.get("state") or {}).get("waiting") or {}
            text = f"{waiting.get('reason', '')}: {waiting.get('message', '')}"
            if waiting.get("reason") == "CreateContainerConfigError" and "secret" in text:
                return Reason.TOKEN_MISSING, f"{pod['metadata']['name']}: {text}"[:TEXT]
            for state in (container.get("state") or {}, container.get("lastState") or {}):
                ended = state.get("terminated") or {}
                if ended.get("exitCode") and _report(ended) is None:
                    how = f"{ended.get('reason', 'ended')}, exit code {ended['exitCode']}"
                    last = str(ended.get("message", "")).strip()[-TEXT:]
                    text = ": ".join(filter(None, [f"{pod['metadata']['name']}: {how}", last]))
                    found = max(found, (str(ended.get("finishedAt", "")), text))
    return (Reason.DOWNLOAD_FAILED, found[1]) if found[1] else None


def _pullers(pod: Raw) -> list[Raw]:
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    return [container for container in containers if container.get("name") == PULL_CONTAINER]


def _condition(job: Raw, kind: str) -> bool:
    conditions = (job.get("status") or {}).get("conditions") or []
    return any(one.get("type") == kind and one.get("status") == "True" for one in conditions)
