"""The remedy ladder: boot configurations, one change at a time, each judged by how long it stays up. Pure.

A rung that stays up is stable under that change: never called a fix, because a fault that did not come back may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from statistics import median
from typing import Any

from paceline_operator.api.status_safety import Phase
from paceline_operator.safety.signatures import Named, Remedy

STABLE_AT_LEAST = timedelta(minutes=15)
STABLE_FAILURES = 10
"""A rung that outlives the usual time to failure so many times is taken as stable. Of the reporter of vllm#59970: dies
within a minute, so that 15 minutes and more tell."""
FEWER_TOKENS_AT_MOST = 3
"""k of the rung FewerTokens where nothing is known of the acceptance: the reporters of vllm#59970 went from 7 to 2 or
3, and 3 to 5 is what practitioners use."""
WORTH_PER_POSITION = 0.3
"""A position accepted less often than this is given up on the rung FewerTokens."""


@dataclass(frozen=True)
class Rung:
    """A boot configuration: what is changed in the spec, and what that is called."""

    remedy: Remedy
    changes: Mapping[str, Any]
    """Path in spec -> JSON value; None takes the field away."""
    words: str


@dataclass(frozen=True)
class Climb:
    """Where a serving is on the ladder. All of it is kept in status."""

    phase: Phase = Phase.REST
    rung: Remedy = Remedy.AS_IT_WAS
    since: datetime | None = None
    """When the rung began to run, ready."""
    tried: tuple[Remedy, ...] = ()
    """Rungs that failed, in order."""
    engine: str = ""
    """Engine version that this climb is about: another one begins anew."""
    fault: str = ""
    """Fingerprint of the fault that this climb is about."""


def rungs(spec: Mapping[str, Any], acceptance: Sequence[float], fault: Named) -> list[Rung]:
    """The rungs for `spec` (JSON with defaults) in the fault's order; those that change nothing are left out.

    `acceptance`: share of request-steps accepted up to position 1, 2, ..., as far as known.
    """
    made = [rung for remedy in fault.remedies if (rung := _rung(remedy, spec, acceptance))]
    return [rung for rung in made if rung.changes]


def supported_k(acceptance: Sequence[float], largest: int) -> int:
    """k that the acceptance supports without adaptive verification, 1 to `largest`."""
    worth = sum(1 for share in acceptance if share >= WORTH_PER_POSITION)
    return max(1, min(largest, worth or FEWER_TOKENS_AT_MOST, FEWER_TOKENS_AT_MOST))


def stable_after(times_to_failure: Sequence[float], least: timedelta = STABLE_AT_LEAST) -> timedelta:
    """How long a rung must stay up: max(`least`, 10 × the median time to failure, seconds)."""
    usual = timedelta(seconds=median(times_to_failure)) if times_to_failure else timedelta()
    return max(least, STABLE_FAILURES * usual)


def begin(spec: Mapping[str, Any], acceptance: Sequence[float], fault: Named, engine: str) -> Climb:
    """A climb for a fault: the first rung, or spent where none helps."""
    first = next(iter(rungs(spec, acceptance, fault)), None)
    climb = Climb(engine=engine, fault=fault.fingerprint)
    return replace(climb, phase=Phase.TRIAL, rung=first.remedy) if first else replace(climb, phase=Phase.SPENT)


def failed(climb: Climb, choices: Sequence[Rung]) -> Climb:
    """The rung in trial, or one that was taken as stable, failed: the next that was not tried."""
    tried = (*climb.tried, climb.rung)
    following = next((rung for rung in choices if rung.remedy not in tried), None)
    if following is None:
        return replace(climb, phase=Phase.SPENT, tried=tried, since=None)
    return replace(climb, phase=Phase.TRIAL, rung=following.remedy, tried=tried, since=None)


def watched(
    climb: Climb,
    ready: bool,
    now: datetime,
    times_to_failure: Sequence[float],
    least: timedelta = STABLE_AT_LEAST,
) -> Climb:
    """Time went by without a failure. The clock of a rung runs while its engine is ready."""
    if climb.phase is not Phase.TRIAL:
        return climb
    if not ready:
        return replace(climb, since=None)
    if climb.since is None or now < climb.since:  # a clock that went back proves nothing
        return replace(climb, since=now)
    done = now - climb.since >= stable_after(times_to_failure, least)
    return replace(climb, phase=Phase.STABLE) if done else climb


def words(climb: Climb, choices: Sequence[Rung]) -> str:
    """What is known, and no more: one line for the condition."""
    rung = next((rung for rung in choices if rung.remedy is climb.rung), None)
    what = rung.words if rung else climb.rung.value
    failures = f"; failed before: {', '.join(climb.tried)}" if climb.tried else ""
    if climb.phase is Phase.STABLE:
        return f"stable under this change: {what}{failures}. That the fault is gone is not proven"
    if climb.phase is Phase.TRIAL:
        where = "watching all pods" if climb.rung is Remedy.WITHOUT_SPECULATION else "trying on one pod"
        return f"{where}: {what}{failures}"
    if climb.phase is Phase.SPENT:
        until = "serving without speculation until an explicit retry or a new engine version"
        return f"no boot configuration helped{failures}: {until}"
    return "no fault"


def _rung(remedy: Remedy, spec: Mapping[str, Any], acceptance: Sequence[float]) -> Rung | None:
    speculation, engine = spec.get("speculation") or {}, spec.get("engine") or {}
    largest = int(speculation.get("maxTokens", 1))
    if remedy is Remedy.WITHOUT_ADAPTIVE_VERIFICATION:
        if speculation.get("adaptiveVerification") != "Enabled":
            return None
        changes: dict[str, Any] = {"speculation.adaptiveVerification": "Disabled"}
        return Rung(remedy, changes, "adaptive verification absent")
    if remedy is Remedy.FEWER_TOKENS:
        k = supported_k(acceptance, largest)
        if k >= largest:
            return None
        changes = {"speculation.maxTokens": k, "tuning.ladder": None}
        if speculation.get("adaptiveVerification") == "Enabled":
            changes["speculation.adaptiveVerification"] = "Disabled"
        return Rung(remedy, changes, f"at most {k} tokens drafted in place of {largest}, adaptive verification absent")
    if remedy is Remedy.DECODE_ONLY_GRAPHS:
        if engine.get("enforceEager") or engine.get("device") == "CPU":
            return None
        if engine.get("cudagraphMode") == "FULL_DECODE_ONLY":
            return None
        return Rung(remedy, {"engine.cudagraphMode": "FULL_DECODE_ONLY"}, "full graphs for decode steps only")
    if remedy is Remedy.WITHOUT_SPECULATION:
        return Rung(remedy, {"speculation.enabled": False}, "no speculation")
    return None
