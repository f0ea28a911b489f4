"""The token Secret's rule: written, never read.

Written at start, on another key or UID, and when a pod reports it missing; made anew where a pod refuses the token that
it holds; that of the key before goes once no pod mounts it. What was done is remembered, so that nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paceline_operator import act, events, naming, observe
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.keys import KeyRing, key_version
from paceline_operator.clients.kube import Kube, Object
from paceline_operator.drift import digest
from paceline_operator.memory import Remembered
from paceline_operator.plan import Target
from paceline_operator.tuning.model import Engine

DROPPED = "dropped"
"""In place of a digest: this process saw to it that there is no Secret."""


def secret_name(serving: str, version: str) -> str:
    """Of the token Secret of a key version."""
    return naming.child(serving, f"token-{version}")


async def keep(kube: Kube, memory: Remembered, secret: Object, missing: Mapping[str, str], report: act.Report) -> None:
    """Write the Secret where this process has not yet, or where a pod says anew that it misses it."""
    if memory.token == digest(secret) and missing.items() <= memory.missing.items():
        return
    if await act.write_token(kube, secret, (), report):
        if memory.token == digest(secret):
            report.events.append(events.token_missed(secret["metadata"]["name"], len(missing)))
        memory.token, memory.missing = digest(secret), dict(missing)


async def drop(
    kube: Kube, memory: Remembered, serving: Object, ring: KeyRing, pods: Sequence[Object], report: act.Report
) -> None:
    """Delete what an engine with a plugin left behind, once in a process and not before its last pod is gone."""
    meta = serving["metadata"]
    name = secret_name(meta["name"], key_version(ring.current))
    if memory.token == DROPPED or any(name in observe.secret_names(pod) for pod in pods):
        return
    if await act.delete_token(kube, meta["namespace"], name, report):
        memory.token = DROPPED


async def answer_refusals(
    kube: Kube,
    memory: Remembered,
    secret: Object,
    targets: Sequence[Target],
    engines: Sequence[Engine],
    report: act.Report,
) -> None:
    """Make the Secret anew where a pod that mounts it refuses its token: once for each, it may be the pod's fault."""
    refusing = {engine.name for engine in engines if engine.failure is Reason.TOKEN_REFUSED}
    mounted = [target for target in targets if target.secret == secret["metadata"]["name"]]
    refused = {target.uid: target.pod for target in mounted if target.pod in refusing}
    news = [pod for uid, pod in refused.items() if uid not in memory.refusals]
    if not news or await act.write_token(kube, secret, sorted(news), report):
        memory.refusals = set(refused)


async def forget_previous(
    kube: Kube,
    memory: Remembered,
    secret: Object,
    ring: KeyRing,
    targets: Sequence[Target],
    pods: int,
    report: act.Report,
) -> None:
    """Delete the Secret of the key before, when all `pods` there are run and mount the present one."""
    if ring.previous is None or memory.forgotten == key_version(ring.previous):
        return
    if 0 < pods == len(targets) and all(target.secret == secret["metadata"]["name"] for target in targets):
        version = key_version(ring.previous)
        name = secret_name(secret["metadata"]["labels"][naming.LABEL_SERVING], version)
        if await act.delete_token(kube, secret["metadata"]["namespace"], name, report):
            memory.forgotten = version
