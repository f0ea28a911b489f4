"""Kubernetes Events: each from a named constructor, reasons from api.conditions.Reason, the same one not said twice."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator import naming
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.status import DecisionRecord, ProposalStatus, ServingStatus

NORMAL = "Normal"
WARNING = "Warning"
QUIET_SECONDS = 600.0
"""The same event about the same object is not posted again within this time."""
MESSAGE_LIMIT = 1024
"""Of the API server."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to an object, for people."""

    type: str
    reason: Reason
    message: str


def refused(reason: Reason, message: str) -> Event:
    """The spec is not accepted: nothing was changed."""
    return Event(WARNING, reason, message)


def corrected(kind: str, name: str, field: str) -> Event:
    """A child existed and was not as it should be."""
    return Event(NORMAL, Reason.CHILD_CORRECTED, f"{kind} {name} differed at {field} and was applied again")


def created(kind: str, name: str) -> Event:
    """A child was not there."""
    return Event(NORMAL, Reason.CHILD_CREATED, f"Created {kind} {name}")


def pruned(kind: str, name: str) -> Event:
    """A child no longer belongs to the object."""
    return Event(NORMAL, Reason.CHILD_PRUNED, f"Deleted {kind} {name}, which is no longer part of this object")


def token_replaced(name: str, pods: Iterable[str]) -> Event:
    """Engines refused the token that its Secret should hold."""
    return Event(
        WARNING, Reason.TOKEN_REFUSED, f"Re-created Secret {name}: {', '.join(sorted(pods))} refused its token"
    )


def token_missed(name: str, pods: int) -> Event:
    """A Secret that was there is gone, as pods tell that wait to mount it."""
    text = f"Created Secret {name} again: it was gone, and {pods} pod{'s' * (pods > 1)} could not mount it"
    return Event(WARNING, Reason.CHILD_CREATED, text)


def engine_lost(pod: str, failure: Reason, message: str, ended: str, last: str) -> Event:
    """An engine that answered does not any more; `ended` tells how its container ended, empty where it did not."""
    return Event(WARNING, Reason.ENGINE_LOST, "; ".join(filter(None, [f"{pod}: {failure}", ended, last, message])))


def engine_restarted(pod: str, ended: str, last: str) -> Event:
    """An engine answers as another process than before: what it learnt and ran is gone, and it is told anew."""
    text = f"{pod} runs as another process and is given the table anew"
    return Event(WARNING, Reason.ENGINE_RESTARTED, "; ".join(filter(None, [text, ended, f"the one before: {last}"])))


def canary_started(fields: str, revision: str) -> Event:
    """A change of the template begins with one pod."""
    return Event(NORMAL, Reason.CANARY_STARTED, f"{fields} changed: one pod runs {revision} and is judged")


def canary_promoted(reason: Reason, fields: str, why: str) -> Event:
    """The canary was good, or nothing spoke against it (CanaryUnjudged)."""
    told = Reason.CANARY_PROMOTED if reason is Reason.CANARY_GOOD else reason
    return Event(NORMAL, told, f"{fields}: the canary is promoted: {why}")


def rolled_back(reason: Reason, fields: str, why: str) -> Event:
    """The canary was bad."""
    return Event(WARNING, reason, f"{fields}: the canary is taken back: {why}")


def rolling_out(fields: str, why: str) -> Event:
    """Pods are replaced without a canary."""
    return Event(NORMAL, Reason.ROLLING_OUT, f"{fields} changed: pods are replaced without a canary: {why}")


def scaled(reason: Reason, message: str) -> Event:
    """Mode Builtin wrote another number of replicas."""
    return Event(NORMAL, reason, message)


def foreign_writer(message: str) -> Event:
    """Somebody else writes replicas while mode Builtin is on."""
    return Event(WARNING, Reason.FOREIGN_REPLICAS_WRITER, message)


def apply_failed(message: str) -> Event:
    """The API server refused a child."""
    return Event(WARNING, Reason.APPLY_FAILED, message)


def decided(record: DecisionRecord) -> Event:
    """The k in force, or the way to verify drafts, changed."""
    what = f"k {record.from_k} to {record.to_k}"
    if record.verification:
        what = f"verification {record.verification}, {what}"
    return Event(NORMAL, Reason(record.reason), f"{what} at {record.requests} requests: {record.message}")


def proposed(proposal: ProposalStatus) -> Event:
    """A restart, or a person, could do something."""
    return Event(NORMAL, Reason(proposal.reason), f"Proposal: {proposal.message}")


DRIFT = (Reason.DRAFTER_COLLAPSED, Reason.ACCEPTANCE_SHIFTED)
"""Of SpeculationEffective: told when they come up."""


def drifted(reason: Reason, message: str) -> Event:
    """Drafts are not accepted as they were."""
    return Event(WARNING if reason is Reason.DRAFTER_COLLAPSED else NORMAL, reason, message)


def of_change(before: ServingStatus, after: ServingStatus) -> list[Event]:
    """What changed from one status to the next that people want to hear of: a refused spec, a failure, drafts that are
    not accepted any more, decisions, proposals."""
    told = {(condition.type, condition.status, condition.message) for condition in before.conditions}
    news = []
    for condition in after.conditions:
        if condition.status == "False" and (condition.type, condition.status, condition.message) not in told:
            if condition.type == ConditionType.ACCEPTED:
                news.append(refused(Reason(condition.reason), condition.message))
            elif condition.reason == Reason.APPLY_FAILED:
                news.append(apply_failed(condition.message))
    known_reasons = {condition.reason for condition in before.conditions}
    news += [
        drifted(Reason(condition.reason), condition.message)
        for condition in after.conditions
        if condition.type == ConditionType.SPECULATION_EFFECTIVE
        and condition.reason in DRIFT
        and condition.reason not in known_reasons
    ]
    said = {proposal.reason for proposal in before.proposals}
    news += [proposed(proposal) for proposal in after.proposals if proposal.reason not in said]
    known = {(record.generation, record.requests) for record in before.decisions}
    return news + [decided(r) for r in reversed(after.decisions) if (r.generation, r.requests) not in known]


class Recorder:
    """Remembers what was said lately about one object."""

    def __init__(self) -> None:
        self._said: dict[Event, float] = {}

    def fresh(self, events: Iterable[Event], now: float) -> list[Event]:
        """Those of `events` not said within QUIET_SECONDS, which now count as said: one for each reason."""
        self._said = {event: at for event, at in self._said.items() if now - at < QUIET_SECONDS}
        news = [event for event in dict.fromkeys(events) if event not in self._said]
        self._said.update(dict.fromkeys(news, now))
        return _together(news)


def _together(news: Iterable[Event]) -> list[Event]:
    found: dict[Reason, Event] = {}
    for event in news:
        before = found.get(event.reason)
        if before is None:
            found[event.reason] = event
        else:
            worse = WARNING if WARNING in (before.type, event.type) else NORMAL
            found[event.reason] = Event(worse, event.reason, f"{before.message}; {event.message}")
    return list(found.values())


def body(event: Event, about: Mapping[str, Any], at: str) -> dict[str, Any]:
    """The core/v1 Event to create; `about` is the raw object, `at` an RFC 3339 time."""
    meta = about["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{meta['name']}.{secrets.token_hex(8)}", "namespace": meta["namespace"]},
        "involvedObject": {
            "apiVersion": naming.API_VERSION,
            "kind": about.get("kind", naming.KIND_SERVING),
            "namespace": meta["namespace"],
            "name": meta["name"],
            "uid": meta["uid"],
        },
        "type": event.type,
        "reason": event.reason.value,
        "message": event.message[:MESSAGE_LIMIT],
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
        "source": {"component": naming.FIELD_MANAGER},
    }
