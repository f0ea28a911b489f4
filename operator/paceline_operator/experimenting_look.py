"""What is there of an experiment in a cluster: its Job with its pod and what both say, and what stands in its way."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from paceline_engine.trial.visit import Line, read
from paceline_operator import naming
from paceline_operator.clients.kube import Kube, KubeError, Object
from paceline_operator.experiment import enginelog, seen
from paceline_operator.experiment.plan import Plan
from paceline_operator.resources import trial
from paceline_operator.resources.pod import CONTAINER

logger = logging.getLogger(__name__)

LOG_LINES, LOG_BYTES = 20_000, 4 * 1024 * 1024
"""Of an engine's log: what it compiled, and acceptance lengths every ten seconds."""


@dataclass(frozen=True)
class Look:
    """The Job that runs, with its pod and what is said."""

    job: Object
    number: int
    """In the plan."""
    pod: Object
    """Empty where there is none."""
    lines: tuple[Line, ...] | None
    """None: its node does not answer."""
    not_made: str = ""
    """Why it has no pod."""


async def look(kube: Kube, raw: Object, planned: Plan) -> tuple[Look | None, str, str]:
    """What runs, what of an earlier engine is still there, and what is not this experiment's and says it is."""
    name, namespace = raw["metadata"]["name"], raw["metadata"]["namespace"]
    labels = {naming.LABEL_EXPERIMENT: name}
    jobs = await kube.list("Job", namespace, labels)
    pods = await kube.list("Pod", namespace, labels)
    mine = [job for job in jobs if owner(job) == raw["metadata"]["uid"]]
    for job in mine:
        if "deletionTimestamp" in job["metadata"]:
            continue
        number = seen.visit_of(job, name, len(planned.visits))
        if number is None:  # spec.repetitions was more before
            await delete(kube, job)
            continue
        of_it = [one for one in pods if owner(one) == job["metadata"]["uid"]]
        pod = of_it[0] if of_it else {}
        text = await _log(kube, pod, trial.LOAD_CONTAINER)
        said = None if text is None else seen.of_visit(read(text), planned.visits[number])
        return Look(job, number, pod, said, "" if pod else await _not_made(kube, job)), "", ""
    uids = {job["metadata"]["uid"] for job in mine}
    foreign = {job["metadata"]["uid"] for job in jobs} - uids
    # A pod whose Job is gone goes with it.
    theirs = [one for one in pods if owner(one) in foreign or not owner(one)]
    own = [*_called("pod", [one for one in pods if one not in theirs]), *_called("Job", mine)]
    others = [*_called("Job", [job for job in jobs if job not in mine]), *_called("pod", theirs)]
    return None, next(iter(own), ""), next(iter(others), "")


async def _not_made(kube: Kube, job: Object) -> str:
    """Why the Job's controller could not make its pod; the newest event alone says it."""
    fields = f"involvedObject.uid={job['metadata']['uid']},reason=FailedCreate"
    found = await kube.list("Event", job["metadata"]["namespace"], {}, fields)
    newest = max(found, key=lambda one: str(one.get("lastTimestamp") or ""), default={})
    return str(newest.get("message") or "")


async def _log(kube: Kube, pod: Object, container: str) -> str | None:
    """Empty where the container has not begun; None where its node does not answer."""
    status = (pod.get("status") or {}).get("containerStatuses") or []
    state = next((one.get("state") or {} for one in status if one.get("name") == container), {})
    if not (state.get("running") or state.get("terminated")):
        return ""
    name = pod["metadata"]["name"]
    try:
        return await kube.log(
            pod["metadata"]["namespace"], name, container, previous=False, lines=LOG_LINES, limit=LOG_BYTES
        )
    except KubeError as error:
        logger.warning("Log not read: pod=%s container=%s error=%s", name, container, error)
        return None


async def log(kube: Kube, pod: Object) -> Any:
    """What an engine's log tells: warnings, and acceptance lengths."""
    began, text = seen.started(pod), await _log(kube, pod, CONTAINER)
    return enginelog.read((text or "").splitlines(), datetime.fromtimestamp(began or 0.0, UTC))


async def delete(kube: Kube, job: Object) -> None:
    """This one, and none of its name that came later."""
    meta = job["metadata"]
    await kube.delete("Job", meta["namespace"], meta["name"], meta["uid"])


def _called(kind: str, items: list[Object]) -> list[str]:
    return [f"{kind} {item['metadata']['name']}" for item in items]


def owner(item: Object) -> str:
    """UID of its controller; empty: it has none."""
    owners = item["metadata"].get("ownerReferences") or []
    return str(next((one["uid"] for one in owners if one.get("controller")), ""))
