"""The learning link: beliefs with the samples that nobody has seen yet."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from paceline_engine.protocol import CostCell, Samples, Verification
from paceline_operator.api.speculation import Method
from paceline_operator.api.tuning import TuningMode
from paceline_operator.tuning import acceptance, arms, baseline, correct, cost, direct, holdout, prompts
from paceline_operator.tuning.engines import Fleet
from paceline_operator.tuning.load import observe
from paceline_operator.tuning.model import Engine, Settings
from paceline_operator.tuning.state import Read, TunerState
from paceline_operator.tuning.values import amended

LATELY_HALF_LIFE_SECONDS = 60.0
FORGOTTEN_WEIGHT = 0.3
"""Of a load in the recent past, where a pass that was all there counts 1."""
REMEMBERED_SECONDS = 3600.0
"""How long an engine that is gone keeps its place: one that comes back is not counted from its boot again."""
OVERLAP_SECONDS = 0.5
"""By which a window may begin before the one before it ended: rounding, not a window read twice."""
LOOKUP_METHODS = frozenset({Method.NGRAM, Method.NGRAM_GPU, Method.SUFFIX})
"""These draft only where they find a match, so that another traffic is another step cost too."""
PAIRED_STEPS = 6
"""Of each side, from which a window compares two ks."""


@dataclass(frozen=True)
class News:
    """What a pass brought."""

    windows: Mapping[str, tuple[CostCell, ...]] = field(default_factory=dict)
    """Engine -> its new cost cells."""
    current: frozenset[str] = frozenset()
    """Of these, the engines whose cells are of this pass, not of all the time since their boot."""
    learnt: bool = False
    turned: bool = False
    """Traffic or cost changed."""
    off: Mapping[int, float] = field(default_factory=dict)
    """Load bucket -> step seconds of an engine without a drafter."""
    every_mode: bool = False
    """Engines verify as they please."""

    def steps(self) -> dict[int, int]:
        """Decode steps by load bucket in this pass."""
        found: dict[int, int] = {}
        for name in self.current:
            for cell in self.windows[name]:
                found[cell.load] = found.get(cell.load, 0) + cell.steps
        return found


def present(settings: Settings, state: TunerState, fleet: Fleet, seconds: float) -> TunerState:
    """`state` with the load that is there, and those that were lately."""
    answers = (samples for engine in fleet.answering if (samples := engine.samples) is not None)
    load = observe(answers, settings.max_num_seqs)
    keep = 0.5 ** (seconds / LATELY_HALF_LIFE_SECONDS)
    lately = {at: weight * keep for at, weight in state.lately.items() if weight * keep > FORGOTTEN_WEIGHT}
    for at, share in load.shares.items():
        lately[at] = lately.get(at, 0.0) + share
    return amended(state, load=load, lately=lately)


def learn(
    settings: Settings, state: TunerState, fleet: Fleet, modes: frozenset[Verification], seconds: float
) -> tuple[TunerState, News]:
    """Beliefs with what is new. `modes`: how the engines can be told to verify; where they cannot be told to verify
    all, what k gives under whatever they do is what there is to know."""
    every_mode = Verification.ALL not in modes or settings.mode is not TuningMode.AUTO
    read = {name: known for name, known in state.read.items() if state.now - known.seen < REMEMBERED_SECONDS}
    news = _fresh(fleet.answering, read, state.now)
    holdouts = _fresh(fleet.holdouts, read, state.now)
    drafts = [cell for samples in news.values() for cell in samples.acceptance]
    windows = {name: samples.cells for name, samples in news.items() if samples.cells}
    beliefs = acceptance.learn(state.acceptance, drafts, seconds)
    costs = state.cost
    changed = beliefs.changes > state.acceptance.changes
    if changed and settings.method in LOOKUP_METHODS:
        costs = cost.loosened(costs, cost.LOOSENED, state.now)
    costs = correct.learn(costs, windows, seconds, state.now, every_mode)
    if costs.speeds.keys() - read.keys():
        costs = amended(costs, speeds={name: speed for name, speed in costs.speeds.items() if name in read})
    cells = [cell for window in windows.values() for cell in window]
    found = News(
        windows=windows,
        current=frozenset(name for name in windows if not news[name].reset),
        learnt=bool(cells) or any(cell.request_steps for cell in drafts),
        turned=changed or costs.changed > state.cost.changed,
        every_mode=every_mode,
        off={**settings.off_step_seconds, **holdout.step_seconds(samples.cells for samples in holdouts.values())},
    )
    state = amended(
        state,
        read=read,
        acceptance=beliefs,
        cost=costs,
        direct=direct.learn(state.direct, cells, drafts, seconds, every_mode),
    )
    return state, found


def compare(state: TunerState, news: News, seconds: float) -> TunerState:
    """The baselines with the windows of this pass, at the ks that were in force until now."""
    past = baseline.Baseline() if news.turned else state.baseline
    to_k0, to_off = past.to_k0, past.to_no_drafter
    rates: dict[int, list[tuple[int, float, float]]] = {}
    arm = state.verified.arm
    for name in news.current:
        mode = None if news.every_mode else arm.mode if arm else Verification.ALL
        window = news.windows[name]
        force, off = _sides(prompts.leveled(state.cost, window), state.table, mode)
        for load, (tokens, spent, _, _) in force.items():
            k = state.table[load]
            if k and load in off and state.verified.trial is None:
                to_k0 = baseline.added(to_k0, load, k, math.log(tokens / spent / off[load]))
        if not news.off:
            continue
        # An engine without a drafter has other prompts: only steps without any compare with its steps.
        force, _ = _sides([cell for cell in window if not cell.prompt], state.table, mode)
        for load, (tokens, spent, requests, steps) in force.items():
            rates.setdefault(load, []).append((state.table[load], tokens / spent, requests / steps))
    if news.off and state.verified.trial is None:
        means = {
            load: (found[0][0], median(rate for _, rate, _ in found), median(mean for _, _, mean in found))
            for load, found in rates.items()
        }
        to_off = holdout.compared(to_off, means, news.off)
    decoded = {load: share * seconds for load, share in state.load.shares.items()}
    history = holdout.aged(state.history, decoded, state.table, seconds)
    return amended(state, baseline=baseline.Baseline(to_k0, to_off), history=history)


def verify(state: TunerState, news: News, seconds: float) -> TunerState:
    """What the windows say of adaptive verification; an engine that waits to be replaced has other loads and ks."""
    windows = {
        name: [
            cell
            for cell in prompts.leveled(state.cost, news.windows[name])
            if cell.load in state.cost.loads and cell.k_drafted in state.cost.ladder
        ]
        for name in news.current
    }
    noise = state.cost.noise
    return amended(state, verified=arms.learn(state.verified, windows, noise, seconds, state.now, news.turned))


def _fresh(engines: tuple[Engine, ...], read: dict[str, Read], now: float) -> dict[str, Samples]:
    """Samples by engine that are not in the beliefs yet. Writes to `read`."""
    news: dict[str, Samples] = {}
    for engine in engines:
        samples = engine.samples
        if samples is None:
            continue
        known = read.get(engine.name)
        # The same process since boot once more, or a window that overlaps what was read, would count twice.
        again = known is not None and known.boot_id == samples.boot_id
        if not again or (not samples.reset and known and samples.from_seconds >= known.uptime - OVERLAP_SECONDS):
            news[engine.name] = samples
        read[engine.name] = Read(samples.boot_id, samples.to_seconds, now)
    return news


def _sides(
    window: Sequence[CostCell], table: tuple[int, ...], mode: Verification | None
) -> tuple[dict[int, list[float]], dict[int, float]]:
    """One engine's window by load: (tokens, seconds, request-steps, steps) at the k in force, and the tokens a second
    at k=0. `mode`: how drafts are verified at the k in force; None = in any way."""
    sums: dict[tuple[int, bool], list[float]] = {}
    for cell in window:
        if cell.load >= len(table) or cell.seconds <= 0 or not cell.emitted:
            continue
        k = table[cell.load]
        forced = not cell.probe and cell.k_drafted == k and (mode in (None, cell.verification) or not k)
        if forced or cell.k_drafted == 0:
            total = sums.setdefault((cell.load, forced), [0.0, 0.0, 0.0, 0.0])
            values = (cell.emitted, cell.seconds, cell.request_steps, cell.steps)
            for position, value in enumerate(values):
                total[position] += value
    enough = {at: total for at, total in sums.items() if total[3] >= PAIRED_STEPS}
    off = {load: total[0] / total[1] for (load, forced), total in enough.items() if not forced}
    return {load: total for (load, forced), total in enough.items() if forced}, off
