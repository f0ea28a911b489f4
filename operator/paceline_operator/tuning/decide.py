"""One pass of the tuner: a chain of small pure links, each of which adds to the state.

who answers -> learn -> which load -> decide each observed load -> table -> bursts -> policy -> what to tell
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from paceline_engine.protocol import MAX_PROBE_SHARE, Probe, Samples, expand
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import Method, ProbingMode, ServingSpec, TuningMode
from paceline_operator.tuning import acceptance, cost, explore, moves, solve, tell
from paceline_operator.tuning.baseline import ratio_to_k0
from paceline_operator.tuning.engines import LARGEST_GENERATION, Fleet, is_silent, push, same, sort
from paceline_operator.tuning.goodput import Scores, score, view
from paceline_operator.tuning.load import Load, observe
from paceline_operator.tuning.model import Decision, Engine, Memory, Settings, Step
from paceline_operator.tuning.moves import Decided, Move
from paceline_operator.tuning.prior import boot_table, ladder_of
from paceline_operator.tuning.state import Published, Read, TunerState, fresh, key

LATELY_HALF_LIFE_SECONDS = 60.0
FORGOTTEN_WEIGHT = 0.3
"""Of a load in the recent past, where a pass that was all there counts 1."""
LONGEST_PAUSE_SECONDS = 3600.0
"""A longer pause between two passes (or a clock that jumped) ages the beliefs no further than this."""
PRESENT_SHARE = 0.15
"""Share of a pass's decode time from which a load bucket counts as being there."""
PROBE_PATIENCE, PROBE_PATIENCE_FEWER = 6, 18
"""Passes that must wish for other bursts before they are pushed, and for fewer: a push is a write, and bursts of what
may be better cost next to nothing, so that fewer can wait."""
PUBLISH_SECONDS = 60.0
REMEMBERED_SECONDS = 3600.0
"""How long an engine that is gone keeps its place: one that comes back is not counted from its boot again."""
OVERLAP_SECONDS = 0.5
"""By which a window may begin before the one before it ended: rounding, not a window read twice."""
LOOKUP_METHODS = frozenset({Method.NGRAM, Method.NGRAM_GPU, Method.SUFFIX})
"""These draft only where they find a match, so that another traffic is another step cost too."""

ScoresByLoad = Mapping[int, Scores]


def settings_of(spec: ServingSpec) -> Settings:
    """What `spec` asks of the tuner. Raises ValueError where the ladder is longer than maxNumSeqs."""
    tuning = spec.tuning
    ladder = ladder_of(spec)
    probing = tuning.probing.mode is ProbingMode.ENABLED or (
        tuning.probing.mode is ProbingMode.AUTO and tuning.mode is TuningMode.AUTO
    )
    rows = sorted((row.from_requests, row.k) for row in tuning.table or ())
    limit = spec.slo.tpot_milliseconds
    return Settings(
        mode=tuning.mode,
        method=spec.speculation.method,
        ladder=ladder,
        max_num_seqs=spec.engine.max_num_seqs,
        boot_table=boot_table(ladder, spec.engine.max_num_seqs),
        manual_table=expand(rows, spec.engine.max_num_seqs) if tuning.mode is TuningMode.MANUAL and rows else None,
        interval_seconds=float(tuning.interval_seconds),
        min_gain=tuning.min_gain_percent / 100,
        probing=probing and len(ladder) > 1,
        probe_share=min(tuning.probing.max_share_percent / 100, MAX_PROBE_SHARE),
        tpot_limit_seconds=limit / 1000 if limit is not None else None,
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
    state = replace(state, now=now, silent=silent, passes=state.passes + 1)
    cursors = {name: cursor for name, cursor in memory.cursors.items() if name in state.read}
    if not fleet.answering:
        return tell.step(settings, replace(state, load=Load()), fleet, cursors)
    state, learnt, turned = _learn(settings, state, fleet, seconds)
    due = state.published is None or not 0 <= now - state.published.at < PUBLISH_SECONDS
    lengths = acceptance.lengths(state.acceptance)
    scores = {load: score(lengths, state.cost, load) for load in _in_question(state, everywhere=turned or due)}
    table = state.table
    state, made = _decide(settings, state, scores, learnt, turned)
    state, wanted = _bursts(settings, state, fleet, scores)
    policy, late = push(fleet, state.policy, state.table, wanted, known)
    waiting = bool(late) and policy == state.policy
    state = replace(state, policy=policy, unacknowledged=state.unacknowledged + 1 if waiting else 0)
    changed = state.table != table
    state = _viewed(state, scores, lengths, everywhere=due or changed)
    state, decisions = _in_force(state, settings, made, changed)
    ratio = ratio_to_k0(scores.values(), state.table, state.lately)
    if due or decisions:
        published = Published(now, tuple(state.views.values()), ratio, state.load.present)
        state = replace(state, published=published)
    cursors.update({engine.name: engine.samples.cursor for engine in fleet.answering if engine.samples})
    return tell.step(settings, state, fleet, cursors, tell.Findings(late, decisions, ratio))


def _in_question(state: TunerState, *, everywhere: bool) -> list[int]:
    """Load buckets to score in this pass: those that are or were there just now, those about to move, and one other."""
    loads = cost.measured(state.cost)
    if everywhere or not loads:
        return list(loads)
    there = {load for load, weight in state.lately.items() if weight > FORGOTTEN_WEIGHT}
    moving = {load for load in loads if load not in state.decided or state.decided[load].pending[1]}
    return [load for load in loads if load in there or load in moving or load == loads[state.passes % len(loads)]]


def _learn(settings: Settings, state: TunerState, fleet: Fleet, seconds: float) -> tuple[TunerState, bool, bool]:
    """Beliefs with the samples nobody has seen yet; whether there were any, and whether traffic or cost changed."""
    news: dict[str, Samples] = {}
    read = {name: known for name, known in state.read.items() if state.now - known.seen < REMEMBERED_SECONDS}
    for engine in fleet.answering:
        samples = engine.samples
        assert samples is not None
        known = read.get(engine.name)
        # The same process since boot once more, or a window that overlaps what was read, would count twice.
        again = known is not None and known.boot_id == samples.boot_id
        if not again or (not samples.reset and known and samples.from_seconds >= known.uptime - OVERLAP_SECONDS):
            news[engine.name] = samples
        read[engine.name] = Read(samples.boot_id, samples.to_seconds, state.now)
    answers = (samples for engine in fleet.answering if (samples := engine.samples) is not None)
    load = observe(answers, settings.max_num_seqs)
    keep = 0.5 ** (seconds / LATELY_HALF_LIFE_SECONDS)
    lately = {at: weight * keep for at, weight in state.lately.items() if weight * keep > FORGOTTEN_WEIGHT}
    for at, share in load.shares.items():
        lately[at] = lately.get(at, 0.0) + share
    drafts = [cell for samples in news.values() for cell in samples.acceptance]
    cells = {name: samples.cells for name, samples in news.items() if samples.cells}
    beliefs = acceptance.learn(state.acceptance, drafts, seconds)
    costs = state.cost
    if beliefs.changes > state.acceptance.changes and state.key[0] in LOOKUP_METHODS:
        costs = cost.loosened(costs, cost.LOOSENED, state.now)
    costs = cost.learn(costs, cells, seconds, state.now)
    learnt = any(cell.request_steps for cell in drafts) or bool(cells)
    turned = beliefs.changes > state.acceptance.changes or costs.changed > state.cost.changed
    return replace(state, read=read, load=load, lately=lately, acceptance=beliefs, cost=costs), learnt, turned


def _decide(
    settings: Settings, state: TunerState, scores: ScoresByLoad, learnt: bool, turned: bool
) -> tuple[TunerState, dict[int, Move]]:
    """Latch, confirm and move the loads in question, and the table that follows."""
    decided: dict[int, Decided] = {**state.decided}
    made: dict[int, Move] = {}
    for load, at in scores.items():
        if load not in decided:
            if not moves.observed(at):
                continue
            decided[load] = moves.first(at, state.auto[load], state.now)
        if learnt:
            earlier = state.base[load] != settings.boot_table[load]
            decided[load], move = moves.advance(decided[load], at, settings, earlier, state.now, turned)
            if move is not None:
                made[load] = move
    auto = state.auto
    if made or len(decided) > len(state.decided):
        auto = solve.table(state.base, {load: at.k for load, at in decided.items()}, state.cost.loads)
    table = state.table
    if settings.mode is TuningMode.AUTO:
        table = auto
    elif settings.mode is TuningMode.MANUAL and settings.manual_table is not None:
        table = settings.manual_table
    return replace(state, decided=decided, auto=auto, table=table), made


def _bursts(
    settings: Settings, state: TunerState, fleet: Fleet, scores: ScoresByLoad
) -> tuple[TunerState, Probe | None]:
    """The bursts to have in force: the pushed ones, unless others are wished for urgently or for long enough."""
    current = state.policy.probe if state.policy else None
    if not settings.probing:
        return state, None
    present = [scores[load] for load, share in state.load.shares.items() if share >= PRESENT_SHARE and load in scores]
    if not present or not fleet.live:
        return state, current
    missing = {at.load: explore.lacking(at, state.acceptance.since_change) for at in present}
    waited = dict(state.waited)
    for load, ks in missing.items():
        waited[load] = waited.get(load, 0) + 1 if ks else 0
    urgent_ks = {k for load, ks in missing.items() if waited[load] <= explore.OBSERVING_PASSES for k in ks}
    wish, pressing = explore.wish(
        present,
        [state.table[at.load] for at in present],
        urgent_ks,
        settings.probe_share,
        settings.min_gain,
        explore.ages(state.cost, [at.load for at in present], state.now),
        current,
    )
    wished = state.probe_wish + 1 if wish != current else 0
    pushing = state.policy is None or not same(state.policy.table, state.table)
    taken = wish is None or current is None or pressing or pushing
    if wish is not None and current is not None and not taken:
        fewer = explore.share_of(wish) < explore.share_of(current)
        taken = wished >= (PROBE_PATIENCE_FEWER if fewer else PROBE_PATIENCE)
    state = replace(state, waited=waited, probe_wish=0 if taken else wished)
    return state, wish if taken else current


def _in_force(
    state: TunerState, settings: Settings, made: Mapping[int, Move], changed: bool
) -> tuple[TunerState, tuple[Decision, ...]]:
    """A decision where the k in force changed: at once with the table's entry, in two passes with the load."""
    load = state.load.present
    if load is None:
        return state, ()
    k = state.table[load]
    was_load, was_k = state.in_force or (load, k)
    if k == was_k:
        return replace(state, in_force=(load, k), moving=(-1, 0)), ()
    count = state.moving[1] + 1 if state.moving[0] == k else 1
    manual = settings.mode is TuningMode.MANUAL and changed
    move = None
    if settings.mode is TuningMode.AUTO and changed and made:
        # An undecided load follows the decided ones beside it: then theirs is the reason.
        move = made[min(made, key=lambda other: abs(other - load))]
    if move is None and not manual and count < solve.CONFIRMATIONS:
        return replace(state, moving=(k, count)), ()
    reason, message = Reason.LOAD, moves.followed(state.views.get(load), was_load, load, was_k, k)
    if manual:
        reason, message = Reason.MANUAL, f"k {was_k} → {k} at {load} requests: tuning.table of mode Manual"
    elif move is not None:
        reason, message = move.reason, move.message if move.load == load else moves.dragged(move, load, was_k, k)
    generation = state.policy.generation if state.policy else 0
    evidence = None if manual else state.views.get(load)
    decision = Decision(reason, message, load, was_k, k, generation, evidence)
    return replace(state, in_force=(load, k), moving=(-1, 0)), (decision,)


def _viewed(state: TunerState, scores: ScoresByLoad, lengths: acceptance.Lengths, *, everywhere: bool) -> TunerState:
    """What is known, for people: made anew for the loads that are there, and `everywhere` where it is shown."""
    views = dict(state.views)
    for load in cost.measured(state.cost):
        if everywhere or load in state.load.shares or load not in views:
            at = scores.get(load) or score(lengths, state.cost, load)
            ks = state.table[load], state.auto[load]
            views[load] = view(at, state.acceptance, lengths, *ks, load in state.decided)
    return replace(state, views=dict(sorted(views.items())))
