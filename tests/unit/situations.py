"""Situations of a rollout, for tests of its state machine."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from paceline_operator.api.conditions import Reason
from paceline_operator.api.rollout import Rollout
from paceline_operator.api.status_rollout import CanaryStatus, Phase, RolloutStatus
from paceline_operator.clock import rfc3339
from paceline_operator.resources.revision import Revision
from paceline_operator.rollout.situation import UNKNOWN, CanaryPod, Judgement, Situation, Track

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
OLD, NEW = (Revision(f"demo-{name}", number, "1:0", {}, "", {}) for number, name in enumerate(("old", "new"), 1))
FIELD = "speculation.maxTokens"
GOOD = Judgement(True, Reason.CANARY_GOOD, "as good")
BAD = Judgement(False, Reason.GOODPUT_LOST, "half as good")
WINDOW = {"start": "14:00", "durationMinutes": 60}


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def situation(**changes: Any) -> Situation:
    """Two pods serve with the old template, the spec asks for the new one, and nothing was done yet."""
    given = Situation(
        replicas=2,
        rollout=Rollout(),
        wanted=NEW,
        own=False,
        proposal="",
        fields=(FIELD,),
        stable=Track(OLD.name, 2, 2, settled=True, renewed=True),
        canary=None,
        pod=None,
        judgement=UNKNOWN,
        watched_seconds=0.0,
        memory=RolloutStatus(phase=Phase.STEADY, revision=OLD.name),
        retry="",
        startup_seconds=1800.0,
        now=NOW,
    )
    return replace(given, **changes)


def watching(pod: CanaryPod | None = None, *, in_place: bool = False, **changes: Any) -> Situation:
    """The canary was asked for a minute ago."""
    canary = CanaryStatus(revision=NEW.name, started_at=rfc3339(ago(60)), in_place=in_place)
    memory = RolloutStatus(phase=Phase.CANARY, revision=OLD.name, target=NEW.name, fields=[FIELD], canary=canary)
    settled = Track(OLD.name, 1 if in_place else 2, 1 if in_place else 2, settled=True, renewed=True)
    found: dict[str, Any] = {
        "stable": settled,
        "canary": Track(NEW.name, 1, 0, settled=False, renewed=False),
        "memory": memory,
        "watched_seconds": (NOW - pod.ready_since).total_seconds() if pod and pod.ready_since else 0.0,
    }
    return situation(pod=pod, **(found | changes))


def ready(seconds: float) -> CanaryPod:
    return CanaryPod(ready_since=ago(seconds))
