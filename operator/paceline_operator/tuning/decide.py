"""One pass of the tuner: a chain of small pure links, each of which adds to the state.

who answers -> learn -> which load -> decide each observed load -> verification, guards -> table -> bursts -> policy ->
what to tell. A link that fails is left out of the pass and named in `Step.errors`; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np

from paceline_engine.protocol import MAX_PROBE_SHARE, Verification, expand
from paceline_operator.api.conditions import Reason
from paceline_operator.api.engine import PluginInjection
from paceline_operator.api.runner import without_schedule
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.tuning import ProbingMode, TuningMode
from paceline_operator.tuning import (
    acceptance,
    baseline,
    cost,
    guard,
    here,
    intake,
    moves,
    settle,
    solve,
    tell,
    warm,
)
from paceline_operator.tuning.engines import (
    LARGEST_GENERATION,
    is_silent,
    offered,
    push,
    sort,
)
from paceline_operator.tuning.goodput import Board, board, view
from paceline_operator.tuning.intake import News
from paceline_operator.tuning.load import Load
from paceline_operator.tuning.model import BucketView, Decision, Engine, Memory, Settings, Step
from paceline_operator.tuning.moves import Move
from paceline_operator.tuning.prior import boot_table, ladder_of
from paceline_operator.tuning.state import Published, TunerState, fresh, key
from paceline_operator.tuning.values import amended

LONGEST_PAUSE_SECONDS = 3600.0
"""A longer pause between two passes (or a clock that jumped) ages the beliefs no further than this."""
PUBLISH_SECONDS = 60.0
VIEW_PASSES = 3
"""Passes after which the numbers of the load that is there are shown anew."""
VIEW_CHANGE = 0.025
"""Of log goodput, from which those of another load are."""
FAILED_LENGTH = 300
"""Of what is said of a link that failed."""

T = TypeVar("T")


def settings_of(spec: ServingSpec) -> Settings:
    """What `spec` asks of the tuner. Raises ValueError where the ladder is longer than maxNumSeqs."""
    tuning = spec.tuning
    ladder = ladder_of(spec)
    probing = tuning.probing.mode is ProbingMode.ENABLED or (
        tuning.probing.mode is ProbingMode.AUTO and tuning.mode is TuningMode.AUTO
    )
    rows = sorted((row.from_requests, row.k) for row in tuning.table or ())
    manual = expand(rows, spec.engine.max_num_seqs) if tuning.mode is TuningMode.MANUAL and rows else None
    unplugged = spec.engine.plugin.injection is PluginInjection.NONE
    tpot, ttft = spec.slo.tpot_milliseconds, spec.slo.ttft_p95_milliseconds
    return Settings(
        mode=tuning.mode,
        method=spec.speculation.method,
        ladder=ladder,
        max_num_seqs=spec.engine.max_num_seqs,
        # Without the plugin the command line alone can bring the user's table to the engine.
        boot_table=manual if manual and unplugged else boot_table(ladder, spec.engine.max_num_seqs),
        manual_table=manual,
        interval_seconds=float(tuning.interval_seconds),
        min_gain=tuning.min_gain_percent / 100,
        probing=probing and len(ladder) > 1,
        probe_share=min(tuning.probing.max_share_percent / 100, MAX_PROBE_SHARE),
        tpot_limit_seconds=tpot / 1000 if tpot is not None else None,
        ttft_limit_seconds=ttft / 1000 if ttft is not None else None,
        adaptive_verification=spec.speculation.adaptive_verification,
        fixed=without_schedule(spec),
    )


def step(settings: Settings, memory: Memory, engines: Sequence[Engine], *, known_generation: int, now: float) -> Step:
    """One pass over the engines of one serving.

    `known_generation` is the last generation that status knows of; the next one is above it and above every engine's.
    `now` is a monotonic time in seconds; where it goes back, no time has passed. Never raises for what engines answer.
    """
    past = memory.state if isinstance(memory.state, TunerState) and memory.state.key == key(settings) else None
    seconds = min(max(0.0, now - past.now), LONGEST_PAUSE_SECONDS) if past else 0.0
    before = past.silent if past else {}
    silent = {engine.name: before.get(engine.name, 0.0) + seconds for engine in engines if is_silent(engine)}
    known = known_generation if known_generation <= LARGEST_GENERATION else 0
    if past and past.policy:
        known = max(known, past.policy.generation)
    fleet = sort(settings, engines, silent, known)
    state = past or fresh(settings, fleet.live, now)
    state = amended(state, now=now, silent=silent, passes=state.passes + 1)
    state = warm.warmed(settings, state)
    cursors = {name: cursor for name, cursor in memory.cursors.items() if name in state.read}
    if not fleet.answering and not fleet.holdouts:
        return tell.step(settings, amended(state, load=Load()), fleet, cursors)
    errors: list[str] = []
    state = intake.present(settings, state, fleet, seconds)
    state = amended(state, offer=offered(state.offer, fleet))
    modes = (state.offer.modes if fleet.live else None) or frozenset()
    learnt = partial(intake.learn, settings, state, fleet, modes, seconds)
    state, news = _guarded(errors, "learn", (state, News()), learnt)
    if errors:
        state = amended(state, cost=cost.unfolded(state.cost))
    state = _guarded(errors, "compare", state, lambda: intake.compare(state, news, seconds))
    if modes:
        state = _guarded(errors, "verify", state, lambda: intake.verify(state, news, seconds))
    lengths = acceptance.lengths(state.acceptance)
    scores = board(lengths, state.cost, state.direct, cost.measured(state.cost))
    state = _guarded(errors, "account", state, lambda: here.booked(state, scores, news, seconds))
    table = state.table
    made: dict[int, Move] = {}
    state, made = _guarded(
        errors, "decide", (state, made), lambda: settle.settled(settings, state, scores, fleet, news)
    )
    state = _guarded(errors, "verification", state, lambda: here.verified(settings, state, scores, fleet, news, modes))
    state = _guarded(errors, "ttft", state, lambda: here.ttft(settings, state, fleet))
    state = _guarded(errors, "table", state, lambda: amended(state, table=_table(settings, state)))
    wanted = state.policy.probe if state.policy else None
    state, wanted = _guarded(
        errors, "bursts", (state, wanted), lambda: here.bursts(settings, state, fleet, scores, news)
    )
    policy, late = push(fleet, state.policy, state.table, wanted, here.mode(state, modes, settings), known)
    waiting = bool(late) and policy == state.policy
    state = amended(state, policy=policy, unacknowledged=state.unacknowledged + 1 if waiting else 0)
    changed = state.table != table
    due = state.published is None or not 0 <= now - state.published.at < PUBLISH_SECONDS
    state = _guarded(errors, "view", state, lambda: _viewed(state, scores, lengths, due=due or changed))
    decisions: tuple[Decision, ...] = ()
    state, decisions = _guarded(
        errors, "told", (state, decisions), lambda: _in_force(state, settings, made, changed, past)
    )
    to_k0 = baseline.ratio(state.baseline.to_k0, state.table, state.lately, one=True)
    to_off = baseline.ratio(state.baseline.to_no_drafter, state.table, state.lately)
    if due or decisions:
        published = Published(now, tuple(state.views.values()), to_k0, to_off, state.load.present)
        state = amended(state, published=published)
    both = (*fleet.answering, *fleet.holdouts)
    cursors.update({engine.name: engine.samples.cursor for engine in both if engine.samples})
    found = tell.Findings(late, decisions, to_k0, to_off, tuple(errors))
    return tell.step(settings, state, fleet, cursors, found)


def _guarded(errors: list[str], name: str, otherwise: T, link: Callable[[], T]) -> T:
    """What `link` gives, or `otherwise` where it fails: one mistake must not stop a fleet from being tuned."""
    try:
        return link()
    except Exception as error:
        errors.append(f"{name}: {type(error).__name__}: {error}"[:FAILED_LENGTH])
        return otherwise


def _table(settings: Settings, state: TunerState) -> tuple[int, ...]:
    """The dense table that follows from what is decided, verified and guarded."""
    if settings.mode is TuningMode.MANUAL:
        return settings.manual_table or state.table
    if settings.mode is TuningMode.OBSERVE:
        return state.table
    verified, rows = state.verified, dict[int, int]()
    if verified.arm is not None:
        rows = {load: arm.k for load, arm in verified.chosen.items()}
    if verified.trial is not None:
        rows[verified.trial.load] = verified.trial.arm.k
    table = solve.overlaid(state.auto, rows, state.cost.loads) if rows else state.auto
    return guard.applied(table, settings.ladder, state.ttft)


def _in_force(
    state: TunerState, settings: Settings, made: Mapping[int, Move], changed: bool, past: TunerState | None
) -> tuple[TunerState, tuple[Decision, ...]]:
    """A decision where the k in force changed: at once with the table's entry, in two passes with the load."""
    load = state.load.present
    if load is None or state.verified.trial is not None:
        return state, ()
    k = state.table[load]
    was_load, was_k = state.in_force or (load, k)
    generation = state.policy.generation if state.policy else 0
    verified = state.verified
    if verified.message:
        mode = verified.arm.mode if verified.arm else Verification.ALL
        reason, message = Reason.ADAPTIVE_VERIFICATION, verified.message
        decision = Decision(reason, message, load, was_k, k, generation, _evidence(state, load), mode)
        return amended(state, in_force=(load, k), moving=(-1, 0)), (decision,)
    if k == was_k:
        told = state.in_force == (load, k) and state.moving == (-1, 0)
        return state if told else amended(state, in_force=(load, k), moving=(-1, 0)), ()
    count = state.moving[1] + 1 if state.moving[0] == k else 1
    manual = settings.mode is TuningMode.MANUAL and changed
    guarded = past is not None and past.ttft.lowered != state.ttft.lowered and changed
    move = None
    if settings.mode is TuningMode.AUTO and changed and made:
        # An undecided load follows the decided ones beside it: then theirs is the reason.
        move = made[min(made, key=lambda other: abs(other - load))]
    if move is None and not manual and not guarded and count < solve.CONFIRMATIONS:
        return amended(state, moving=(k, count)), ()
    reason, message = Reason.LOAD, moves.followed(state.views.get(load), was_load, load, was_k, k)
    if manual:
        reason, message = Reason.MANUAL, f"k {was_k} → {k} at {load} requests: tuning.table of mode Manual"
    elif guarded:
        reason, message = Reason.TTFT_LIMIT, moves.guarded(state.ttft, settings.ttft_limit_seconds, load, was_k, k)
    elif move is not None:
        reason, message = move.reason, move.message if move.load == load else moves.dragged(move, load, was_k, k)
    evidence = None if manual else _evidence(state, load)
    decision = Decision(reason, message, load, was_k, k, generation, evidence)
    return amended(state, in_force=(load, k), moving=(-1, 0)), (decision,)


def _evidence(state: TunerState, load: int) -> BucketView | None:
    """What was known at `load`, worked out once and for all."""
    found = state.views.get(load)
    return found and replace(found, candidates=tuple(found.candidates))


def _viewed(state: TunerState, scores: Board, lengths: acceptance.Lengths, *, due: bool) -> TunerState:
    """What is known, for people: made anew where the table or the measurements changed, and now and then where they
    are of the load that is there."""
    views, shown = dict(state.views), dict(state.shown)
    for row, load in enumerate(scores.loads):
        k, recommended, observed = state.table[load], state.auto[load], load in state.decided
        past = views.get(load)
        if past is None or past.k != k or past.recommended_k != recommended or past.observed != observed:
            stale = True
        elif load in state.load.shares:
            stale = due or not observed or state.passes % VIEW_PASSES == 0
        else:
            stale = due and bool((np.abs(scores.log_goodput[row] - shown[load]) > VIEW_CHANGE).any())
        if stale:
            shown[load] = scores.log_goodput[row]
            views[load] = view(scores.at(load), state.acceptance, lengths, k, recommended, observed)
    if len(views) > len(state.views):
        views = dict(sorted(views.items()))
    return amended(state, views=views, shown=shown)
