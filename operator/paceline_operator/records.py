"""The record of engines that ended or stood still, in a ConfigMap of the serving: bounded, and cleaned."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.status import TableRow
from paceline_operator.clients.kube import Kube, KubeError
from paceline_operator.clock import rfc3339
from paceline_operator.draft import Draft
from paceline_operator.effective.declared import CONTAINER
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object
from paceline_operator.resources.meta import child_metadata
from paceline_operator.safety import incident
from paceline_operator.safety.course import Fault
from paceline_operator.safety.incident import Incident

logger = logging.getLogger(__name__)


def name_of(at: str, key: str) -> str:
    """Of a record: sorts by time, and is the same for the same fault."""
    digest = hashlib.sha256(key.encode()).hexdigest()[:6]
    return f"{at.replace('-', '').replace(':', '').lower()}-{digest}"


def record(draft: Draft, memory: Remembered, pod: Object, fault: Fault, log: str, done: str) -> Incident:
    """Of one fault; `done`: what came of it."""
    last = memory.sightings.get(fault.pod)
    containers = (pod.get("spec") or {}).get("containers") or []
    engine: Object = next((one for one in containers if one.get("name") == CONTAINER), {})
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    status: Object = next((one for one in statuses if one.get("name") == CONTAINER), {})
    table: Sequence[TableRow] = draft.fields.get("table", draft.previous.table)
    lines, left_out = incident.kept_lines(log)
    states = [(status.get(key) or {}).get("terminated") or {} for key in ("state", "lastState")]
    ended: Mapping[str, object] = {} if fault.is_hang else next(filter(None, states), {})
    code = ended.get("exitCode")
    arguments = [str(one) for one in (*(engine.get("command") or ()), *(engine.get("args") or ()))]
    return Incident(
        id=fault.incident,
        at=rfc3339(fault.at),
        kind=fault.kind,
        pod=fault.pod,
        fingerprint=fault.named.fingerprint,
        title=fault.named.title,
        engine_version=last.engine_version if last else "",
        exit_code=code if isinstance(code, int) else None,
        reason=str(ended.get("reason", "")),
        restarts=int(status.get("restartCount") or 0),
        lived_seconds=fault.lived_seconds,
        arguments=incident.clean_arguments(arguments),
        table={str(row.from_requests): row.k for row in table},
        load=last.running if last else None,
        generation=last.generation if last else None,
        action=done,
        log=lines,
        left_out=left_out,
    )


async def keep(kube: Kube, serving: SpeculativeServing, records: Sequence[Incident]) -> bool:
    """In the serving's ConfigMap. False where it is refused: a record must not keep pods from their remedy."""
    metadata = child_metadata(serving, naming.INCIDENTS)
    try:
        there = await kube.get("ConfigMap", metadata["namespace"], metadata["name"])
        owners = [one.get("uid") for one in (there or {}).get("metadata", {}).get("ownerReferences") or []]
        if there is not None and serving.metadata.uid not in owners:
            logger.warning("Incidents not kept, the ConfigMap is somebody else's: name=%s", metadata["name"])
            return True
        fresh = {one.id: incident.body(replace(one, action=incident.clean(one.action))) for one in records}
        data = incident.kept((there or {}).get("data") or {}, fresh)
        if there is None or data != there.get("data"):
            await kube.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    except KubeError as error:
        logger.warning("Incidents not kept: name=%s error=%s", metadata["name"], error)
        return False
    return True
