"""Whether adaptive verification (AV) pays at the present load: all drafts verified, as many as pay, or a capped number.

AV is one mode per engine at a time, so it is chosen for the load that is there. It trims verification, never drafting,
and gains from requests that differ, which no model of the mean can tell: so its arms (mode, k) are judged by tokens
over seconds of their own steps, in short trials at an observed load. The prior is off (vllm#52362: 5 to 8 % slower up
to 32 requests, faster from 64 on), but for a trained confidence head, which starts on from 48 requests.
Over 300 lines because an arm, its belief, its trial and its rest are read together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from paceline_engine.protocol import Cost, CostCell, Verification, VerificationPolicy
from paceline_operator.api.speculation import Method
from paceline_operator.tuning.acceptance import CLUSTERING, MIN_REQUEST_STEPS
from paceline_operator.tuning.timing import robust_mean

TRAINED_METHODS = frozenset({Method.DSPARK})
"""Their drafts come with a trained confidence head; the others' survival is estimated while they run."""
LOWEST_LOAD, TRAINED_LOAD = 24, 48
"""Requests below which an estimate that is not trained is not tried, and from which a trained one starts on."""
TRIAL_SECONDS = 5.0
MIN_WINDOWS, ENOUGH_WINDOWS = 3, 8
"""Windows before an arm may win, and after which one that did not is left to rest."""
FIRST_SHARE = 0.25
"""Of time, that trials may take while an arm has fewer than its first windows."""
REST_SECONDS, LONGEST_REST_SECONDS = 600.0, 4 * 3600.0
"""Of an arm that lost; doubled each time."""
STARVED_REST_SECONDS = 3600.0
REVIEW_SECONDS = 300.0
"""While AV is on, after which verifying all is tried again."""
STANDARD_ERRORS = 2.0
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
    started: frozenset[int] = frozenset()
    """Loads at which the prior has had its say."""
    message: str = ""
    curves: Curves | None = None
    """Of the arm in force, where it is priced; as they were when its trial began."""


@dataclass(frozen=True)
class Here:
    """The present load as the other links see it."""

    load: int
    k: int
    """That is best when all is verified."""
    observed: bool
    ceilings: Mapping[int, float]
    """Log goodput of each k > 0 if its drafts were verified for nothing: no arm of AV can be better."""
    now: float
    min_gain: float
    interval: float
    share: float
    """Of time, that trials may take."""
    probing: bool
    trained: bool
    starved: bool
    capped: bool
    """The engines can bound what is verified."""
    curves: Curves | None = None
    """Measured costs, where they are known and the engines can take them."""


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


def advance(past: Verified, here: Here) -> Verified:
    """One pass: leave a starved estimate, end a trial, choose, and perhaps begin a trial."""
    passes = past.stable[1] + 1 if past.stable[0] == here.load else 1
    state = replace(past, stable=(here.load, passes), message="")
    if here.starved:
        # What the estimate gave before it starved, or gives now, tells nothing of another one.
        of_all = {at: one for at, one in state.beliefs.items() if at[1].mode is Verification.ALL}
        state = replace(state, beliefs=of_all)
        if state.arm is not None:
            return _left(state, here)
    if state.trial is not None:
        trial = state.trial
        if trial.load == here.load and trial.left > 1:
            return replace(state, trial=replace(trial, left=trial.left - 1))
        state = replace(state, trial=None)
    if here.observed:
        state = _started(state, here) if here.load not in state.started else state
        state = _chosen(state, here)
    target = state.chosen.get(here.load)
    if state.arm != target and (past.trial is not None or state.message or passes > 1):
        state = replace(state, arm=target)
    return _tried(state, here) if here.observed and here.probing and passes > 1 else state


def unclear(past: Verified, load: int | None) -> Verified:
    """A pass in which no load was there for most of the time: nothing is judged and nothing tried, but a trial ends in
    time, and an arm is left where it is not the one of the load that was there most."""
    passes = past.stable[1] + 1 if past.stable[0] == load else 1
    state = replace(past, stable=(-1 if load is None else load, passes), message="")
    if state.trial is not None:
        if state.trial.left > 1:
            return replace(state, trial=replace(state.trial, left=state.trial.left - 1))
        load, passes = state.trial.load if load is None else load, 2
    elif load is None:
        return state
    return replace(state, trial=None, arm=state.chosen.get(load) if passes > 1 else state.arm)


def _left(state: Verified, here: Here) -> Verified:
    return replace(
        state,
        chosen={},
        arm=None,
        trial=None,
        left_until=here.now + STARVED_REST_SECONDS,
        message=f"adaptive verification off at {here.load} requests: its estimate admits almost nothing while drafts "
        f"are paid for; it is left for {STARVED_REST_SECONDS / 3600:.0f} h",
    )


def _started(state: Verified, here: Here) -> Verified:
    """The prior, once per load: on from 48 requests with a trained head."""
    if here.now < state.left_until:
        return state
    state = replace(state, started=state.started | {here.load})
    if not here.trained or here.load < TRAINED_LOAD or here.load in state.chosen or here.k == 0:
        return state
    message = f"adaptive verification on at {here.load} requests: the draft has a trained confidence head"
    arm = Arm(Verification.ADAPTIVE, here.k)
    return replace(state, chosen={**state.chosen, here.load: arm}, message=message)


def _chosen(state: Verified, here: Here) -> Verified:
    """The best arm of this load by what was measured; the one in force stays within the tie band."""
    everything = Arm(Verification.ALL, here.k)
    incumbent = state.chosen.get(here.load)
    base = state.beliefs.get((here.load, incumbent or everything))
    if base is None:
        return state
    resting, best, won = dict(state.resting), incumbent, 0.0
    for (load, arm), found in state.beliefs.items():
        if load != here.load or arm == (incumbent or everything):
            continue
        if arm.mode is Verification.ALL and arm != everything:
            continue
        if arm != everything and here.now < resting.get((load, arm), (0.0, 0.0))[0]:
            continue
        gain = found.log - base.log
        band = max(math.log1p(here.min_gain), STANDARD_ERRORS * math.sqrt(found.variance + base.variance))
        if gain > max(band, won) and (found.windows >= MIN_WINDOWS or arm == everything):
            best, won = (None if arm == everything else arm), gain
        elif found.seen >= here.now and (gain < -band or found.windows % ENOUGH_WINDOWS == 0):
            _, span = resting.get((load, arm), (0.0, REST_SECONDS / 2))
            span = min(2 * span, LONGEST_REST_SECONDS)
            resting[load, arm] = (here.now + span, span)
    state = replace(state, resting=resting)
    if best == incumbent:
        return state
    chosen = {load: arm for load, arm in state.chosen.items() if load != here.load}
    if best is not None:
        chosen[here.load] = best
    new = state.beliefs[here.load, best or everything]
    return replace(state, chosen=chosen, message=_sentence(here, best, new, incumbent or everything, base))


def _tried(state: Verified, here: Here) -> Verified:
    """Perhaps a trial of an arm that may be better."""
    if here.now < max(state.next_trial, state.left_until) or state.trial is not None or state.message:
        return state
    everything = Arm(Verification.ALL, here.k)
    incumbent = state.chosen.get(here.load)
    known = state.beliefs.get((here.load, incumbent or everything))
    if known is None:
        return state
    floor = known.log + math.log1p(here.min_gain)
    arms = _arms(here) if here.trained or here.load >= LOWEST_LOAD else []
    arms = [arm for arm in arms if arm != incumbent and here.ceilings.get(arm.k, 0.0) > floor]
    if incumbent is not None:
        past = state.beliefs.get((here.load, everything))
        arms = [everything] * (past is None or here.now - past.seen > REVIEW_SECONDS) + arms
    awake = (arm for arm in arms if state.resting.get((here.load, arm), (0.0, 0.0))[0] <= here.now)
    arm = next(awake, None)
    if arm is None:
        return state
    passes = max(1, math.ceil(TRIAL_SECONDS / here.interval))
    found = state.beliefs.get((here.load, arm))
    share = here.share if found and found.windows >= MIN_WINDOWS else max(here.share, FIRST_SHARE)
    return replace(
        state,
        trial=Trial(here.load, arm, passes),
        arm=None if arm.mode is Verification.ALL else arm,
        curves=here.curves if arm.priced else state.curves,
        next_trial=here.now + passes * here.interval / share,
    )


def _arms(here: Here) -> list[Arm]:
    """The arms of AV that may pay, the cheapest to try first."""
    ks = [k for k in here.ceilings if k > 0]
    if not ks:
        return []
    most = max(ks)
    arms = [Arm(Verification.ADAPTIVE, here.k)] if here.k else []
    if most != here.k:
        arms += [Arm(Verification.CAPPED, most, here.load * here.k)] if here.k and here.capped else []
        arms += [Arm(Verification.ADAPTIVE, most)]
    if here.curves is not None:
        arms += [arm._replace(priced=True) for arm in arms if arm.mode is Verification.ADAPTIVE]
    return arms


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


def _sentence(here: Here, best: Arm | None, new: Belief, was: Arm, old: Belief) -> str:
    said = f"{_told(best or Arm(Verification.ALL, here.k))} in place of {_told(was)} at {here.load} requests"
    gain = math.expm1(new.log - old.log)
    error = math.sqrt(new.variance + old.variance)
    band = max(here.min_gain, math.expm1(STANDARD_ERRORS * error))
    rates = f"{math.exp(new.log):.0f} tok/s against {math.exp(old.log):.0f}"
    return f"{said}: {rates} ({gain:+.0%}, tie band {band:.1%}), {new.windows} windows"


def _told(arm: Arm) -> str:
    if arm.mode is Verification.ALL:
        return f"all drafts of k {arm.k} verified"
    if arm.mode is Verification.CAPPED:
        return f"adaptive verification of k {arm.k}, at most {arm.cap} tokens a step,"
    return f"adaptive verification of k {arm.k}{', by measured costs,' if arm.priced else ''}"
