"""What is known of the ways to verify drafts: by load, tokens over seconds of each arm's own steps.

An arm is a mode, a k and, where it is capped, a bound. What it gains comes from requests that differ, which no model of
the mean can tell: so arms are judged by what their steps gave. What to make of it: verification.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from paceline_engine.protocol import Cost, CostCell, Verification, VerificationPolicy
from paceline_operator.tuning.acceptance import CLUSTERING, MIN_REQUEST_STEPS
from paceline_operator.tuning.timing import robust_mean

DRIFT = 0.01**2 / 60
"""Variance a second by which the goodput of an arm wanders unseen."""
TURNED = 0.1**2
"""Variance that a change of traffic or cost adds."""
STARVED_LENGTH, STARVED_REQUEST_STEPS = 1.02, 256
"""Tokens per request-step, in that many, of an estimate that admits (almost) nothing while drafts are paid for: it sees
no labels any more and does not recover (seen on an H200 with flat draft distributions)."""

Curves: TypeAlias = tuple[tuple[Cost, ...], tuple[Cost, ...]]
"""Microseconds of drafting by requests, and of verifying by tokens."""


class Arm(NamedTuple):
    """A way to draft and verify at one load."""

    mode: Verification
    k: int
    cap: int | None = None
    """Draft tokens verified a step at most."""
    priced: bool = False
    """By measured step costs in place of those that the engine profiled at start."""


@dataclass(frozen=True)
class Belief:
    """Log tokens a second of an arm."""

    log: float
    variance: float
    seen: float
    windows: int


@dataclass(frozen=True)
class Trial:
    """An arm that is in force for a few seconds to be measured."""

    load: int
    arm: Arm
    left: int
    """Passes."""


@dataclass(frozen=True)
class Verified:
    """What is known and chosen. Arms by load bucket."""

    beliefs: Mapping[tuple[int, Arm], Belief] = field(default_factory=dict)
    chosen: Mapping[int, Arm] = field(default_factory=dict)
    """Loads at which an arm of AV is better than verifying all."""
    arm: Arm | None = None
    """In force; None = all drafts are verified."""
    trial: Trial | None = None
    resting: Mapping[tuple[int, Arm], tuple[float, float]] = field(default_factory=dict)
    """Arm -> neither to be tried nor chosen before, and for how long it rests."""
    left_until: float = -math.inf
    """No arm of AV is tried or started before: its estimate starved."""
    next_trial: float = -math.inf
    stable: tuple[int, int] = (-1, 0)
    """Present load and passes it has been there in a row."""
    astray: int = 0
    """Passes in a row in which the arm in force was not that of the load that was there."""
    started: frozenset[int] = frozenset()
    """Loads at which the prior has had its say."""
    message: str = ""
    curves: Curves | None = None
    """Of the arm in force, where it is priced; as they were when its trial began."""


def learn(
    past: Verified, windows: Mapping[str, Iterable[CostCell]], noise: float, seconds: float, now: float, turned: bool
) -> Verified:
    """`past`, `seconds` older, corrected by the windows of each engine (by name). `noise`: variance of a window's log
    goodput beyond counting; `turned`: traffic or cost changed."""
    wider = DRIFT * seconds + TURNED * turned
    beliefs = {at: replace(one, variance=one.variance + wider) for at, one in past.beliefs.items()}
    for at, (log, variance, engines) in _observed(past, windows, noise).items():
        mean, spread = log / engines, variance / engines**2
        known = beliefs.get(at)
        if known is None:
            beliefs[at] = Belief(mean, spread, now, 1)
            continue
        weight = known.variance / (known.variance + spread)
        log = known.log + weight * (mean - known.log)
        beliefs[at] = Belief(log, (1 - weight) * known.variance, now, known.windows + 1)
    return replace(past, beliefs=beliefs)


def policy(state: Verified) -> VerificationPolicy:
    """How the engines are to verify."""
    arm = state.arm
    if arm is None:
        return VerificationPolicy(mode=Verification.ALL)
    draft, verify = state.curves if arm.priced and state.curves else ((), ())
    return VerificationPolicy(mode=arm.mode, cap=arm.cap, draft_costs=draft, verify_costs=verify)


def starved(windows: Mapping[str, Iterable[CostCell]]) -> bool:
    """Whether drafts were paid for under AV while almost nothing came of them."""
    request_steps = emitted = 0
    for window in windows.values():
        for cell in window:
            if cell.verification is not Verification.ALL and cell.k_drafted:
                request_steps += cell.request_steps
                emitted += cell.emitted
    return request_steps >= STARVED_REQUEST_STEPS and emitted < STARVED_LENGTH * request_steps


def _observed(
    state: Verified, windows: Mapping[str, Iterable[CostCell]], noise: float
) -> dict[tuple[int, Arm], tuple[float, float, int]]:
    """By load and arm: sum over engines of the log goodput and of its variance, and how many engines."""
    found: dict[tuple[int, Arm], tuple[float, float, int]] = {}
    for window in windows.values():
        sums: dict[tuple[int, Arm], list[float]] = {}
        for cell in window:
            kept = None if cell.probe or not cell.emitted else robust_mean(cell)
            if kept is None:
                continue
            mean, _, steps = kept
            arm = Arm(cell.verification, cell.k_drafted)
            if cell.verification is not Verification.ALL:
                # Neither cap nor prices are in the cell: they are those of the arm in force.
                if state.arm is not None and state.arm[:2] == arm[:2]:
                    arm = state.arm
                elif cell.verification is Verification.CAPPED:
                    continue
            total = sums.setdefault((cell.load, arm), [0.0, 0.0, 0.0])
            total[0] += mean * steps
            total[1] += cell.emitted * steps / cell.steps
            total[2] += cell.request_steps * steps / cell.steps
        for (load, arm), (seconds, tokens, request_steps) in sums.items():
            if request_steps < MIN_REQUEST_STEPS:
                continue
            length = min(max(tokens / request_steps, 1.0), arm.k + 1.0)
            scatter = CLUSTERING * (length - 1) * (arm.k + 1 - length) / 2 / length**2
            log, variance, count = found.get((load, arm), (0.0, 0.0, 0))
            variance += noise + scatter / request_steps
            found[load, arm] = (log + math.log(tokens / seconds), variance, count + 1)
    return found
