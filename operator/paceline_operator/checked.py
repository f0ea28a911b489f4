"""What preflight said in pods, as the condition PreflightPassed. Pure.

The newest word of each pod counts; of those that failed, the newest pod's is told.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pydantic import ValidationError

from paceline_engine.preflight.check import FAILED_STATUS, Check, Level, Report
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.resources.preflight import CONTAINER
from paceline_operator.verdicts import Verdict

Raw = Mapping[str, Any]
TEXT = 1500


class _Word(NamedTuple):
    at: str
    """RFC 3339: sorts as text."""
    pod: str
    failed: str
    """Why; empty: it passed."""
    warnings: tuple[str, ...]
    is_final: bool
    """Another attempt would end the same."""


def verdict(pods: Sequence[Raw]) -> Verdict:
    """`pods`: engines and those of the pre-pull Job, ended ones too."""
    words = [word for pod in pods if (word := _newest(pod))]
    failed = [word for word in words if word.failed]
    if failed:
        word = max(failed)
        return Verdict(ConditionType.PREFLIGHT_PASSED, False, Reason.CHECK_FAILED, f"{word.pod}: {word.failed}"[:TEXT])
    if words:
        warnings = sorted({text for word in words for text in word.warnings})
        text = f"No check failed; warnings: {'; '.join(warnings)}" if warnings else "No check failed"
        return Verdict(ConditionType.PREFLIGHT_PASSED, True, Reason.CHECKS_PASSED, text[:TEXT])
    return Verdict(ConditionType.PREFLIGHT_PASSED, None, Reason.CHECKS_PENDING, "No pod's checks have ended yet")


def refused(pod: Raw) -> str:
    """Why a pod's checks keep it from starting, which another attempt would not change; empty: they do not."""
    word = _newest(pod)
    return word.failed if word and word.is_final else ""


def _newest(pod: Raw) -> _Word | None:
    return max(_words(pod), default=None)


def _words(pod: Raw) -> Iterator[_Word]:
    status, name = pod.get("status") or {}, str(pod["metadata"]["name"])
    for container in status.get("initContainerStatuses") or []:
        if container.get("name") != CONTAINER:
            continue
        for state in (container.get("lastState") or {}, container.get("state") or {}):
            if ended := state.get("terminated"):
                yield _word(name, ended)


def _word(name: str, ended: Raw) -> _Word:
    at, code, text = str(ended.get("finishedAt", "")), ended.get("exitCode"), str(ended.get("message", ""))
    try:
        checks = Report.model_validate_json(text).checks
    except ValidationError:
        checks = []
    bad = [_told(check) for check in checks if check.level is Level.FAIL]
    if code and not bad:
        # It was killed, or could not begin: its log's end is all there is.
        bad = [f"{ended.get('reason', 'it ended')}, exit code {code}: {text.strip()[-600:]}".rstrip(": ")]
    warnings = tuple(check.name for check in checks if check.level is Level.WARN)
    return _Word(at, name, "; ".join(bad), warnings, code == FAILED_STATUS)


def _told(check: Check) -> str:
    return f"{check.name}: {check.reason}; {check.remedy}" if check.remedy else f"{check.name}: {check.reason}"
