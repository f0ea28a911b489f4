"""What status tells of a pass over engines: the tuner's own words, and those about verification and whether
speculation is in effect. Pure.

Measured numbers change with those of the table: with a decision or once a minute, and by more than a little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline_engine.protocol import State
from paceline_operator.api.conditions import ConditionType, Reason
from paceline_operator.api.status import (
    Cell,
    ExplorationStatus,
    ServingStatus,
    VerificationMode,
    VerificationRow,
    VerificationStatus,
)
from paceline_operator.effective import fleet
from paceline_operator.effective.declared import Declared
from paceline_operator.tuning import explain
from paceline_operator.tuning.explain import moved, whole
from paceline_operator.tuning.model import Decision, Engine, Exploration, Step, VerificationView
from paceline_operator.tuning.state import TunerState
from paceline_operator.verdicts import Verdict

MAX_ROWS, SHOWN = 64, 3
EXPLORED_CHANGE, EXPLORED_LEAST = 0.25, 20
"""What exploration costs is told anew where it changed by more than this share, of so much at least. It adds up for an
hour: with the 5 % of other numbers, nearly all writes of servings whose k rests were about it."""


def status(
    step: Step, engines: Sequence[Engine], previous: ServingStatus, now_rfc3339: str
) -> tuple[dict[str, Any], list[Verdict]]:
    """Fields of ServingStatus, by attribute name, and verdicts: all that follows from a pass over engines."""
    found: dict[str, Any] = {**explain.status_fields(step, previous, now_rfc3339)}
    verdicts = [Verdict(*verdict) for verdict in found.pop("conditions")]
    modes = {engine.name: _mode(engine.state) for engine in engines if engine.state is not None}
    found["pods"] = [row.model_copy(update={"verification": modes.get(row.name)}) for row in found["pods"]]
    return found | _more(step, engines, previous), verdicts


DECIDED = (Reason.LOAD, Reason.ACCEPTANCE, Reason.COST, Reason.TPOT_LIMIT, Reason.BASELINE)
"""Reasons of a table that mode Auto decided."""


def untold(step: Step, previous: ServingStatus) -> tuple[Decision, ...]:
    """The change of k that a process finds, or makes of all that engines tell, in its first look: the tuner itself has
    seen no other k in force, and tells of none.

    What engines ran already and status does not know of was pushed by the process before, which was killed before it
    told. At the load of then; why it was made went with that process.
    """
    if step.decisions:
        return ()
    newest, at = max(step.generations.values(), default=0), previous.load_requests or step.load or 0
    was = next((row.k for row in reversed(previous.table) if row.from_requests <= at), None)
    if newest > previous.policy_generation and was is not None and at < len(step.table) and was != step.table[at]:
        now = step.table[at]
        message = f"k {was} → {now} at {at} requests: engines run generation {newest}, which a process pushed that "
        message += f"ended before it told why; status knew of generation {previous.policy_generation}"
        return (Decision(Reason.INCUMBENT, message, at, was, now, newest, None),)
    ran = set(step.k_by_engine.values())
    if step.push_to and step.reason in DECIDED and step.load is not None and step.k is not None and len(ran) == 1:
        (was,) = ran
        found = Decision(step.reason, step.message, step.load, was, step.k, step.generation, None)
        return (found,) if was != step.k else ()
    return ()


def effective(
    known: Mapping[str, fleet.Known],
    engines: Sequence[Engine],
    declared: Mapping[str, Declared | None],
    last_words: Mapping[str, str],
) -> tuple[Mapping[str, fleet.Known], Verdict]:
    """What to remember of each engine, and SpeculationEffective. `declared` and `last_words` are by pod."""
    pods = [
        fleet.Pod(
            name=engine.name,
            declared=declared.get(engine.name),
            state=engine.state if engine.failure is None else None,
            samples=engine.samples if engine.failure is None else None,
            counters=engine.counters,
            last_words=last_words.get(engine.name, ""),
        )
        for engine in engines
    ]
    found = fleet.look(known, pods)
    return found.known, Verdict(ConditionType.SPECULATION_EFFECTIVE, found.status, found.reason, found.message)


def resumed(previous: ServingStatus, why: str) -> list[Verdict]:
    """In place of conditions that say that the serving is not looked after, once it is again and k is held; `why`:
    "while"."""
    stopped = (Reason.NOT_ACCEPTED, Reason.SUSPENDED)
    kinds = (ConditionType.METRICS_AVAILABLE, ConditionType.SPECULATION_EFFECTIVE)
    told = [ConditionType(one.type) for one in previous.conditions if one.reason in stopped and one.type in kinds]
    return [Verdict(kind, None, Reason.HOLDING, f"not told while {why}") for kind in told]


def _more(step: Step, engines: Sequence[Engine], previous: ServingStatus) -> dict[str, Any]:
    """Engines that do not answer change nothing."""
    state = step.memory.state
    published = state.published if isinstance(state, TunerState) else None
    fresh = published is not None and isinstance(state, TunerState) and published.at == state.now and not step.holding
    told: dict[str, Any] = {}
    measured = previous.verification.measured if previous.verification else []
    if published is not None and fresh:
        ratio = whole(1000 * published.ratio_to_no_drafter.value) if published.ratio_to_no_drafter else None
        if moved(ratio, previous.ratio_to_no_drafter_permille):
            told["ratio_to_no_drafter_permille"] = ratio
        told["exploration"] = _exploration(step.exploration, previous.exploration)
        measured = _measured(step.verifications, measured)
    states = {
        engine.name: engine.state
        for engine in engines
        if engine.state is not None and engine.state.capabilities.max_k > 0
    }
    if states:
        told["verification"] = _verification(list(states.values()), measured)
    return told


def _mode(state: State) -> VerificationMode:
    found = state.adaptive_verification
    return VerificationMode.ABSENT_AT_BOOT if found is None else VerificationMode(found.mode.value)


def _verification(states: Sequence[State], measured: list[VerificationRow]) -> VerificationStatus:
    found = {_mode(state) for state in states}
    features = [state.capabilities.adaptive_verification for state in states]
    shown = [state.adaptive_verification for state in states if state.adaptive_verification is not None]
    reasons = [feature.reason for feature in features if not feature.supported]
    reasons += [f"the last change failed: {one.error}" for one in shown if one.error]
    caps = {one.cap for one in shown}
    return VerificationStatus(
        mode=found.pop() if len(found) == 1 else VerificationMode.MIXED,
        cap_tokens=caps.pop() if len(caps) == 1 else None,
        starved=any(one.starved for one in shown),
        message="; ".join([text[:300] for text in dict.fromkeys(reasons) if text][:SHOWN]),
        measured=measured,
    )


def _measured(views: Sequence[VerificationView], previous: list[VerificationRow]) -> list[VerificationRow]:
    rows = [
        VerificationRow(
            from_requests=view.load,
            mode=VerificationMode(view.mode.value),
            k=view.k,
            cap_tokens=view.cap,
            gain_permille=whole(1000 * view.gain.value),
            low_permille=whole(1000 * view.gain.low),
            high_permille=whole(1000 * view.gain.high),
        )
        for view in views[:MAX_ROWS]
    ]

    def key(row: VerificationRow) -> object:
        return row.from_requests, row.mode, row.k, row.cap_tokens

    same = list(map(key, rows)) == list(map(key, previous)) and not any(
        moved(new.gain_permille, old.gain_permille) for new, old in zip(rows, previous, strict=True)
    )
    return previous if same else rows


def _exploration(found: Exploration, previous: ExplorationStatus | None) -> ExplorationStatus:
    new = ExplorationStatus(
        step_share_permille=whole(1000 * found.step_share),
        time_share_permille=whole(1000 * found.time_share),
        tokens_lost=whole(found.tokens_lost),
        quarantined=[Cell(from_requests=load, k=k) for load, k in found.quarantined[:MAX_ROWS]],
    )
    if previous is None or new.quarantined != previous.quarantined:
        return new
    pairs = (
        (new.step_share_permille, previous.step_share_permille),
        (new.time_share_permille, previous.time_share_permille),
        (new.tokens_lost, previous.tokens_lost),
    )
    moves = (abs(now - was) > EXPLORED_CHANGE * max(EXPLORED_LEAST, abs(was)) for now, was in pairs)
    return new if any(moves) else previous
