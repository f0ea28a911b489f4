"""The rollout's state machine: what each track's workload should be now. Pure.

Every step is taken from what the cluster says and from what status remembers, so that another process carries on
wherever one stopped. What is decided is remembered before it is done; what undoes something (a canary taken back) is
done in the pass after: were it done first, a process killed in between would try the same thing again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from paceline_operator import events
from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import CanaryMode
from paceline_operator.api.status_rollout import CanaryStatus, FailedRollout, Phase, RolloutStatus
from paceline_operator.clock import rfc3339
from paceline_operator.rollout import gate, tell
from paceline_operator.rollout.situation import Ask, Decision, Judgement, Situation
from paceline_operator.rollout.tell import in_words

NO_ROOM_SECONDS = 60.0
"""A canary that the scheduler finds no node for so long has none: an autoscaler of nodes that would add one says so to
the scheduler within seconds, and the pod waits on while it comes (it is tried again)."""
ROOM_RETRY_SECONDS = 900.0
"""Until room is looked for again."""
STUCK_SECONDS = 300.0
"""For what a container waits for to come: a registry that is away for a moment, a Secret that is just being written."""
START_MARGIN_SECONDS = 600.0
"""Beyond the engine's own start: scheduling and pulling an image of 10 GB."""
NO_ROOM_BESIDE = "there is no room for a second pod: nothing is served until the successor of the only one is ready"
OCCUPIED_SECONDS = 30.0
"""Between two looks whether somebody else's object is gone from the canary's place: nothing tells of it."""
LOOK_SECONDS = 2.0
"""Between two looks while pods come and go; pods wake a pass by themselves, the time that a canary waits does not."""
MAX_FAILED, MAX_FIELDS = 4, 16


def decide(s: Situation) -> Decision:
    """One step. Where nothing is to be changed, it answers what is."""
    memory = _past(s.memory, s.now)
    if s.retry != memory.retried:
        memory = memory.model_copy(update={"retried": s.retry, "failed": [], "no_capacity_at": None})
    if s.stable is None or not s.stable.revision:
        return _settled(s, memory, Phase.STEADY)
    if s.stable.revision == s.wanted.name:
        return _in_force(s, memory)
    if s.urgent:
        return _rolled(s, memory, s.urgent)
    failed = next((one for one in memory.failed if one.revision == s.wanted.name), None)
    if failed is not None:
        return _kept(s, memory, Phase.ROLLED_BACK, tell.reason_of(failed), failed.message)
    if s.canary is not None and s.canary.revision == s.wanted.name and memory.canary is not None:
        return _judged(s, memory, memory.canary)
    if s.canary is not None and s.canary.revision == s.wanted.name:  # status was lost, or not written: begin anew
        return _watched(s, memory, CanaryStatus(revision=s.wanted.name, started_at=rfc3339(s.now)))
    return _begun(s, memory)


def _begun(s: Situation, memory: RolloutStatus) -> Decision:
    """A change that nothing was done about yet: replace pods at once, wait, or start a canary."""
    assert s.stable is not None
    restarts = [] if s.trial else [_time(at) for at in memory.restarts]
    if not s.own and (s.replicas == 0 or s.stable.ready == 0) and not _starting(memory):
        return _rolled(s, memory, "no pod serves that a canary could be compared with")
    if closed := gate.closed(s.rollout, own=s.own, restarts=restarts, now=s.now):
        until = max(0.0, (closed.until - s.now).total_seconds()) if closed.until else None
        return _kept(s, memory, Phase.BLOCKED, closed.reason, closed.message, until)
    if s.rollout.canary.mode is CanaryMode.DISABLED:
        if not s.own:
            return _rolled(s, memory, "spec.rollout.canary.mode is Disabled")
        message = "a change of the operator's own goes through a canary, and rollout.canary.mode is Disabled"
        return _kept(s, memory, Phase.BLOCKED, Reason.CANARY_DISABLED, message)
    if s.stable.ready == 0 or s.replicas == 0:
        message = "no pod serves that a canary could be compared with"
        return _kept(s, memory, Phase.BLOCKED, Reason.REPLICAS_UNAVAILABLE, message, NO_ROOM_SECONDS)
    if memory.no_capacity_at and memory.target == s.wanted.name:
        again = ROOM_RETRY_SECONDS - (s.now - _time(memory.no_capacity_at)).total_seconds()
        if again > 0:
            return _kept(s, memory, Phase.BLOCKED, Reason.NO_CAPACITY, _no_room(s), again)
    if s.occupied:
        return _kept(s, memory, Phase.BLOCKED, Reason.CHILD_CONFLICT, s.occupied, OCCUPIED_SECONDS)
    if s.canary is not None or s.pod is not None:  # of an earlier change: first it goes
        return _kept(s, memory, Phase.CANARY, Reason.CANARY_STARTED, "an earlier canary has to go first", LOOK_SECONDS)
    started = CanaryStatus(revision=s.wanted.name, started_at=rfc3339(s.now))
    again = memory.canary is not None and memory.canary.revision == s.wanted.name  # remembered, and not made
    if s.own and not s.trial and not again:
        memory = memory.model_copy(update={"restarts": _restarts(memory, s.now)})
    decision = _watched(s, memory.model_copy(update={"no_capacity_at": None}), started)
    return replace(decision, events=(events.canary_started(in_words(s.fields), s.wanted.name),))


def _judged(s: Situation, memory: RolloutStatus, canary: CanaryStatus) -> Decision:
    """The canary is there: take it back, promote it, make room for it, or wait."""
    assert s.stable is not None
    pod, limits = s.pod, s.rollout.canary
    if pod is not None and pod.crash:
        return _failed(s, memory, Reason.CRASH_LOOP, f"the canary crashed: {pod.crash}")
    if pod is not None and pod.refused:
        return _failed(s, memory, Reason.CHECK_FAILED, f"preflight of the canary failed: {pod.refused}")
    if pod is not None and pod.weightless:
        return _failed(s, memory, Reason.CANARY_NOT_READY, f"the canary's weights do not come: {pod.weightless}")
    if s.judgement.good is False:
        return _failed(s, memory, s.judgement.reason, s.judgement.message)
    if s.replicas == 0:
        return _begun(s, memory.model_copy(update={"canary": None}))  # scaled to zero meanwhile: nothing to protect
    if pod is not None and pod.ready_since is not None:
        watched = s.watched_seconds  # not since the pod says to be ready: the clock of its node is another one
        if s.stable.ready == 0 and not s.own:
            return _promoted(s, memory, Judgement(True, Reason.CANARY_UNJUDGED, "it serves, and no other pod does"))
        if s.judgement.good and watched >= limits.observe_seconds:
            return _promoted(s, memory, s.judgement)
        if s.judgement.good is None and watched >= limits.deadline_seconds:
            text = f"after {limits.deadline_seconds} s (rollout.canary.deadlineSeconds) {s.judgement.message}"
            if s.own:
                return _failed(s, memory, Reason.CANARY_UNJUDGED, text)
            return _promoted(s, memory, Judgement(True, Reason.CANARY_UNJUDGED, f"nothing speaks against it: {text}"))
        return _watched(s, memory, canary)
    waited = (s.now - _time(canary.started_at)).total_seconds()
    if pod is not None and pod.stuck and waited >= STUCK_SECONDS:
        return _failed(s, memory, Reason.CANARY_NOT_READY, f"the canary cannot start: {pod.stuck}")
    unplaced = pod is not None and pod.unschedulable_since is not None
    if pod is not None and pod.unschedulable_since is not None:
        since = (s.now - pod.unschedulable_since).total_seconds()
        if since >= NO_ROOM_SECONDS and not canary.in_place and s.replicas > 1:
            # One of the other pods makes room. What it serves ends first, so the clock of the start begins anew.
            return _watched(s, memory, CanaryStatus(revision=canary.revision, started_at=rfc3339(s.now), in_place=True))
        if since >= NO_ROOM_SECONDS and (not canary.in_place or waited >= START_MARGIN_SECONDS):
            return _without_room(s, memory)
    if not unplaced and waited >= s.startup_seconds + START_MARGIN_SECONDS:
        return _failed(s, memory, Reason.CANARY_NOT_READY, f"the canary was not ready within {waited:.0f} s")
    return _watched(s, memory, canary)


def _without_room(s: Situation, memory: RolloutStatus) -> Decision:
    if s.replicas <= 1 and not s.own and not s.rollout.require_canary:
        return _rolled(s, memory, NO_ROOM_BESIDE)
    memory = memory.model_copy(update={"no_capacity_at": rfc3339(s.now), "target": s.wanted.name})
    return _kept(s, memory, Phase.BLOCKED, Reason.NO_CAPACITY, _no_room(s), ROOM_RETRY_SECONDS)


def _no_room(s: Situation) -> str:
    whose = "a change of the operator's own" if s.own else "the change (rollout.requireCanary)"
    return f"the scheduler found no node for a canary: {whose} waits for room, which is looked for again in a while"


def _failed(s: Situation, memory: RolloutStatus, reason: Reason, message: str) -> Decision:
    """Remembered now, taken back in the next pass."""
    assert s.stable is not None
    record = FailedRollout(
        revision=s.wanted.name,
        fields=list(s.fields[:MAX_FIELDS]),
        reason=reason.value,
        message=message,
        own=s.own,
        proposal=s.proposal,
        at=rfc3339(s.now),
    )
    failed = [record, *(one for one in memory.failed if one.revision != record.revision)][:MAX_FAILED]
    memory = _at(s, memory.model_copy(update={"failed": failed, "verdict": message}), Phase.ROLLED_BACK)
    kept = Ask(s.stable.revision, s.stable.replicas)
    canary = Ask(s.canary.revision, s.canary.replicas) if s.canary else None
    news = (events.rolled_back(reason, in_words(s.fields), message),)
    return Decision(kept, canary, memory, tell.verdicts(s, memory, reason, message), news, 0.0)


def _promoted(s: Situation, memory: RolloutStatus, judgement: Judgement) -> Decision:
    """The other pods follow. The canary serves on until they have."""
    in_place = memory.canary is not None and memory.canary.in_place
    memory = memory.model_copy(update={"verdict": judgement.message, "changed_at": rfc3339(s.now)})
    memory = _at(s, memory, Phase.PROMOTING)
    news = (events.canary_promoted(judgement.reason, in_words(s.fields), judgement.message),)
    verdicts = tell.verdicts(s, memory, Reason.CANARY_PROMOTED, judgement.message)
    stable = Ask(s.wanted.name, _replicas(s, in_place))
    return Decision(stable, Ask(s.wanted.name, 1), memory, verdicts, news, LOOK_SECONDS)


def _rolled(s: Situation, memory: RolloutStatus, why: str) -> Decision:
    """Pods are replaced without a canary. It is told once, also where the API refuses the workload again and again."""
    decided = (memory.phase, memory.target, memory.verdict) == (Phase.ROLLING, s.wanted.name, why)
    changed_at = memory.changed_at if decided else rfc3339(s.now)
    update = {"canary": None, "verdict": why, "no_capacity_at": None, "changed_at": changed_at}
    memory = _at(s, memory.model_copy(update=update), Phase.ROLLING)
    news = () if decided else (events.rolling_out(in_words(s.fields), why),)
    verdicts = tell.verdicts(s, memory, Reason.ROLLING_OUT, why)
    return Decision(Ask(s.wanted.name, s.replicas), None, memory, verdicts, news, LOOK_SECONDS)


def _watched(s: Situation, memory: RolloutStatus, canary: CanaryStatus) -> Decision:
    """The canary runs beside the others, or in the place of one."""
    assert s.stable is not None
    memory = _at(s, memory.model_copy(update={"canary": canary}), Phase.CANARY)
    what = f"it cannot start yet: {s.pod.stuck}" if s.pod and s.pod.stuck else s.judgement.message
    verdicts = tell.verdicts(s, memory, Reason.CANARY_STARTED, what)
    stable = Ask(s.stable.revision, _replicas(s, canary.in_place))
    return Decision(stable, Ask(s.wanted.name, 1), memory, verdicts, (), LOOK_SECONDS)


def _kept(
    s: Situation, memory: RolloutStatus, phase: Phase, reason: Reason, message: str, after: float | None = None
) -> Decision:
    """The pods keep the template that they have, all of them, and no canary is there."""
    assert s.stable is not None
    memory = _at(s, memory.model_copy(update={"canary": None}), phase)
    stable = Ask(s.stable.revision, s.replicas)
    return Decision(stable, None, memory, tell.verdicts(s, memory, reason, message), (), after)


def _in_force(s: Situation, memory: RolloutStatus) -> Decision:
    """The stable workload has the template that is wanted; maybe not all of its pods yet."""
    assert s.stable is not None
    # The last pod may wait for the room that the canary has.
    done = s.stable.renewed and s.stable.ready >= max(1, s.replicas - 1)
    if s.stable.settled or (s.canary is not None and done):
        return _settled(s, memory, Phase.STEADY)
    if s.canary is not None and s.canary.revision == s.wanted.name:
        memory = memory.model_copy(update={"phase": Phase.PROMOTING, "target": "", "revision": s.wanted.name})
        in_place = memory.canary is not None and memory.canary.in_place
        since = s.stable.unplaced_since
        if not in_place and since and (s.now - since).total_seconds() >= NO_ROOM_SECONDS:
            # The room that there was is gone: without this, the pods that are left would wait for each other.
            in_place, began = True, memory.canary.started_at if memory.canary else rfc3339(s.now)
            canary = CanaryStatus(revision=s.wanted.name, started_at=began, in_place=True)
            memory = memory.model_copy(update={"canary": canary})
        stable = Ask(s.wanted.name, _replicas(s, in_place))
        verdicts = tell.verdicts(s, memory, Reason.CANARY_PROMOTED, memory.verdict)
        return Decision(stable, Ask(s.wanted.name, 1), memory, verdicts, (), LOOK_SECONDS)
    under_way = memory.phase in (Phase.PROMOTING, Phase.ROLLING)
    return _settled(s, memory, Phase.ROLLING if under_way else Phase.STEADY)


def _settled(s: Situation, memory: RolloutStatus, phase: Phase) -> Decision:
    """One template for all, and no canary."""
    update = {"phase": phase, "revision": s.wanted.name, "target": "", "canary": None, "no_capacity_at": None}
    memory = memory.model_copy(update=update)
    verdicts = tell.verdicts(s, memory, Reason.ROLLING_OUT, memory.verdict)
    after = LOOK_SECONDS if phase is Phase.ROLLING else None
    return Decision(Ask(s.wanted.name, s.replicas), None, memory, verdicts, (), after)


def _at(s: Situation, memory: RolloutStatus, phase: Phase) -> RolloutStatus:
    assert s.stable is not None
    update = {"phase": phase, "revision": s.stable.revision, "target": s.wanted.name, "own": s.own}
    return memory.model_copy(update=update | {"fields": list(s.fields[:MAX_FIELDS])})


def _replicas(s: Situation, in_place: bool) -> int:
    return max(0, s.replicas - 1) if in_place else s.replicas


def _starting(memory: RolloutStatus) -> bool:
    """A canary is under way: pods that fail meanwhile do not make it unnecessary."""
    return memory.phase is Phase.CANARY and memory.canary is not None


def _restarts(memory: RolloutStatus, now: datetime) -> list[str]:
    lately = [at for at in memory.restarts if now - _time(at) < timedelta(days=1)]
    return [rfc3339(now), *lately]


def _past(memory: RolloutStatus, now: datetime) -> RolloutStatus:
    """`memory` without times to come: a clock that was set back must not keep a rollout waiting until then."""
    canary, room = memory.canary, memory.no_capacity_at
    if canary and _time(canary.started_at) > now:
        canary = canary.model_copy(update={"started_at": rfc3339(now)})
    update = {
        "restarts": [rfc3339(now) if _time(at) > now else at for at in memory.restarts],
        "no_capacity_at": rfc3339(now) if room and _time(room) > now else room,
        "canary": canary,
    }
    return memory.model_copy(update=update)


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
