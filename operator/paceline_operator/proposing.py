"""What a pass makes of what it knows of restarts: proposals, as values for the rollout and in status. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import median
from typing import Any

from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import ProposalStatus, ServingStatus, Tier
from paceline_operator.api.status_boots import BootField, BootLoad
from paceline_operator.clock import rfc3339
from paceline_operator.history.load import Load
from paceline_operator.plan import Object
from paceline_operator.rollout import boots
from paceline_operator.rollout.known import Gain, Known
from paceline_operator.rollout.proposal import Proposal
from paceline_operator.rollout.propose import propose
from paceline_operator.safety.lay import holds
from paceline_operator.tuning.engines import SHORTEST_STEP_SECONDS
from paceline_operator.tuning.explain import LARGEST, whole
from paceline_operator.tuning.model import Engine, Interval, Step
from paceline_operator.verdicts import is_ready

MAX_PROPOSALS = 8
PLAIN_STEPS = 5000
"""Steps of engines without a drafter after which what came before counts for half or less."""
MIN_PLAIN_STEPS = 100


@dataclass(frozen=True)
class Plain:
    """Decode steps of engines without a drafter at one load: sums."""

    steps: float = 0.0
    request_steps: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0


def look(
    spec: ServingSpec,
    asked: ServingSpec,
    step: Step,
    engines: Sequence[Engine],
    pods: Sequence[Object],
    previous: ServingStatus,
    plain: Mapping[int, Plain],
    load: Load | None,
    now: datetime,
) -> tuple[tuple[Proposal, ...], dict[str, Any]]:
    """Proposals for the stable pods, which run `spec` where the user asked for `asked`, and fields of ServingStatus by
    attribute name. A user's own word that there be no drafter is answered in status, and by nothing else.

    `previous` with the fields of this pass; `load` None: the distribution of loads is not known. Where nothing answers
    (`step.holding`), nothing changes.
    """
    off = {at: one for at, sums in plain.items() if (one := load_of(at, sums)) is not None}
    past = boots.advanced(previous.boots, spec, previous.buckets, off, rfc3339(now))
    if step.holding:
        return (), {"boots": past}
    known = Known(
        spec=spec,
        live=step.tier is Tier.LIVE,
        buckets=previous.buckets,
        plain=off,
        verified=previous.verification.measured if previous.verification else (),
        without_drafter=_inverse(step.restarts.without_drafter),
        off_for_long=step.restarts.off_for_long,
        ttft_lowered=step.restarts.ttft_lowered,
        load=load,
        past=past,
        held=holds(previous.safety),
        restart_seconds=restart_seconds(pods),
        pods=max(1, len(pods)),
        tokens_per_second=sum(map(_rate, engines)),
        now=now,
    )
    found = propose(known)
    said = {(one.reason, tuple(one.changes)): one for one in previous.proposals}
    told = [_status(one) for one in found[:MAX_PROPOSALS]]
    # Each as it was said first: its numbers go on changing.
    shown = [said.get((one.reason, tuple(one.changes)), one) for one in told]
    mine = tuple(one for one in found if asked.speculation.enabled or not one.changes.get("speculation.enabled"))
    return mine, {"boots": past, "proposals": shown}


def gathered(past: Mapping[int, Plain], engines: Sequence[Engine]) -> Mapping[int, Plain]:
    """`past` with the decode steps of engines without a drafter in this pass."""
    found = dict(past)
    for engine in engines:
        if engine.state is None or engine.samples is None or engine.failure or engine.state.capabilities.max_k:
            continue
        for cell in engine.samples.cells:
            if cell.prompt or not 0 < cell.steps < LARGEST or cell.seconds < SHORTEST_STEP_SECONDS * cell.steps:
                continue
            before = found.get(cell.load, Plain())
            keep = PLAIN_STEPS / (PLAIN_STEPS + cell.steps)
            found[cell.load] = Plain(
                keep * before.steps + cell.steps,
                keep * before.request_steps + min(cell.request_steps, LARGEST),
                keep * before.seconds + min(cell.seconds, LARGEST),
                keep * before.squares + min(cell.seconds_squared, LARGEST),
            )
    return found


def load_of(load: int, sums: Plain) -> BootLoad | None:
    """What an engine without a drafter gives at a load; None below the minimum count. One token a request-step."""
    if sums.steps < MIN_PLAIN_STEPS:
        return None
    mean = sums.seconds / sums.steps
    error = math.sqrt(max(0.0, sums.squares / sums.steps / mean**2 - 1) / sums.steps)
    rate = 1000 * sums.request_steps / sums.seconds
    return BootLoad(
        from_requests=load,
        k=0,
        goodput_milli_tokens_per_second=whole(rate),
        low_milli_tokens_per_second=whole(rate * max(0.0, 1 - 2 * error)),
        high_milli_tokens_per_second=whole(rate * (1 + 2 * error)),
    )


def restart_seconds(pods: Sequence[Object]) -> float | None:
    """Of pods that started once and are ready: the middle of their times from start to ready. None where there is none.

    A pod whose readiness came and went counts from its last turn: too long, never too short.
    """
    found = []
    for pod in pods:
        status = pod.get("status") or {}
        restarts = sum(one.get("restartCount", 0) for one in status.get("containerStatuses") or [])
        turned = [one.get("lastTransitionTime") for one in status.get("conditions") or [] if one.get("type") == "Ready"]
        if not is_ready(pod) or restarts or not turned:
            continue
        try:
            seconds = (_time(turned[0]) - _time(status["startTime"])).total_seconds()
        except (KeyError, TypeError, ValueError):
            continue
        if seconds > 0:
            found.append(seconds)
    return median(found) if found else None


def _time(text: Any) -> datetime:
    return datetime.fromisoformat(str(text))


def _inverse(ratio: Interval | None) -> Gain | None:
    """Of going without a drafter, from what speculation gives over that."""
    if ratio is None or ratio.low <= 0:
        return None
    return Gain(1 / ratio.value - 1, 1 / ratio.high - 1, 1 / ratio.low - 1)


def _rate(engine: Engine) -> float:
    """Tokens a second of one engine in this pass."""
    samples = engine.samples
    if samples is None or samples.reset or engine.failure or samples.to_seconds <= samples.from_seconds:
        return 0.0
    tokens = min(sum(cell.emitted for cell in samples.cells), LARGEST)
    return tokens / (samples.to_seconds - samples.from_seconds)


def _status(one: Proposal) -> ProposalStatus:
    gain, low, high = (None if one.gain is None or end is None else whole(1000 * end)
                       for end in (one.gain, one.gain_low, one.gain_high))  # fmt: skip
    cost = f"a restart takes a pod {one.restart_seconds:.0f} s, about {one.tokens_at_risk:.0f} tokens in all"
    return ProposalStatus(
        reason=one.reason.value,
        message=f"{one.evidence}; {cost}",
        changes=[BootField(path=path, value=json.dumps(value)) for path, value in sorted(one.changes.items())],
        gain_permille=gain,
        gain_low_permille=low,
        gain_high_permille=high,
        restart_seconds=whole(one.restart_seconds),
        tokens_at_risk=whole(one.tokens_at_risk),
    )
