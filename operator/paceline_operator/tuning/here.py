"""The links of a pass that are about the load that is there: how drafts are verified, the time to first token, bursts
and what they cost."""

from __future__ import annotations

import math
from statistics import median_high

from paceline_engine.protocol import Probe, Verification, VerificationPolicy
from paceline_operator.api.speculation import AdaptiveVerification
from paceline_operator.api.tuning import TuningMode
from paceline_operator.tuning import account, arms, baseline, explore, guard, look, parts, verification
from paceline_operator.tuning.engines import Fleet, repriceable, same
from paceline_operator.tuning.goodput import Board, Scores
from paceline_operator.tuning.intake import News
from paceline_operator.tuning.model import Settings
from paceline_operator.tuning.state import TunerState
from paceline_operator.tuning.timing import places
from paceline_operator.tuning.values import amended

PRESENT_SHARE = 0.15
"""Share of a pass's decode time from which a load bucket counts as being there."""
JUDGED_SHARE, STAYING_SHARE, MOST_SHARE = 0.4, 0.2, 2 / 3
"""From which adaptive verification is judged at it, and with which it stays so as long as no other has most of the
time: requests that come and go at the edge of two buckets are in both in every pass."""
PROBE_PATIENCE, PROBE_PATIENCE_FEWER = 6, 18
"""Passes that must wish for other bursts before they are pushed, and for fewer: a push is a write, and bursts of what
may be better cost next to nothing, so that fewer can wait."""


def verified(
    settings: Settings, state: TunerState, scores: Board, fleet: Fleet, news: News, modes: frozenset[Verification]
) -> TunerState:
    """Adaptive verification at the present load, where every live engine can switch it."""
    load = state.load.present
    off = settings.adaptive_verification is AdaptiveVerification.DISABLED or settings.mode is not TuningMode.AUTO
    if off or Verification.ADAPTIVE not in modes or Verification.ALL not in modes:
        idle = state.verified.arm is None and state.verified.trial is None and not state.verified.message
        return state if idle else amended(state, verified=amended(state.verified, arm=None, trial=None, message=""))
    windows = {name: news.windows[name] for name in news.current}
    states = [engine.state.adaptive_verification for engine in fleet.live if engine.state is not None]
    starved = any(one is not None and one.starved for one in states) or arms.starved(windows)
    share = state.load.shares.get(load, 0.0) if load is not None else 0.0
    if share < MOST_SHARE and state.load.shares.get(state.verified.stable[0], 0.0) >= STAYING_SHARE:
        load = state.verified.stable[0]
    elif load is None or share < JUDGED_SHARE:
        return amended(state, verified=verification.unclear(state.verified, load))
    due = state.now >= state.verified.next_trial
    found = verification.Here(
        load=load,
        k=state.auto[load],
        observed=load in state.decided and not state.decided[load].pending[1] and not state.ttft.lowered,
        ceilings=_ceilings(state, scores.at(load)) if due and load in scores.loads else {},
        now=state.now,
        min_gain=settings.min_gain,
        interval=settings.interval_seconds,
        share=settings.probe_share,
        probing=settings.probing,
        trained=settings.method in verification.TRAINED_METHODS or load in _measured_adaptive(settings),
        starved=starved,
        capped=Verification.CAPPED in modes,
        curves=_curves(state, load) if due and repriceable(fleet) else None,
    )
    return amended(state, verified=verification.advance(state.verified, found))


def _curves(state: TunerState, load: int) -> arms.Curves | None:
    """Measured costs, to price adaptive verification by; None where their parts do not add up to what was measured."""
    found = parts.parts(state.cost)
    if found is None or found.error > parts.TRUSTED_ERROR:
        return None
    return parts.curves(state.cost, found, state.auto[load])


def _measured_adaptive(settings: Settings) -> tuple[int, ...]:
    return settings.profile.adaptive_loads if settings.profile else ()


def _ceilings(state: TunerState, scores: Scores) -> dict[int, float]:
    """Log goodput of each k > 0 if its drafts were verified for nothing."""
    found = parts.parts(state.cost)
    drafted = found.drafting(scores.requests) if found and found.error < parts.TRUSTED_ERROR else 0.0
    bare = math.exp(float(scores.log_step[-1] if scores.ladder[-1] == 0 else scores.log_step.min()))
    return {
        k: math.log(scores.requests) + float(length) - math.log(bare + drafted * k)
        for k, length, known in zip(scores.ladder, scores.log_length, scores.known, strict=True)
        if k and known
    }


def mode(state: TunerState, modes: frozenset[Verification], settings: Settings) -> VerificationPolicy | None:
    """How the engines are told to verify; None where they cannot be, or are left as they booted."""
    if not modes or settings.mode is not TuningMode.AUTO:
        return None
    if Verification.ALL not in modes and state.verified.arm is None:
        return None
    return arms.policy(state.verified)


def ttft(settings: Settings, state: TunerState, fleet: Fleet) -> TunerState:
    """The guard on the time to first token, by the median engine."""
    known = [engine.ttft_p95_seconds for engine in fleet.answering if engine.ttft_p95_seconds is not None]
    worst = median_high(known) if known else None
    return amended(
        state, ttft=guard.advance(state.ttft, worst, settings.ttft_limit_seconds, state.load.present, state.now)
    )


def booked(state: TunerState, scores: Board, news: News, seconds: float) -> TunerState:
    """What exploration of this pass cost."""
    columns = places(scores.ladder)
    goodput = {
        load: math.exp(min(float(scores.log_goodput[row, columns[k]]), 50.0))
        for row, load in enumerate(scores.loads)
        if load in state.load.shares and (k := state.table[load]) in columns
    }
    probe = state.policy.probe if state.policy else None
    settling = (probe.settle_steps + probe.burst_steps) / probe.burst_steps if probe else 1.0
    trial = state.verified.trial
    cells = [cell for name in news.current for cell in news.windows[name]]
    tried = (trial.arm.mode, trial.arm.k) if trial else None
    return amended(state, account=account.booked(state.account, cells, goodput, settling, tried, seconds))


def bursts(
    settings: Settings, state: TunerState, fleet: Fleet, scores: Board, news: News
) -> tuple[TunerState, Probe | None]:
    """The bursts to have in force: the pushed ones, unless others are wished for urgently or for long enough."""
    current = state.policy.probe if state.policy else None
    if not settings.probing:
        return state, None
    there = [load for load, share in state.load.shares.items() if share >= PRESENT_SHARE and load in scores.loads]
    if not there or not fleet.live:
        return state, current
    if state.verified.arm is not None or state.verified.trial is not None:
        # Bursts under adaptive verification teach nothing of the ks when all is verified.
        return amended(state, probe_wish=0), None
    found = [scores.at(load) for load in there]
    modes = state.offer.modes or ()
    present = [look.look(at, state.table[at.load], modes) for at in found]
    missing = {
        at.load: look.lacking(at, state.acceptance.since_change, state.quarantine, modes, one.known)
        for at, one in zip(found, present, strict=True)
    }
    waited, steps = dict(state.waited), news.steps()
    for load, ks in missing.items():
        bursts = steps.get(load, 0) / current.interval_steps if current else 0.0
        waited[load] = waited.get(load, 0.0) + bursts if ks else 0.0
    patience = explore.OBSERVING_BURSTS * len(settings.ladder)
    quarantine = look.quarantined(state.quarantine, present, settings.ladder, state.now)
    wish, pressing = explore.wish(
        present,
        {k for load, ks in missing.items() if waited[load] <= patience for k in ks},
        settings,
        explore.ages(state.cost, there, state.now),
        quarantine,
        state.now,
        explore.headroom(engine.samples for engine in fleet.live if engine.samples),
        current,
        any(baseline.is_thin(state.baseline.to_k0, load, state.table[load]) for load in there),
        sum(steps.get(load, 0) for load in there) / max(1, len(news.current)),
    )
    wished = state.probe_wish + 1 if not explore.equal(wish, current) else 0
    pushing = state.policy is None or not same(state.policy.table, state.table)
    taken = wish is None or current is None or pressing or pushing
    if wish is not None and current is not None and not taken:
        fewer = explore.share_of(wish) <= explore.share_of(current)
        taken = wished >= (PROBE_PATIENCE_FEWER if fewer else PROBE_PATIENCE)
    state = amended(state, waited=waited, quarantine=quarantine, probe_wish=0 if taken else wished)
    return state, wish if taken else current
