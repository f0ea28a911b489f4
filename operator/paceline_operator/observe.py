"""Gather: what the cluster and the engines say now, as frozen values. Reads only.

In two steps, because the second depends on the first: the object tells what its children should be called, its pods
tell where the engines are.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from paceline_engine.protocol import CONTROL_PORT
from paceline_engine.pull.report import Report
from paceline_operator import naming
from paceline_operator.api.conditions import Reason
from paceline_operator.api.status_safety import MAX_DEATHS
from paceline_operator.beheld import STILL_KINDS
from paceline_operator.clients.engine import EngineClient
from paceline_operator.clients.keys import KeyRing
from paceline_operator.clients.kube import ForbiddenError, Kube, NotFoundError, Object
from paceline_operator.firsttokens import READ_SECONDS, FirstTokens, Histogram, quantile
from paceline_operator.kinds import OPTIONAL
from paceline_operator.modelcache import is_pulling
from paceline_operator.plan import CHILD_KINDS, Absence, ChildKey, Observation, Target, forbidden, not_served
from paceline_operator.rollout.page import Page
from paceline_operator.tuning.model import Engine, Memory, Settings
from paceline_operator.verdicts import has_failed, is_alive, is_ready

ENGINES_AT_ONCE = 16


async def surroundings(
    kube: Kube, serving: Object, full: bool, believed: Mapping[ChildKey, Object] | None = None
) -> Observation:
    """Pods and, where `full`, all children of the raw object `serving`; those of STILL_KINDS are `believed` where
    given."""
    meta = serving["metadata"]
    namespace, labels = meta["namespace"], {naming.LABEL_SERVING: meta["name"]}
    kinds = (*CHILD_KINDS, *OPTIONAL) if full else ()
    if believed is not None:
        kinds = tuple(kind for kind in kinds if kind not in STILL_KINDS)
    pods, found = await asyncio.gather(
        kube.list("Pod", namespace, labels),
        asyncio.gather(*(_children(kube, kind, namespace, labels) for kind in kinds)),
    )
    pods.sort(key=lambda pod: str(pod["metadata"]["name"]))
    pullers = _of(naming.COMPONENT_PULLER, pods)
    ended = sorted(filter(has_failed, pods), key=_age, reverse=True)
    pods = list(filter(is_alive, pods))
    children = {
        (kind, item["metadata"]["name"]): item
        for kind, each in zip(kinds, found, strict=True)
        if not isinstance(each, Absence)
        for item in each
    }
    components = (naming.COMPONENT_ENGINE, naming.COMPONENT_PLAIN, naming.COMPONENT_WORKER)
    engines, plain, workers = (_of(component, pods) for component in components)
    return Observation(
        pods=engines,
        plain=plain,
        workers=workers,
        pullers=pullers,
        ended=(*_of(naming.COMPONENT_ENGINE, ended), *_of(naming.COMPONENT_PLAIN, ended))[:MAX_DEATHS],
        children={**(believed or {}), **children} if full else None,
        missing_secrets=await _missing_secrets(kube, meta["name"], [*engines, *plain]),
        absent={kind: each for kind, each in zip(kinds, found, strict=True) if isinstance(each, Absence)},
    )


def _age(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _of(component: str, pods: Sequence[Object]) -> tuple[Object, ...]:
    return tuple(pod for pod in pods if pod["metadata"]["labels"].get(naming.LABEL_COMPONENT) == component)


async def namesakes(
    kube: Kube, namespace: str, look: Observation, wanted: Sequence[ChildKey]
) -> Mapping[ChildKey, Object]:
    """The children, and whatever else has the name of a wanted one: it may be somebody else's."""
    seen = look.children or {}
    read = [key for key in wanted if key not in seen and key[0] not in look.absent]
    found = await asyncio.gather(*(_namesake(kube, kind, namespace, name) for kind, name in read))
    return {**seen, **{key: body for key, body in zip(read, found, strict=True) if body is not None}}


async def _namesake(kube: Kube, kind: str, namespace: str, name: str) -> Object | None:
    try:
        return await kube.get(kind, namespace, name)
    except ForbiddenError:
        if kind in OPTIONAL:
            return None  # the apply tells it, and keeps nothing else back
        raise


async def _children(kube: Kube, kind: str, namespace: str, labels: Mapping[str, str]) -> list[Object] | Absence:
    """Of one kind; why they cannot be seen where that kind is optional."""
    if kind not in OPTIONAL:
        return await kube.list(kind, namespace, labels)
    try:
        return await kube.list(kind, namespace, labels) if await kube.serves(kind) else not_served(kind)
    except NotFoundError:  # it went since it was seen last
        return not_served(kind)
    except ForbiddenError as error:
        return forbidden(error)


def targets(serving: Object, pods: Sequence[Object], ring: KeyRing) -> list[Target]:
    """The pods that run an engine, or soon will: those with an address."""
    running = [pod for pod in pods if (pod.get("status") or {}).get("phase") == "Running"]
    return [_target(serving, pod, ring) for pod in running if pod["status"].get("podIP")]


async def pulls(client: EngineClient, serving: Object, pods: Sequence[Object], ring: KeyRing) -> Mapping[str, Report]:
    """What pullers at work say of themselves, by pod; those that do not answer are absent."""
    at = [_target(serving, pod, ring) for pod in pods if is_pulling(pod) and pod["status"].get("podIP")]
    said = await asyncio.gather(*(client.pull_report(target.control_url, target.token) for target in at))
    return {target.pod: report for target, report in zip(at, said, strict=True) if report is not None}


def _target(serving: Object, pod: Object, ring: KeyRing) -> Target:
    uid, address = serving["metadata"]["uid"], str(pod["status"]["podIP"])
    prefix = naming.child(serving["metadata"]["name"], "token-")
    host = f"[{address}]" if ":" in address else address
    secret = next((name for name in secret_names(pod) if name.startswith(prefix)), "")
    return Target(
        pod=pod["metadata"]["name"],
        uid=pod["metadata"]["uid"],
        control_url=f"http://{host}:{CONTROL_PORT}",
        serving_url=f"http://{host}:{naming.SERVING_PORT}",
        secret=secret,
        token=ring.token_of(uid, secret.removeprefix(prefix)),
    )


async def engines(
    client: EngineClient, at: Sequence[Target], pods: Sequence[Object], memory: Memory
) -> tuple[Engine, ...]:
    """What each engine answers since the cursor that `memory` has for it, or why it does not."""
    slots = asyncio.Semaphore(ENGINES_AT_ONCE)
    ready = {pod["metadata"]["name"] for pod in pods if is_ready(pod)}

    async def one(target: Target) -> Engine:
        async with slots:
            engine = await client.observe_engine(
                target.pod, target.control_url, target.serving_url, target.token, memory.cursors.get(target.pod)
            )
        if engine.failure is Reason.POD_NOT_ANSWERING and target.pod not in ready:
            # It loads its model: silence is what is expected of it.
            message = f"the pod is not ready yet; {engine.failure_message}"
            return Engine(engine.name, failure=Reason.ENGINE_WARMING_UP, failure_message=message)
        return engine

    addressed = {target.pod for target in at}
    unborn = [pod for pod in pods if pod["metadata"]["name"] not in addressed]
    return (*await asyncio.gather(*(one(target) for target in at)), *map(_without_address, unborn))


async def pages(client: EngineClient, at: Sequence[Target]) -> dict[str, Page]:
    """What the /metrics of each engine say of requests; those that cannot be had are left out."""
    slots = asyncio.Semaphore(ENGINES_AT_ONCE)

    async def one(target: Target) -> Page | None:
        async with slots:
            return await client.requests_page(target.serving_url)

    read = await asyncio.gather(*(one(target) for target in at))
    return {target.pod: found for target, found in zip(at, read, strict=True) if found is not None}


async def first_tokens(
    client: EngineClient,
    engines: Sequence[Engine],
    serving_urls: Mapping[str, str],
    settings: Settings,
    past: FirstTokens,
    now: float,
) -> tuple[tuple[Engine, ...], FirstTokens]:
    """`engines` with the 95th percentile of their time to first token since the last reading, where a limit is set.

    Read in every few passes: in those between, and where it cannot be had, it stays unknown.
    """
    if settings.ttft_limit_seconds is None or now - past.at < READ_SECONDS - settings.interval_seconds / 2:
        return tuple(engines), past
    asked = [engine.name for engine in engines if engine.state is not None and engine.name in serving_urls]
    slots = asyncio.Semaphore(ENGINES_AT_ONCE)

    async def one(name: str) -> Histogram | None:
        async with slots:
            return await client.first_token_times(serving_urls[name])

    read = await asyncio.gather(*(one(name) for name in asked))
    seen = {name: found for name, found in zip(asked, read, strict=True) if found is not None}
    told = (
        replace(engine, ttft_p95_seconds=quantile(past.seen.get(engine.name), seen.get(engine.name)))
        for engine in engines
    )
    return tuple(told), FirstTokens(seen, now)


def _without_address(pod: Object) -> Engine:
    phase = (pod.get("status") or {}).get("phase", "Unknown")
    message = f"the pod is {phase} and does not run yet"
    return Engine(pod["metadata"]["name"], failure=Reason.ENGINE_WARMING_UP, failure_message=message)


async def _missing_secrets(kube: Kube, name: str, pods: Sequence[Object]) -> dict[str, str]:
    """Why a volume is not mounted is told in events alone: they are asked for where a pod waits for its volumes."""
    prefix = naming.child(name, "token-")
    waiting = [pod for pod in pods if _waits_for_volumes(pod) and any(n.startswith(prefix) for n in secret_names(pod))]
    missing: dict[str, str] = {}
    for pod in waiting:
        meta = pod["metadata"]
        fields = f"involvedObject.uid={meta['uid']},reason=FailedMount"
        for event in await kube.list("Event", meta["namespace"], {}, fields):
            text = str(event.get("message", ""))
            if prefix in text and "not found" in text:
                versions = missing.get(meta["uid"], ""), str(event["metadata"]["resourceVersion"])
                missing[meta["uid"]] = max(versions, key=lambda version: (len(version), version))  # numbers as text
    return missing


def _waits_for_volumes(pod: Mapping[str, Any]) -> bool:
    status = pod.get("status") or {}
    containers = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    reasons = {((c.get("state") or {}).get("waiting") or {}).get("reason") for c in containers}
    scheduled = bool((pod.get("spec") or {}).get("nodeName"))
    return scheduled and status.get("phase") == "Pending" and bool(reasons & {"ContainerCreating", "PodInitializing"})


def secret_names(pod: Mapping[str, Any]) -> list[str]:
    """Of the Secrets that a pod mounts."""
    volumes = (pod.get("spec") or {}).get("volumes") or []
    return [str(volume["secret"].get("secretName", "")) for volume in volumes if volume.get("secret")]
