"""Whether adaptive verification (AV) pays at the present load: all drafts verified, as many as pay, or a capped number.

AV is one mode per engine at a time, so it is chosen for the load that is there. It trims verification, never drafting,
and gains from requests that differ, which no model of the mean can tell: so its arms (mode, k) are judged by tokens
over seconds of their own steps, in short trials at an observed load. The prior is off (vllm#52362: 5 to 8 % slower up
to 32 requests, faster from 64 on), but for a trained confidence head, which starts on from 48 requests.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from paceline_engine.protocol import Verification
from paceline_operator.api.speculation import Method
from paceline_operator.tuning.arms import Arm, Belief, Curves, Trial, Verified

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
    state = _followed(state, here.load, at_once=past.trial is not None or bool(state.message))
    return _tried(state, here) if here.observed and here.probing and passes > 1 else state


def unclear(past: Verified, load: int | None) -> Verified:
    """A pass in which no load was there for most of the time: nothing is judged and nothing tried, but a trial ends in
    time, and an arm is left where it is not the one of the load that was there most."""
    passes = past.stable[1] + 1 if past.stable[0] == load else 1
    state = replace(past, stable=(-1 if load is None else load, passes), message="")
    if state.trial is not None:
        if state.trial.left > 1:
            return replace(state, trial=replace(state.trial, left=state.trial.left - 1))
        return _followed(replace(state, trial=None), state.trial.load if load is None else load, at_once=True)
    return state if load is None else _followed(state, load, at_once=False)


def _followed(state: Verified, load: int, *, at_once: bool) -> Verified:
    """The arm of `load` in force: at once, or where another one was in two passes, whatever loads these had."""
    target = state.chosen.get(load)
    astray = 0 if state.arm == target else state.astray + 1
    return replace(state, arm=target, astray=0) if at_once or astray > 1 else replace(state, astray=astray)


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
