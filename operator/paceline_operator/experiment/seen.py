"""The Job of an experiment's engine, its pod and what the load beside it said -> what is seen of it. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from paceline_engine.preflight.check import Report
from paceline_engine.trial.visit import Line
from paceline_operator import naming
from paceline_operator.clock import moment
from paceline_operator.experiment.course import Running
from paceline_operator.experiment.plan import Visit
from paceline_operator.experiment.results import LengthPoint, LogWarning, Methods, VariantResult, Window
from paceline_operator.resources import preflight
from paceline_operator.resources.pod import CONTAINER
from paceline_operator.resources.trial import LOAD_CONTAINER
from paceline_operator.safety.incident import clean_title, printable

Raw = Mapping[str, Any]
CLIPPED = 300
MOST_KINDS, MOST_KIND = 8, 64
"""Kinds of failed requests that a window keeps, and characters of each: all windows of a variant fit a ConfigMap."""
MOST_POINTS = 4096
"""Acceptance lengths that are kept of a variant, and warnings: the first."""


def visit_of(job: Raw, experiment: str, planned: int) -> int | None:
    """Its number in a plan of so many, by its name, which nobody can change; None: it is of no visit of this plan."""
    before, _, text = str(job["metadata"].get("name", "")).rpartition("-")
    good = text.isascii() and text.isdecimal() and len(text) < 6 and int(text) < planned
    return int(text) if good and before == naming.child(experiment, naming.VISIT) else None


def of_visit(lines: Iterable[Line], visit: Visit) -> tuple[Line, ...]:
    """What a load can say of this visit, once each and bounded: its log is written by whatever runs there."""
    asked, warm = {one.load for one in visit.measurements}, set(visit.warm_up)
    found: list[Line] = []
    for line in lines:
        window = line.window
        if window and (window.round != visit.round or window.load not in asked):
            continue
        if line.warm and line.warm.load not in warm:
            continue
        if window:
            asked.discard(window.load)
            line = line.model_copy(update={"window": window.model_copy(update={"errors": _fewer(window.errors)})})
        if line.warm:
            warm.discard(line.warm.load)
        if line.failed is not None:
            line = line.model_copy(update={"failed": printable(line.failed).strip()[:CLIPPED] or "it did not say why"})
        if line.ready:
            texts = {"version": printable(line.ready.version), "prompts": printable(line.ready.prompts)}
            line = line.model_copy(update={"ready": line.ready.model_copy(update=texts)})
        found.append(line)
    return tuple(found)


def differing(name: str, results: Mapping[str, VariantResult], said: Sequence[Line], pod: Raw) -> str:
    """Why this turn cannot stand beside those before; empty where it can. Windows of two engines or two files of
    prompts are not of one thing."""
    versions, digests = _facts(said, pod)
    before = results[name].methods
    told = [("vLLM", versions.get("vllm"), before.versions.get("vllm"))]
    told += [("the engine's image", digests.get("image"), before.digests.get("image"))]
    prompts = [one.methods.digests["prompts"] for one in results.values() if "prompts" in one.methods.digests]
    told += [("the file of prompts", digests.get("prompts"), prompts[0] if prompts else None)]
    changed = [f"{what} is {now[:80]} and was {then[:80]}" for what, now, then in told if now and then and now != then]
    return f"not as in turns before: {'; '.join(changed)}" if changed else ""


def running(job: Raw, number: int, pod: Raw, lines: Sequence[Line] | None, not_made: str = "") -> Running:
    """`pod`: the Job's, empty where there is none, and `not_made` why; `lines` None: its node does not answer, so
    nothing is known."""
    said = lines or ()
    status = pod.get("status") or {}
    began = _seconds(status.get("startTime"))
    engine, load = (_ended(pod, name) for name in (CONTAINER, LOAD_CONTAINER))
    failed = next((line.failed for line in said if line.failed), "")
    ended, at = "", 0.0
    if engine:
        ended, at = f"the engine ended: {_how(engine)}", _seconds(engine.get("finishedAt")) or 0.0
    elif init := _init_failed(pod):
        ended = init
    elif failed or (load and lines is not None):
        ended = failed or f"the load ended: {_how(load)}"
    elif _failed(job) or status.get("phase") == "Failed":
        why = printable(str(status.get("message") or status.get("reason") or "its pod failed"))
        ended = _job_said(job) or why[:CLIPPED]
    return Running(
        visit=number,
        created=_seconds(job["metadata"].get("creationTimestamp")) or 0.0,
        began=began,
        engine_began=started(pod),
        ready=lines is None or any(line.ready for line in said),
        done=any(line.done for line in said),
        ended=ended,
        ended_at=at,
        load_ended=not engine or bool(load) or not pod,
        finished=_finished(pod),
        waits_for=printable(not_made)[:CLIPPED] or _waits_for(pod),
    )


def merged(
    result: VariantResult, said: Sequence[Line], log: tuple[Iterable[LogWarning], Iterable[LengthPoint]], pod: Raw
) -> VariantResult:
    """`result` with what is said of one visit: the same lines again change nothing."""
    there = {(one.load, one.round) for one in result.windows}
    ended = _seconds(_ended(pod, CONTAINER).get("finishedAt"))
    fresh = {(one.load, one.round): _with_end(one, ended) for line in said if (one := line.window)}
    warnings = sorted({*result.warnings, *log[0]}, key=lambda one: (one.at, one.event, one.kernel))
    lengths = sorted({*result.lengths, *log[1]}, key=lambda one: (one.at, one.length))
    return result.model_copy(
        update={
            "methods": _methods(result.methods, said, pod),
            "windows": (*result.windows, *(one for place, one in fresh.items() if place not in there)),
            "warnings": tuple(warnings[:MOST_POINTS]),
            "lengths": tuple(lengths[:MOST_POINTS]),
        }
    )


def requests(lines: Iterable[Line]) -> dict[int, int]:
    """Load -> requests of each window at it, as an engine's load says."""
    return {line.warm.load: line.warm.requests for line in lines if line.warm}


def started(pod: Raw) -> float | None:
    """When its engine's container began, Unix seconds: it gives its log the year."""
    status = _container(pod, CONTAINER).get("state") or {}
    return next((at for one in status.values() if (at := _seconds((one or {}).get("startedAt")))), None)


def _with_end(window: Window, ended: float | None) -> Window:
    if window.fault_seconds is None or ended is None:
        return window
    return window.model_copy(update={"fault_seconds": max(0.0, ended - window.started_at)})


def _methods(methods: Methods, said: Sequence[Line], pod: Raw) -> Methods:
    """What was seen first stays: another later one is `differing`."""
    versions, digests = _facts(said, pod)
    return methods.model_copy(
        update={
            "gpu": _gpu(pod) or methods.gpu,
            "versions": versions | methods.versions,
            "digests": digests | methods.digests,
        }
    )


def _facts(said: Sequence[Line], pod: Raw) -> tuple[dict[str, str], dict[str, str]]:
    """Versions, and digests."""
    ready = next((line.ready for line in said if line.ready), None)
    image = str(_container(pod, CONTAINER).get("imageID") or "")[:1024]
    versions = {"vllm": ready.version} if ready and ready.version else {}
    digests = {"prompts": ready.prompts} if ready and ready.prompts else {}
    return versions, digests | ({"image": image} if image else {})


def _fewer(errors: Mapping[str, int]) -> dict[str, int]:
    """The same failures, of the most frequent kinds."""
    found: Counter[str] = Counter()
    for place, (kind, count) in enumerate(sorted(errors.items(), key=lambda one: -one[1])):
        found[printable(kind)[:MOST_KIND] if place < MOST_KINDS else "others"] += count
    return dict(found)


def _finished(pod: Raw) -> float | None:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    ends = [_seconds(((one.get("state") or {}).get("terminated") or {}).get("finishedAt")) for one in statuses]
    known = [one for one in ends if one is not None]
    return max(known) if known and len(known) == len(ends) else None


def _gpu(pod: Raw) -> str:
    """What preflight, which has the engine's devices, found of them."""
    for one in (pod.get("status") or {}).get("initContainerStatuses") or []:
        if one.get("name") == preflight.CONTAINER:
            message = str(((one.get("state") or {}).get("terminated") or {}).get("message", ""))
            try:
                checks = Report.model_validate_json(message).checks
            except ValidationError:
                return ""
            return next((check.reason for check in checks if check.name == "driver"), "")[:1024]
    return ""


def _container(pod: Raw, name: str) -> Raw:
    found = (pod.get("status") or {}).get("containerStatuses") or []
    return next((one for one in found if one.get("name") == name), {})


def _ended(pod: Raw, name: str) -> Raw:
    return (_container(pod, name).get("state") or {}).get("terminated") or {}


def _how(ended: Raw) -> str:
    lines = [line for line in str(ended.get("message") or "").splitlines() if line.strip()]
    last = f": {printable(clean_title(lines[-1].strip()))[:CLIPPED]}" if lines else ""
    return f"{ended.get('reason') or 'Unknown'}, exit code {ended.get('exitCode')}{last}"


def _init_failed(pod: Raw) -> str:
    for one in (pod.get("status") or {}).get("initContainerStatuses") or []:
        ended = (one.get("state") or {}).get("terminated") or {}
        if ended.get("exitCode"):
            return f"{one.get('name')} ended: {_how(ended)}"
    return ""


def _failed(job: Raw) -> bool:
    return bool(_job_said(job))


def _job_said(job: Raw) -> str:
    for one in (job.get("status") or {}).get("conditions") or []:
        if one.get("type") == "Failed" and one.get("status") == "True":
            return printable(f"its Job failed: {one.get('reason')}: {one.get('message') or ''}")[:CLIPPED]
    return ""


def _waits_for(pod: Raw) -> str:
    """Of a pod that has not begun: what its conditions and containers say."""
    if not pod:
        return "it has no pod yet"
    status = pod.get("status") or {}
    for one in status.get("conditions") or []:
        if one.get("type") == "PodScheduled" and one.get("status") == "False":
            return printable(f"{one.get('reason')}: {one.get('message') or ''}")[:CLIPPED]
    for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (one.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") not in (None, "PodInitializing", "ContainerCreating"):
            return printable(f"{one.get('name')}: {waiting['reason']}: {waiting.get('message') or ''}")[:CLIPPED]
    return ""


def _seconds(text: object) -> float | None:
    found = moment(text)
    return found.timestamp() if found else None
