"""How many pods: first the k that the tuner's numbers favour, only then another number of pods.

    outside of the bounds? -> is a rollout under way? -> are there numbers? -> what is wanted now and within the window
    -> does a better k help? -> are the pods bought last there yet? -> one bounded step

What is wanted follows from requests, running and waiting, over what a pod may have; with a limit of the time per output
token, from the largest load at which a measured k meets it. Both follow k: see `rescaled`.
"""

from __future__ import annotations

import math
from dataclasses import replace

from paceline_operator.api.conditions import Reason
from paceline_operator.scaling.values import Decision, Pace, Past, Sight, Terms

TOLERANCE = 0.1
"""Share by which the requests of a pod may miss the target without consequence: the HorizontalPodAutoscaler's default
(https://kubernetes.io/docs/tasks/run-application/horizontal-pod-autoscale/#algorithm-details)."""
K_FIRST_SECONDS = 60.0
"""For which a better k may delay more pods: the tuner needs two windows to move, and a probe before."""
SETTLE_SECONDS = 120.0
"""After the pods changed, for which a time to first token above its limit buys no more: as long as the guard waited."""


def decide(terms: Terms, sight: Sight, past: Past, now: float) -> Decision:
    """`now` is a monotonic time in seconds. The answer is within the bounds, at most a step from `sight.replicas`,
    except where that is out of bounds or 0 (switched off by hand, which stays)."""
    past = _looked(sight, past, now)
    at = sight.replicas
    if at == 0:
        return Decision(0, Reason.SCALED_TO_ZERO, "spec.replicas is 0: set by hand, it stays until it is raised", past)
    if at < terms.minimum:
        return Decision(terms.minimum, Reason.AT_MINIMUM, f"{at} replicas are fewer than minReplicas", past)
    if at > terms.maximum:
        return Decision(terms.maximum, Reason.AT_MAXIMUM, f"{at} replicas are more than maxReplicas", past)
    if sight.frozen:  # what was seen before is of other pods: windows begin anew
        past = replace(past, totals=(), k_first_since=None)
        return Decision(at, Reason.FROZEN, f"replicas hold: {sight.frozen}", past)
    if sight.requests is None:
        reason, message = sight.unknown
        return Decision(at, reason, f"replicas hold: {message}", replace(past, k_first_since=None), holding=True)
    before = past.table.get(sight.load) if sight.load is not None else None
    past = remembered(terms, sight, rescaled(sight, past), now)
    recent = [total for when, total in past.totals if when >= now - terms.up_window_seconds]
    lately = [total for when, total in past.totals if when >= now - terms.down_window_seconds]
    settled, silent = now - past.pods_since >= SETTLE_SECONDS, _silent(terms, sight)
    present = _wanted(terms, sight, past.totals[-1][1], settled=settled)
    up = min(_wanted(terms, sight, total, settled=settled) for total in recent)
    down = max(_wanted(terms, sight, total + silent, settled=settled) for total in lately)
    if up > at:
        return _more(terms, sight, past, now, up, changed=before not in (None, sight.k))
    past = replace(past, k_first_since=None)
    if down < at:
        return _fewer(terms, sight, past, now, down)
    if sight.ready < at:
        return Decision(
            at, Reason.PODS_PENDING, f"{sight.ready} of {at} replicas are ready; {_said(terms, sight)}", past
        )
    if present != at:
        return Decision(at, Reason.STABILIZING, _waits(terms, up=present > at), past)
    return Decision(at, Reason.WITHIN_TARGET, _said(terms, sight), past)


def rescaled(sight: Sight, past: Past) -> Past:
    """`past` in requests as they would have been under the table in force now: where the k of the present load changed
    to one with r times the goodput, a request is done in 1/r of the time, and so many of them are there at once."""
    goodput = {pace.k: pace.goodput for pace in sight.paces}
    was = past.table.get(sight.load) if sight.load is not None else None
    before, after = (goodput.get(k, 0.0) if k is not None else 0.0 for k in (was, sight.k))
    totals = past.totals
    if was != sight.k and before > 0 and after > 0:
        totals = tuple((when, total * before / after) for when, total in totals)
    return replace(past, totals=totals, table=dict(sight.table) or past.table)


def remembered(terms: Terms, sight: Sight, past: Past, now: float) -> Past:
    """`past` with the requests of this pass; without what lies before the windows, or before a gap."""
    gap = not past.totals or not 0 <= now - past.totals[-1][0] <= terms.gap_seconds
    kept = () if gap else past.totals
    horizon = now - max(terms.up_window_seconds, terms.down_window_seconds)
    totals = (*(entry for entry in kept if entry[0] >= horizon), (now, sight.requests or 0.0))
    return replace(past, totals=totals, since=now if gap else past.since)


def _looked(sight: Sight, past: Past, now: float) -> Past:
    pods = (sight.replicas, sight.pods, sight.ready)
    if pods != past.pods:
        past = replace(past, pods=pods, pods_since=now)
    return past if past.bought[0] == sight.replicas else replace(past, bought=(sight.replicas, now))


def _pod_limit(terms: Terms, sight: Sight) -> float | None:
    """Requests of a pod at which the limit of the time per output token is met, by measured loads; None: not known."""
    limit = terms.token_limit_seconds
    if limit is None or not sight.token_seconds:
        return None
    met = [load for load, seconds in sight.token_seconds.items() if seconds <= limit]
    if met:
        return float(max(met))
    load, seconds = min(sight.token_seconds.items())
    return max(1.0, load * limit / seconds)


def _breached(terms: Terms, sight: Sight) -> bool:
    """The k in force, where it is measured, does not meet the limit at the present load."""
    force = _in_force(sight)
    return (
        terms.token_limit_seconds is not None and force is not None and force.token_seconds > terms.token_limit_seconds
    )


def _in_force(sight: Sight) -> Pace | None:
    return next((pace for pace in sight.paces if pace.k == sight.k), None)


def _wanted(terms: Terms, sight: Sight, total: float, *, settled: bool) -> int:
    """Replicas for `total` requests: the most that any target asks for. More than there are for a limit only where it
    is exceeded now: loads that were never measured say nothing."""
    at, limit, wants = sight.replicas, _pod_limit(terms, sight), []
    if terms.target_requests is not None:
        wants.append(_pods(total, terms.target_requests, at))
    if limit is not None:
        pods = _pods(total, limit, at)
        wants.append(max(pods, at + 1) if _breached(terms, sight) else min(pods, at))
    if sight.late_first_tokens:
        wants.append(at + 1 if settled else at)
    return max(wants, default=at)


def _pods(total: float, each: float, at: int) -> int:
    if abs(total / (each * at) - 1) <= TOLERANCE:
        return at
    return math.ceil(total / each)


def _silent(terms: Terms, sight: Sight) -> float:
    """Requests that ready pods which do not answer are taken to have when pods might go: as many as they may have."""
    each = terms.target_requests or _pod_limit(terms, sight) or 0.0
    return max(0, sight.ready - sight.answering) * each


def _more(terms: Terms, sight: Sight, past: Past, now: float, wanted: int, *, changed: bool) -> Decision:
    """`changed`: k at the present load is another one since the last look: the requests are still those of the old."""
    at, said = sight.replicas, _said(terms, sight)
    began = past.k_first_since if past.k_first_since is not None else now
    past = replace(past, k_first_since=began)
    if now - began < K_FIRST_SECONDS and (why := _k_first(terms, sight, changed=changed)):
        return Decision(at, Reason.BETTER_K_FIRST, f"{said}; {why}", past)
    if _unseen(past, now, terms.up_window_seconds):
        return Decision(at, Reason.STABILIZING, _waits(terms, up=True), past)
    if at >= terms.maximum:
        return Decision(at, Reason.AT_MAXIMUM, f"{said}, and {at} replicas are maxReplicas", past)
    if sight.ready < at and now - past.bought[1] < terms.patience_seconds:
        return Decision(at, Reason.PODS_PENDING, f"{sight.ready} of {at} are ready; {said}", past)
    to = min(wanted, at + terms.up_step, terms.maximum)
    return Decision(to, Reason.ABOVE_TARGET, f"replicas {at} to {to}: {said}", past)


def _fewer(terms: Terms, sight: Sight, past: Past, now: float, wanted: int) -> Decision:
    at, said = sight.replicas, _said(terms, sight)
    if at <= terms.minimum:
        return Decision(at, Reason.AT_MINIMUM, f"{said}, and {at} replicas are minReplicas", past)
    if _unseen(past, now, terms.down_window_seconds):
        return Decision(at, Reason.STABILIZING, _waits(terms, up=False), past)
    to = max(wanted, at - terms.down_step, terms.minimum)
    return Decision(to, Reason.BELOW_TARGET, f"replicas {at} to {to}: {said}", past)


def _unseen(past: Past, now: float, window: float) -> bool:
    return past.since is None or now - past.since < window


def _waits(terms: Terms, *, up: bool) -> str:
    way, window = ("more", terms.up_window_seconds) if up else ("fewer", terms.down_window_seconds)
    return f"{way} replicas must be wanted for {window:.0f} s first (stabilizationWindowSeconds)"


def _k_first(terms: Terms, sight: Sight, *, changed: bool) -> str:
    """What more pods wait for; empty where k is as it should be."""
    if better := _better(terms, sight):
        return f"k {better.k} in place of {sight.k} gives {better.goodput:.0f} tokens/s an engine at this load"
    if changed:
        return f"k became {sight.k} since the last look"
    return "not every k is measured at this load yet" if sight.measuring else ""


def _better(terms: Terms, sight: Sight) -> Pace | None:
    """The best measured k that gives more than the one in force, or meets a limit that this one does not."""
    force, limit = _in_force(sight), terms.token_limit_seconds
    if not sight.steerable or force is None:
        return None
    allowed = [pace for pace in sight.paces if limit is None or pace.token_seconds <= limit]
    best = max(allowed or sight.paces, key=lambda pace: pace.goodput)
    helps = _breached(terms, sight) and bool(allowed)
    return best if helps or best.goodput > (1 + terms.min_gain) * force.goodput else None


def _said(terms: Terms, sight: Sight) -> str:
    """The numbers that decide, for people."""
    target = terms.target_requests
    pods = max(1, sight.answering)
    parts = [f"{(sight.requests or 0.0) / pods:.1f} requests a pod" + (f" for a target of {target}" if target else "")]
    limit = terms.token_limit_seconds
    if limit is not None and sight.paces:
        best = 1000 * min(pace.token_seconds for pace in sight.paces)
        parts.append(f"{best:.1f} ms a token for a limit of {1000 * limit:.0f}")
    if sight.late_first_tokens:
        parts.append("the time to first token exceeds its limit with k lowered")
    return ", ".join(parts)
