"""One pass over an object that is judged and nothing else: a SpeculationProfile."""

from __future__ import annotations

from paceline_operator import act, verdicts
from paceline_operator.acceptance import judgement
from paceline_operator.api.conditions import AcceptanceStatus
from paceline_operator.clients.kube import Kube
from paceline_operator.clock import Clock, rfc3339


async def judge(kube: Kube, clock: Clock, kind: str, namespace: str, name: str) -> bool:
    """Say in its status whether the spec is accepted. False where the object is gone.

    Raises a KubeError where it is to be tried again soon.
    """
    raw = await kube.get(kind, namespace, name)
    if raw is None:
        return False
    if "deletionTimestamp" not in raw["metadata"]:
        generation = raw["metadata"]["generation"]
        before = verdicts.status_of(raw, AcceptanceStatus).conditions
        conditions = verdicts.merge(before, [judgement(kind, raw)], generation, rfc3339(clock.now()))
        await act.write_status(kube, raw, AcceptanceStatus(observed_generation=generation, conditions=conditions))
    return True
