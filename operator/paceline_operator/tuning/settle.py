"""The deciding link: latch the loads that are observed, confirm and move their ks, and guess at loads never seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from paceline_operator.tuning import acceptance, cost, look, moves, solve
from paceline_operator.tuning.engines import Fleet, graphs
from paceline_operator.tuning.goodput import Board, board
from paceline_operator.tuning.intake import News
from paceline_operator.tuning.model import Settings
from paceline_operator.tuning.moves import Decided, Move
from paceline_operator.tuning.state import TunerState
from paceline_operator.tuning.values import amended


def settled(
    settings: Settings, state: TunerState, scores: Board, fleet: Fleet, news: News
) -> tuple[TunerState, dict[int, Move]]:
    """Latch, confirm and move the observed loads."""
    decided: dict[int, Decided] = {**state.decided}
    made: dict[int, Move] = {}
    modes = state.offer.modes or ()
    # Another traffic is another question.
    held = {load: (state.now if news.turned else until, span) for load, (until, span) in state.held.items()}
    for row, load in enumerate(scores.loads):
        if load not in decided and (scores.known[row].all() or all(look.settled(scores.at(load), modes))):
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
    auto, leaning = state.auto, {**state.leaning, **_better(settings, state, scores, decided)}
    if made or leaning != state.leaning or len(decided) > len(state.decided):
        base = _expected(state, graphs(fleet))
        auto = solve.table(base, {**leaning, **{load: at.k for load, at in decided.items()}}, state.cost.loads)
        return amended(state, decided=decided, leaning=leaning, auto=auto, held=held), made
    return amended(state, decided=decided, held=held), made


def _better(settings: Settings, state: TunerState, scores: Board, decided: Mapping[int, Decided]) -> dict[int, int]:
    """At loads that are there and not observed yet, a k that is known and better by far than the one in force: what the
    others lack is no reason to stay."""
    found = dict[int, int]()
    for load in state.load.shares:
        if load in decided or load not in scores.loads:
            continue
        limit = settings.tpot_limit_seconds
        choice = solve.choose(scores.at(load), state.auto[load], settings.min_gain, limit_seconds=limit)
        least = moves.SURE_BANDS * max(choice.band, settings.min_gain)
        if choice.k != state.auto[load] and choice.gain > least and not choice.limited:
            found[load] = choice.k
    return found


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
    allowance = solve.off_allowance(settings.min_gain)
    stirred = scores.stirred({load: decided[load].k for load in loads}, solve.LEAST_ERRORS, allowance)
    return [
        load
        for load in loads
        if load in stirred or decided[load].pending[1] or decided[load].windows <= moves.FIRST_WINDOWS
    ]
