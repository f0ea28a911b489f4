"""What each engine answered last, so that it can be told when the engine does not answer any more. Pure.

A crashed engine takes its plugin, and what that knew, along: what the operator read before is all that is left of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paceline_engine.protocol import Gauges, State
from paceline_operator import events
from paceline_operator.tuning.model import Engine


@dataclass(frozen=True, slots=True)
class Sighting:
    """An engine's last answer: what of it is told once there is no other."""

    boot_id: str
    engine_version: str
    generation: int
    """Of the policy in force."""
    running: int
    """Requests."""
    said: str
    at: str
    """RFC 3339."""
    state: State | None
    """Of an engine whose own /metrics cannot show it; else None: whole, it is most of what a sighting takes."""
    answering: bool = True
    """Also in the last pass."""

    def __str__(self) -> str:
        return f"last answer at {self.at}: {self.said}"


def sighting(state: State, gauges: Gauges, at: str) -> Sighting:
    """Of an engine that answers now; `at` RFC 3339."""
    return Sighting(
        boot_id=state.boot_id,
        engine_version=state.engine_version,
        generation=state.generation,
        running=gauges.running,
        said=_words(state, gauges),
        at=at,
        state=None if state.capabilities.metrics.supported else state,
    )


def _words(state: State, gauges: Gauges) -> str:
    k = "none yet" if state.k_in_force is None else state.k_in_force
    steps = sum(state.steps_by_k.values()) + sum(state.probe_steps_by_k.values())
    words = [
        f"generation {state.generation}",
        f"k {k}",
        f"{gauges.running} running and {gauges.waiting} waiting requests",
        f"{steps} steps",
    ]
    if verification := state.adaptive_verification:
        words.append(f"verification {verification.mode}")
        words += [f"verification error {verification.error[:200]!r}"] if verification.error else []
    if state.policy_errors:
        words.append(f"{state.policy_errors} policy errors")
    return ", ".join(words)


def look(
    before: Mapping[str, Sighting], engines: Sequence[Engine], ended: Mapping[str, str], now_rfc3339: str
) -> tuple[tuple[Engine, ...], dict[str, Sighting], list[events.Event]]:
    """Engines (those that fail with their last answer in the message), sightings for the next pass, and news.

    `ended`: how a pod's engine ended last, as its containers tell. Pods that are gone are forgotten.
    """
    told: list[Engine] = []
    after: dict[str, Sighting] = {}
    news: list[events.Event] = []
    for engine in engines:
        last, how = before.get(engine.name), ended.get(engine.name, "")
        if engine.state is not None and engine.samples is not None:
            after[engine.name] = seen = sighting(engine.state, engine.samples.gauges, now_rfc3339)
            if seen.state is not None:
                after[engine.name] = replace(seen, state=_shared(seen.state, after))
            if last and last.boot_id != engine.state.boot_id:
                news.append(events.engine_restarted(engine.name, how, str(last)))
        elif last:
            after[engine.name] = replace(last, answering=False)
            if last.answering and engine.failure:
                news.append(events.engine_lost(engine.name, engine.failure, engine.failure_message, how, str(last)))
            engine = replace(engine, failure_message=f"{engine.failure_message}; {last}")
        told.append(engine)
    return tuple(told), after, news


def _shared(state: State, others: Mapping[str, Sighting]) -> State:
    """`state`, whose table and capabilities are those of another pod where they are the same: most of what it takes."""
    other = next((one.state for one in others.values() if one.state is not None), state)
    same = {name: getattr(other, name) for name in _LARGE if getattr(state, name) == getattr(other, name)}
    return state.model_copy(update=same)


_LARGE = ("table", "capabilities", "probe")
