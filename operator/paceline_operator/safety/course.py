"""One step of the breaker and the ladder: what was seen of engines' ends → what is remembered and told. Pure.

What is remembered acts in the next pass: were it done first, a process killed in between would do it twice.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.safety import SafetyMode
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status_boots import BootField
from paceline_operator.api.status_rollout import RolloutStatus
from paceline_operator.api.status_safety import (
    MAX_DEATHS,
    MAX_RESTARTS,
    MAX_SEEN,
    Breaker,
    DeathStatus,
    Phase,
    SafetyStatus,
)
from paceline_operator.clock import moment, rfc3339
from paceline_operator.events import NORMAL, WARNING, Event
from paceline_operator.safety import breaker, ladder
from paceline_operator.safety.ladder import Climb, Rung
from paceline_operator.safety.lay import laid, trial_name
from paceline_operator.safety.signatures import Named, Remedy, library, remedies_of, upgrade
from paceline_operator.verdicts import Verdict

HOUR = timedelta(hours=1)
_TYPE = ConditionType.REMEDY_IN_FORCE


@dataclass(frozen=True)
class Fault:
    """One end or standstill that was not answered yet."""

    key: str
    """The same for the same one, seen again."""
    uid: str
    pod: str
    at: datetime
    kind: str
    named: Named
    how: str
    """In words: container, time and code, or seconds without a token."""
    is_stable: bool
    """Of the track of that name, and not one that a rollout judges by itself."""
    speculates: bool
    lived_seconds: float | None = None
    incident: str = ""
    is_hang: bool = False

    @property
    def may_be_the_boot_s(self) -> bool:
        """Of how its engine was booted, which a rung changes: not where no rung helps, as where a pod was evicted."""
        return self.is_stable and bool(remedies_of(self.named.fingerprint))


@dataclass(frozen=True)
class Sight:
    """What else a step depends on."""

    now: datetime
    spec: ServingSpec
    """As the user and accepted proposals have it, without a remedy."""
    retry: str
    """Value of the annotation that asks for another try."""
    engine: str
    """Which engine the spec asks for."""
    rollout: RolloutStatus
    """As the pass before left it."""
    up_to: datetime
    """`now` for the clock of the rung in trial, which a wall clock that jumps does not move."""
    trial_ready: bool
    """The pod under the rung in trial is there and ready."""
    acceptance: Sequence[float]
    """Share of request-steps accepted up to position 1, 2, ..., as far as known."""
    alive: frozenset[str]
    """UIDs of pods, those that failed and are still there too."""
    hung: Mapping[str, str] = field(default_factory=dict)
    """UID -> name of pods that stand still now and are not a rollout's to judge."""
    acts: bool = True
    """Not suspended."""
    version: str = ""
    """Of vLLM, `major.minor`, by which the spec is judged."""


@dataclass(frozen=True)
class Course:
    """What came of a step."""

    memory: SafetyStatus
    verdict: Verdict
    events: tuple[Event, ...] = ()


def step(memory: SafetyStatus, faults: Sequence[Fault], sight: Sight) -> Course:
    """The ladder after `faults`, newest last."""
    events: list[Event] = []
    memory = _begun_anew(memory, sight, events)
    memory = _noted(memory, faults, sight, events)
    if sight.acts and _lies_over(sight.spec):
        memory = _climbed(memory, faults, sight, events)
    return Course(memory, verdict(memory, sight), tuple(events))


def _lies_over(spec: ServingSpec) -> bool:
    """Whether a remedy would: not over a spec that asks for none, nor over one without speculation."""
    return spec.safety.mode is SafetyMode.ACT and spec.speculation.enabled


def _acts(sight: Sight) -> bool:
    return sight.acts and sight.spec.safety.mode is SafetyMode.ACT


def verdict(memory: SafetyStatus, sight: Sight) -> Verdict:
    """RemedyInForce: True while a remedy lies over the spec."""
    if memory.phase is Phase.REST or not _lies_over(sight.spec):
        if not memory.deaths:
            return Verdict(_TYPE, False, Reason.NO_FAULT)
        last = memory.deaths[0]
        reason = Reason.ENGINE_HUNG if last.kind == "Hang" else Reason.ENGINE_CRASHED
        known = next((one for one in library() if one.id == last.fingerprint), None)
        more = f"; {known.known}" if known else ""
        more += _upgrade(last.fingerprint, sight)
        more += "; no other boot configuration helps" if not remedies_of(last.fingerprint) else ""
        return Verdict(_TYPE, False, reason, f"{last.pod} at {last.at}: {last.title} ({last.fingerprint}){more}")
    mended = _upgrade(memory.fault, sight)
    said = ladder.words(_climb(memory), _choices(memory, sight))
    what = f"{said}; {memory.evidence}{mended}"
    match memory.phase:
        case Phase.TRIAL if memory.since is None:
            return Verdict(_TYPE, True, Reason.BREAKER_OPEN, what)
        case Phase.TRIAL:
            return Verdict(
                _TYPE, True, Reason.REMEDY_TRIED, f"{said}, up since {memory.since}; {memory.evidence}{mended}"
            )
        case Phase.STABLE:
            text = f"{said}; since {memory.since}; {memory.evidence}{mended}"
            return Verdict(_TYPE, True, Reason.STABLE_UNDER_CHANGE, text)
    return Verdict(_TYPE, True, Reason.REMEDIES_SPENT, what)


def _upgrade(fault: str, sight: Sight) -> str:
    found = upgrade(fault, sight.version)
    return f"; {found}" if found else ""


def _begun_anew(memory: SafetyStatus, sight: Sight, events: list[Event]) -> SafetyStatus:
    """An explicit retry or another engine: what was learnt of the one before holds no more."""
    why = ""
    if sight.retry != memory.retried:
        why = f"a retry was asked for ({sight.retry!r})"
    elif memory.engine and memory.engine != sight.engine:
        why = f"the spec asks for another engine ({sight.engine})"
    if not why:
        return memory if memory.engine else memory.model_copy(update={"engine": sight.engine})
    if memory.phase is not Phase.REST:
        events.append(Event(NORMAL, Reason.REMEDY_LIFTED, f"{memory.rung or 'no speculation'} is lifted: {why}"))
    kept = {name: getattr(memory, name) for name in ("seen", "restarting", "restarts")}
    return SafetyStatus(retried=sight.retry, engine=sight.engine, **kept)


def _noted(memory: SafetyStatus, faults: Sequence[Fault], sight: Sight, events: list[Event]) -> SafetyStatus:
    """Each fault once: what was seen of it, and hung pods that are to go."""
    seen = [key for key in memory.seen if key.partition("/")[0] in sight.alive]
    deaths = list(memory.deaths)
    restarting = [uid for uid in memory.restarting if uid in sight.alive]
    restarts = [at for at in memory.restarts if (then := moment(at)) and abs(sight.now - then) < HOUR]
    for fault in faults:
        if fault.key in seen:
            continue
        seen.insert(0, fault.key)
        title = f"{fault.named.title[:300]}"
        deaths.insert(0, DeathStatus(
            at=rfc3339(fault.at), pod=fault.pod, kind=fault.kind, fingerprint=fault.named.fingerprint, title=title,
            incident=fault.incident,
            counts=fault.may_be_the_boot_s and fault.speculates and memory.breaker is Breaker.CLOSED,
            lived_seconds=None if fault.lived_seconds is None else round(fault.lived_seconds),
        ))  # fmt: skip
        reason = Reason.ENGINE_HUNG if fault.is_hang else Reason.ENGINE_CRASHED
        known = f"; {fault.named.known} {fault.named.source}" if fault.named.known else ""
        record = f"; incident {fault.incident}" if fault.incident else ""
        text = f"{fault.pod}: {fault.how}: {title} ({fault.named.fingerprint}){record}{known}"
        events.append(Event(WARNING, reason, text))
    for uid, name in sight.hung.items() if _acts(sight) else ():
        if uid in restarting:
            continue
        if len(restarts) < sight.spec.safety.restarts_per_hour:
            restarting.append(uid)
            restarts.insert(0, rfc3339(sight.now))
        else:
            text = f"{name} is left as it is: {len(restarts)} of safety.restartsPerHour were used"
            events.append(Event(WARNING, Reason.BUDGET_SPENT, text))
    return memory.model_copy(update={
        "seen": seen[:MAX_SEEN], "deaths": deaths[:MAX_DEATHS], "restarting": restarting[:64],
        "restarts": restarts[:MAX_RESTARTS],
    })  # fmt: skip


def _climbed(memory: SafetyStatus, faults: Sequence[Fault], sight: Sight, events: list[Event]) -> SafetyStatus:
    counted = [one for one in memory.deaths if one.counts]
    if memory.breaker is Breaker.CLOSED:
        return _opened(memory, counted, sight, events)
    if memory.phase is Phase.TRIAL and (why := _why_failed(memory, faults, sight)):
        return _next_rung(memory, why, sight, events)
    climb = ladder.watched(
        _climb(memory),
        sight.trial_ready,
        sight.up_to,
        memory.lived_seconds,
        timedelta(seconds=sight.spec.safety.stable_seconds),
    )
    stable = memory.phase is Phase.TRIAL and climb.phase is Phase.STABLE
    memory = _stored(memory, climb)
    if stable:
        text = ladder.words(climb, _choices(memory, sight))
        events.append(Event(NORMAL, Reason.STABLE_UNDER_CHANGE, text + _upgrade(memory.fault, sight)))
    return memory


def _opened(memory: SafetyStatus, counted: Sequence[DeathStatus], sight: Sight, events: list[Event]) -> SafetyStatus:
    """The breaker's part: enough ends within the window."""
    terms = sight.spec.safety
    window = timedelta(seconds=terms.window_seconds)
    found = [breaker.Death(moment(one.at) or sight.now, one.pod, one.fingerprint) for one in counted]
    ends = breaker.opens(found, sight.now, terms.crashes, window)
    if not ends:
        return memory
    mine = counted[0]
    evidence = breaker.words(ends, window)
    again = memory.phase is Phase.STABLE
    lived = [one.lived_seconds for one in counted if one.lived_seconds is not None]
    acceptance = memory.acceptance_permille if again else [round(1000 * share) for share in sight.acceptance][:32]
    memory = memory.model_copy(update={
        "breaker": Breaker.OPEN, "evidence": evidence, "began_at": rfc3339(sight.now), "since": None,
        "deaths": [one.model_copy(update={"counts": False}) for one in memory.deaths],
        "lived_seconds": [*lived, *(memory.lived_seconds if again else [])][:MAX_DEATHS],
        "acceptance_permille": acceptance, "fault": memory.fault if again else mine.fingerprint,
    })  # fmt: skip
    events.append(Event(WARNING, Reason.BREAKER_OPEN, f"all pods boot without speculation: {evidence}"))
    if again:
        return _next_rung(memory, "it was stable, and engines died again", sight, events)
    named = Named("", mine.fingerprint, mine.title, "", "", remedies_of(mine.fingerprint))
    return _stored(memory, ladder.begin(_json(sight.spec), _acceptance(memory), named, sight.engine), sight)


def _next_rung(memory: SafetyStatus, why: str, sight: Sight, events: list[Event]) -> SafetyStatus:
    events.append(Event(WARNING, Reason.REMEDY_FAILED, f"{memory.rung} did not help: {why}"))
    memory = memory.model_copy(update={"began_at": rfc3339(sight.now)})
    climb = ladder.failed(_climb(memory), _choices(memory, sight))
    if climb.phase is Phase.SPENT:
        text = ladder.words(climb, ()) + _upgrade(memory.fault, sight)
        events.append(Event(WARNING, Reason.REMEDIES_SPENT, text))
    return _stored(memory, climb, sight)


def _why_failed(memory: SafetyStatus, faults: Sequence[Fault], sight: Sight) -> str:
    """Of the rung in trial; empty: it did not."""
    if memory.rung == Remedy.WITHOUT_SPECULATION:
        dead = next((one for one in faults if one.may_be_the_boot_s and not one.speculates), None)
        return f"{dead.pod} ended without speculation, too: {dead.named.title}" if dead else ""
    failed = next((one for one in sight.rollout.failed if one.own and one.proposal == trial_name(memory)), None)
    if failed is not None:
        return failed.message
    if laid(sight.spec, memory).trial is None:
        return "it does not go together with the spec"
    return ""


def _climb(memory: SafetyStatus) -> Climb:
    known = set(Remedy)
    return Climb(
        phase=memory.phase,
        rung=Remedy(memory.rung) if memory.rung in known else Remedy.AS_IT_WAS,
        since=moment(memory.since),
        tried=tuple(Remedy(one) for one in memory.tried if one in known),
        engine=memory.engine,
        fault=memory.fault,
    )


def _stored(memory: SafetyStatus, climb: Climb, sight: Sight | None = None) -> SafetyStatus:
    """`sight`: a rung begins, whose changes are kept as they are now."""
    update: dict[str, Any] = {
        "phase": climb.phase,
        "rung": "" if climb.phase is Phase.SPENT else climb.rung.value,
        "since": rfc3339(climb.since) if climb.since else None,
        "tried": [one.value for one in climb.tried],
    }
    if climb.phase is Phase.STABLE and climb.rung is not Remedy.WITHOUT_SPECULATION:
        update["breaker"] = Breaker.CLOSED
    if sight is not None:
        rung = next((one for one in _choices(memory, sight) if one.remedy is climb.rung), None)
        changes = rung.changes if rung and climb.phase is Phase.TRIAL else {}
        update["changes"] = [BootField(path=path, value=json.dumps(value)) for path, value in changes.items()]
    return memory.model_copy(update=update)


def _choices(memory: SafetyStatus, sight: Sight) -> list[Rung]:
    """Those that go together with the spec."""
    named = Named("", memory.fault, "", "", "", remedies_of(memory.fault))
    found = ladder.rungs(_json(sight.spec), _acceptance(memory), named)
    tried = {change.path: json.loads(change.value) for change in memory.changes}
    return [replace(one, changes=tried) if one.remedy == memory.rung and tried else one for one in found]


def _acceptance(memory: SafetyStatus) -> list[float]:
    return [share / 1000 for share in memory.acceptance_permille]


def _json(spec: ServingSpec) -> Mapping[str, object]:
    whole: Mapping[str, object] = spec.model_dump(mode="json", by_alias=True)
    return whole
