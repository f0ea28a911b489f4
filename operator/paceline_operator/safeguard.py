"""The part of a pass about engines that end or stand still: see them, keep a record, delete pods that hang, and let the
ladder take a step, which acts in the next pass."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from paceline_operator import events, metrics, naming, records, rolling
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.api.status import BucketStatus
from paceline_operator.api.status_rollout import Phase as RolloutPhase
from paceline_operator.api.status_safety import Phase, SafetyStatus
from paceline_operator.clients.kube import Kube, KubeError
from paceline_operator.clock import moment, rfc3339
from paceline_operator.draft import Draft, Hands
from paceline_operator.effective.declared import CONTAINER, of_pod
from paceline_operator.memory import Remembered
from paceline_operator.plan import Object, Observation, Target
from paceline_operator.preflight import matrix
from paceline_operator.safety import detect, incident
from paceline_operator.safety.course import Fault, Sight, step
from paceline_operator.safety.detect import End
from paceline_operator.safety.signatures import Death, Named, Remedy, name
from paceline_operator.tuning.model import Engine
from paceline_operator.verdicts import is_ready

logger = logging.getLogger(__name__)

RECORD_TRIES = 8
"""To write records that the API server refuses: it may be for a moment, and must not be for ever."""
FAULTS_AT_ONCE = 4
"""Answered in one pass, each with a log to read; more wait for the next, which comes at once."""
SERVED_SECONDS = 60.0
"""A container that lived longer is taken to have served, where the operator did not see it answer: engines that do not
start end sooner."""
HUNG = Named(
    "hang",
    "hang",
    "no token with requests running",
    "/health does not see it; a collective or a kernel that never ends is a usual cause.",
    "https://docs.vllm.ai/en/latest/usage/troubleshooting.html",
    (),
)


async def look(
    hands: Hands,
    memory: Remembered,
    draft: Draft,
    serving: SpeculativeServing,
    look: Observation,
    targets: Sequence[Target],
    engines: Sequence[Engine],
    *,
    acts: bool = True,
) -> None:
    """One look. `engines`: what they answered in this pass; empty where they were not asked. `acts` False: it is told
    alone."""
    pods, now, before = [*look.pods, *look.plain, *look.ended], hands.clock.now(), draft.previous.safety
    spec = memory.accepted or serving.spec
    names = {str(pod["metadata"]["uid"]): str(pod["metadata"]["name"]) for pod in pods}
    if acts:
        await _deleted(hands.kube, draft, [(uid, names[uid]) for uid in before.restarting if uid in names])
    if engines:
        await _progressed(hands, memory, spec, targets, engines)
    found = detect.ends(pods, CONTAINER, naming.LABEL_TRACK, SERVED_SECONDS, memory.sightings)
    fresh = [end for end in found if end.key not in before.seen and end.is_the_engine_s]
    by_uid = {str(pod["metadata"]["uid"]): pod for pod in pods}
    faults = [await _of_end(hands, draft, by_uid[end.uid], end) for end in fresh[:FAULTS_AT_ONCE]]
    still = {uid: pod for uid, pod in names.items() if pod in memory.hung}
    faults += [(one, "") for uid in still if (one := _of_hang(hands, memory, by_uid[uid])).key not in before.seen]
    sight = Sight(
        now=now,
        spec=spec,
        retry=rolling.retry_of(draft.raw),
        engine=" ".join(filter(None, (spec.engine.image, spec.engine.vllm_version))) or "the operator's default",
        rollout=draft.fields.get("rollout", draft.previous.rollout),
        up_to=_up_to(hands, memory, before),
        trial_ready=_trial_ready(before, draft, look.pods),
        acceptance=acceptance_of(draft.fields.get("buckets", draft.previous.buckets), draft.previous.load_requests),
        alive=frozenset(names),
        hung={uid: pod for uid, pod in still.items() if _is_stable(by_uid[uid])},
        acts=acts,
        version=matrix.version_of(spec.engine, hands.defaults.engine_image),
    )
    course = step(before, [fault for fault, _ in faults], sight)
    if course.memory.since != before.since:
        memory.trial = (course.memory.since or "", 0.0, hands.clock.monotonic())
    for event in course.events:
        if event.reason in _STEPS:
            metrics.REMEDIES.labels(event.reason).inc()
        logger.warning("Safety: object=%s/%s reason=%s %s", *draft.key, event.reason, event.message)
    for fault, _ in faults:
        metrics.FAULTS.labels(fault.kind).inc()
    if faults and acts:
        done = "; ".join(event.message for event in course.events if event.reason in _STEPS) or "noted, nothing done"
        kept = [records.record(draft, memory, by_uid[fault.uid], fault, log, done) for fault, log in faults]
        memory.unkept = [*memory.unkept, *kept][-incident.MAX_RECORDS :]
    if memory.unkept and acts:
        written = await records.keep(hands.kube, serving, memory.unkept)
        memory.unkept_tries = 0 if written else memory.unkept_tries + 1
        if written or memory.unkept_tries >= RECORD_TRIES:
            memory.unkept, memory.unkept_tries = [], 0
    draft.fields["safety"] = course.memory
    draft.verdicts.append(course.verdict)
    draft.report.events += course.events
    moved = [(one.phase, one.rung, one.breaker, one.restarting) for one in (before, course.memory)]
    if moved[0] != moved[1] or len(fresh) > FAULTS_AT_ONCE:
        memory.look_at = hands.clock.monotonic()


_STEPS = frozenset(
    {
        Reason.BREAKER_OPEN, Reason.REMEDY_FAILED, Reason.STABLE_UNDER_CHANGE, Reason.REMEDIES_SPENT,
        Reason.REMEDY_LIFTED,
    }
)  # fmt: skip


def acceptance_of(buckets: Sequence[BucketStatus], load: int | None) -> tuple[float, ...]:
    """By position, of the largest k that was measured at the present load, else at the largest."""
    rows = [
        (bucket.from_requests == load, bucket.from_requests, candidate.k, candidate.survival_permille)
        for bucket in buckets
        for candidate in bucket.candidates
        if candidate.survival_permille and not candidate.borrowed
    ]
    return tuple(share / 1000 for share in max(rows)[3]) if rows else ()


async def _deleted(kube: Kube, draft: Draft, hung: Sequence[tuple[str, str]]) -> None:
    """The pods that the pass before decided to replace."""
    for uid, pod in hung:
        try:
            if await kube.delete("Pod", draft.namespace, pod, uid):
                text = f"{pod} had requests and gave no token: it is deleted, and another takes its place"
                draft.report.events.append(events.Event(events.WARNING, Reason.ENGINE_REPLACED, text))
                metrics.REMEDIES.labels(Reason.ENGINE_REPLACED).inc()
        except KubeError as error:
            draft.report.errors.append(error)


async def _progressed(
    hands: Hands, memory: Remembered, spec: ServingSpec, targets: Sequence[Target], engines: Sequence[Engine]
) -> None:
    """Which engines stand still. One whose control port is silent is judged by its own /metrics, and by nothing where
    those are silent, too: then it is down, which its probes see, or out of the operator's sight."""
    now, urls = hands.clock.monotonic(), {target.pod: target.serving_url for target in targets}
    seen: dict[str, tuple[int, str, int, float | None]] = {}
    for engine in engines:
        if engine.state is not None and engine.samples is not None and engine.failure is None:
            gauges, cells = engine.samples.gauges, engine.samples.cells
            steps = sum(cell.steps for cell in cells)
            usual = sum(cell.seconds for cell in cells) / steps if steps else None
            moved = gauges.generation_tokens + gauges.prompt_tokens
            seen[engine.name] = (moved, engine.state.boot_id, gauges.running, usual)
        elif (
            engine.failure is Reason.POD_NOT_ANSWERING
            and engine.name in memory.progress
            and engine.name in urls
            and (told := await hands.engines.tokens(urls[engine.name]))
        ):
            seen[engine.name] = (told[0], "metrics", told[1], None)
    alive = {engine.name for engine in engines}
    memory.progress = detect.progress(memory.progress, seen, alive, now)
    running = {pod: requests for pod, (_, _, requests, _) in seen.items()}
    memory.hung = detect.hangs(memory.progress, running, now, spec.safety.hang_seconds)


async def _of_end(hands: Hands, draft: Draft, pod: Object, end: End) -> tuple[Fault, str]:
    """Its name, by the last lines of its log: read once, because it is seen from then on."""
    declared, log = of_pod(pod), ""
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    again = any(one.get("name") == CONTAINER and not (one.get("state") or {}).get("terminated") for one in statuses)
    try:
        log = await hands.kube.log(draft.namespace, end.pod, CONTAINER, previous=again)
    except KubeError as error:
        logger.warning("Log of an engine that ended not read: object=%s/%s error=%s", *draft.key, error)
    speculates = declared is None or bool(declared.method)
    named = name(
        Death(
            log=log,
            message=end.message,
            reason=end.reason,
            exit_code=end.exit_code,
            adaptive_verification=declared is not None and declared.verification,
            speculation=speculates,
        )
    )
    named = replace(named, title=incident.clean_title(named.title))
    now = hands.clock.now()
    at = min(end.at, now) if end.at else now
    return Fault(
        key=end.key,
        uid=end.uid,
        pod=end.pod,
        at=at,
        kind=end.kind.value,
        named=named,
        how=detect.ended(pod) or "its engine ended",
        is_stable=_is_stable(pod),
        speculates=speculates,
        lived_seconds=end.lived_seconds,
        incident=records.name_of(rfc3339(at), end.key),
    ), log


def _of_hang(hands: Hands, memory: Remembered, pod: Object) -> Fault:
    """Once for each process of an engine."""
    pod_name, uid = str(pod["metadata"]["name"]), str(pod["metadata"]["uid"])
    key = f"{uid}/hang-{memory.progress[pod_name].boot_id}"
    declared, now = of_pod(pod), hands.clock.now()
    return Fault(
        key=key,
        uid=uid,
        pod=pod_name,
        at=now,
        kind=detect.Kind.HANG.value,
        named=HUNG,
        how=f"no token for {memory.hung[pod_name]:.0f} s with requests running",
        is_stable=_is_stable(pod),
        speculates=declared is None or bool(declared.method),
        incident=records.name_of(rfc3339(now), key),
        is_hang=True,
    )


def _is_stable(pod: Object) -> bool:
    track = (pod["metadata"].get("labels") or {}).get(naming.LABEL_TRACK, naming.TRACK_STABLE)
    return bool(track == naming.TRACK_STABLE)


def _up_to(hands: Hands, memory: Remembered, before: SafetyStatus) -> datetime:
    """The wall clock where the rung's clock begins, or where a process finds it running; from there on its own."""
    since, now = moment(before.since), hands.clock.monotonic()
    if since is None:
        return hands.clock.now()
    if memory.trial[0] != before.since:
        memory.trial = (str(before.since), max(0.0, (hands.clock.now() - since).total_seconds()), now)
    _, seconds, at = memory.trial
    return since + timedelta(seconds=seconds + now - at)


def _trial_ready(before: SafetyStatus, draft: Draft, pods: Sequence[Object]) -> bool:
    """Whether what is on trial serves: the canary, or, without speculation, all other pods."""
    if before.phase is not Phase.TRIAL:
        return False
    if before.rung == Remedy.WITHOUT_SPECULATION:
        stable = [(pod, of_pod(pod)) for pod in pods if _is_stable(pod)]
        plain = all(declared is not None and not declared.method for _, declared in stable)
        return bool(stable) and plain and any(is_ready(pod) for pod, _ in stable)
    rollout = draft.fields.get("rollout", draft.previous.rollout)
    on_trial = rollout.phase is RolloutPhase.CANARY and rollout.own and rollout.canary is not None
    return bool(on_trial) and any(is_ready(pod) for pod in rolling.of_track(pods, naming.TRACK_CANARY))
