"""One pass of the tuner: a chain of small pure links, each of which adds to the state.

who answers -> learn -> which load -> decide each observed load -> verification, guards -> table -> bursts -> policy ->
what to tell. A link that fails is left out of the pass and named in `Step.errors`; the others go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
    solve,
    tell,
    warm,
)
from paceline_operator.tuning.engines import (
    LARGEST_GENERATION,
    Fleet,
    graphs,
    is_silent,
    push,
    sort,
    verifications,
)
from paceline_operator.tuning.goodput import Board, board, view
from paceline_operator.tuning.intake import News
from paceline_operator.tuning.load import Load
from paceline_operator.tuning.model import Decision, Engine, Memory, Settings, Step
from paceline_operator.tuning.moves import Decided, Move
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
    state = amended(state, cost=cost.unfolded(state.cost), now=now, silent=silent, passes=state.passes + 1)
    state = warm.warmed(settings, state)
    cursors = {name: cursor for name, cursor in memory.cursors.items() if name in state.read}
    if not fleet.answering and not fleet.holdouts:
        return tell.step(settings, amended(state, load=Load()), fleet, cursors)
    errors: list[str] = []
    state = intake.present(settings, state, fleet, seconds)
    modes = verifications(fleet)
    learnt = partial(intake.learn, settings, state, fleet, modes, seconds)
    state, news = _guarded(errors, "learn", (state, News()), learnt)
    state = _guarded(errors, "compare", state, lambda: intake.compare(state, news, seconds))
    if modes:
        state = _guarded(errors, "verify", state, lambda: intake.verify(state, news, seconds))
    lengths = acceptance.lengths(state.acceptance)
    scores = board(lengths, state.cost, state.direct, cost.measured(state.cost))
    state = _guarded(errors, "account", state, lambda: here.booked(state, scores, news, seconds))
    table = state.table
    made: dict[int, Move] = {}
    state, made = _guarded(errors, "decide", (state, made), lambda: _decide(settings, state, scores, fleet, news))
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


def _decide(
    settings: Settings, state: TunerState, scores: Board, fleet: Fleet, news: News
) -> tuple[TunerState, dict[int, Move]]:
    """Latch, confirm and move the observed loads."""
    decided: dict[int, Decided] = {**state.decided}
    made: dict[int, Move] = {}
    # Another traffic is another question.
    held = {load: (state.now if news.turned else until, span) for load, (until, span) in state.held.items()}
    for load, known in zip(scores.loads, scores.known, strict=True):
        if load not in decided and known.all():
            decided[load] = moves.first(scores.at(load), state.auto[load], state.now)
    if news.learnt and decided:
        stirred = _stirred(settings, decided, scores, news.turned)
        for load in stirred:
            if load in held and state.now < held[load][0]:
                continue
            earlier = state.base[load] != settings.boot_table[load]
            at = scores.at(load)
            bounds = solve.between({other: one.k for other, one in decided.items()}, load)
            decided[load], move = moves.advance(decided[load], at, settings, earlier, state.now, news.turned, bounds)
            if move is not None:
                made[load] = move
        for load in state.load.shares:
            found = moves.below_baseline(decided.get(load), state.baseline.to_k0.get(load), load, state.now)
            if found is not None and 0 in settings.ladder:
                decided[load], made[load] = found
                _, span = held.get(load, (0.0, moves.HELD_SECONDS / 2))
                held[load] = (state.now + 2 * span, min(2 * span, moves.LONGEST_HELD_SECONDS))
    auto = state.auto
    if made or len(decided) > len(state.decided):
        base = _expected(state, graphs(fleet))
        auto = solve.table(base, {load: at.k for load, at in decided.items()}, state.cost.loads)
        return amended(state, decided=decided, auto=auto, held=held), made
    return amended(state, decided=decided, held=held), made


def _expected(state: TunerState, graphed: Mapping[int, int]) -> tuple[int, ...]:
    """The table before decisions: where acceptance is known, the k with the best goodput by borrowed cost at each load
    that was never seen. Past the last full graph (`graphed`: k -> requests) cost jumps, which nothing borrowed tells:
    such a k is no guess."""
    lengths, seen = acceptance.lengths(state.acceptance), set(cost.measured(state.cost))
    loads = [load for load in state.cost.loads if load not in seen]
    if not loads or not lengths.known.all() or len(seen) < 2:
        return state.base
    scores = board(lengths, state.cost, state.direct, loads)
    log = scores.log_goodput.copy()
    if graphed:
        most = np.asarray([graphed.get(k, 0) for k in scores.ladder])
        missed = np.asarray(loads)[:, None] > most[None, :]
        log[missed & ~missed.all(axis=1, keepdims=True)] = -np.inf
    best = [scores.ladder[row] for row in log.argmax(axis=1).tolist()]
    return solve.overlaid(state.base, dict(zip(loads, best, strict=True)), state.cost.loads)


def _stirred(settings: Settings, decided: Mapping[int, Decided], scores: Board, turned: bool) -> list[int]:
    """Decided loads that a window may move: the others need no closer look."""
    loads = [load for load in scores.loads if load in decided]
    if turned or settings.tpot_limit_seconds is not None:
        return loads
    stirred = scores.stirred({load: decided[load].k for load in loads}, solve.LEAST_ERRORS)
    return [
        load
        for load in loads
        if load in stirred or decided[load].pending[1] or decided[load].windows <= moves.FIRST_WINDOWS
    ]


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
        decision = Decision(reason, message, load, was_k, k, generation, state.views.get(load), mode)
        return amended(state, in_force=(load, k), moving=(-1, 0)), (decision,)
    if k == was_k:
        return amended(state, in_force=(load, k), moving=(-1, 0)), ()
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
    evidence = None if manual else state.views.get(load)
    decision = Decision(reason, message, load, was_k, k, generation, evidence)
    return amended(state, in_force=(load, k), moving=(-1, 0)), (decision,)


def _viewed(state: TunerState, scores: Board, lengths: acceptance.Lengths, *, due: bool) -> TunerState:
    """What is known, for people: made anew where the table or the measurements changed, and now and then where they
    are of the load that is there."""
    views, shown = dict(state.views), dict(state.shown)
    for row, load in enumerate(scores.loads):
        log, ks, there = scores.log_goodput[row], (state.table[load], state.auto[load]), load in state.load.shares
        past = views.get(load)
        if past is None or (past.k, past.recommended_k, past.observed) != (*ks, load in state.decided):
            stale = True
        elif there:
            stale = due or not past.observed or state.passes % VIEW_PASSES == 0
        else:
            stale = due and bool((np.abs(log - shown[load]) > VIEW_CHANGE).any())
        if stale:
            shown[load] = log
            views[load] = view(scores.at(load), state.acceptance, lengths, *ks, load in state.decided)
    return amended(state, views=dict(sorted(views.items())), shown=shown)
