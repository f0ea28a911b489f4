"""Traces: what one serving's engines answered, pass by pass, recorded live and given to the tuner again.

A trace is JSON, one object a line: a head with the part of the spec that the tuner reads, then the passes. It has no
truth: nobody measured what another k would have given, and samples are of the table that was in force then. So a trace
tells where today's tuner decides like the recorded one, and where and why not; it has no regret.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from pydantic import ValidationError

from paceline_engine.protocol import Samples, State
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import ServingSpec
from paceline_operator.replay.notes import Note, UnreadableError, text_of
from paceline_operator.tuning.decide import settings_of, step
from paceline_operator.tuning.model import Engine, Memory, Settings

VERSION = 1
SUFFIX = ".jsonl"
SPEC_PARTS = ("speculation", "tuning", "slo")


def head(name: str, spec: ServingSpec) -> str:
    """First line of a trace. Of the spec only what the tuner reads: no environment, no names of secrets."""
    dumped = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    kept = {part: dumped[part] for part in SPEC_PARTS if part in dumped}
    kept |= {"model": {"source": dumped["model"]["source"]}, "engine": {"maxNumSeqs": spec.engine.max_num_seqs}}
    return json.dumps({"pacelineTrace": VERSION, "name": name, "spec": kept})


def line(at: float, known_generation: int, engines: Sequence[Engine]) -> str:
    """One pass: `at` is the monotonic time in seconds that the tuner was given."""
    return json.dumps({"at": at, "knownGeneration": known_generation, "engines": [_dumped(one) for one in engines]})


class Writer:
    """Writes a trace, pass by pass, each at once: a recording that is cut short is a shorter trace."""

    def __init__(self, file: TextIO, name: str, spec: ServingSpec) -> None:
        self._file = file
        self._put(head(name, spec))

    def __call__(self, at: float, known_generation: int, engines: Sequence[Engine]) -> None:
        """Write one pass."""
        self._put(line(at, known_generation, engines))

    def _put(self, text: str) -> None:
        self._file.write(text + "\n")
        self._file.flush()


@dataclass(frozen=True)
class Pass:
    """What the tuner was given."""

    at: float
    known_generation: int
    engines: tuple[Engine, ...]


@dataclass(frozen=True)
class Trace:
    """One recording."""

    file: str
    name: str
    settings: Settings
    passes: tuple[Pass, ...]


@dataclass(frozen=True)
class Retraced:
    """What today's tuner makes of a trace. Passes without a load are not compared."""

    file: str
    name: str
    passes: int
    seconds: float
    compared: int
    """Passes whose k can be compared with that of the engines' next table."""
    same_k_pct: float | None
    first_difference_seconds: float | None
    decisions: tuple[Mapping[str, Any], ...] = field(default=())

    def json(self, *, decisions: bool) -> dict[str, Any]:
        """As `--json` writes it."""
        return {name: value for name, value in asdict(self).items() if decisions or name != "decisions"}


def read(path: Path) -> tuple[Trace | None, list[Note]]:
    """A trace, and the lines that are none. None where the head is not one."""
    try:
        lines = text_of(path).splitlines()
    except UnreadableError as error:
        return None, [error.note]
    notes: list[Note] = []
    try:
        top = json.loads(lines[0]) if lines else {}
        if not isinstance(top, dict) or top.get("pacelineTrace") != VERSION:
            return None, [Note(str(path), 1, f"not a trace of version {VERSION}: the head says {str(top)[:40]!r}")]
        settings = settings_of(ServingSpec.model_validate(top.get("spec")))
    except (ValueError, RecursionError) as error:
        return None, [Note(str(path), 1, f"not the head of a trace: {_first(error)}")]
    passes: list[Pass] = []
    for number, text in enumerate(lines[1:], start=2):
        if not text.strip():
            continue
        try:
            passes.append(_pass(json.loads(text)))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            notes.append(Note(str(path), number, f"not a pass: {_first(error)}"))
    return Trace(str(path), str(top.get("name", path.stem)), settings, tuple(passes)), notes


def retrace(trace: Trace) -> Retraced:
    """Give every pass to the tuner, as it was."""
    memory = Memory()
    tables: list[tuple[float, int | None, tuple[int, ...]]] = []
    decisions: list[Mapping[str, Any]] = []
    start = trace.passes[0].at if trace.passes else 0.0
    for one in trace.passes:
        found = step(trace.settings, memory, one.engines, known_generation=one.known_generation, now=one.at)
        memory = found.memory
        tables.append((one.at - start, found.load, found.table))
        decisions += [
            {
                "at_seconds": one.at - start,
                "load": decision.load,
                "from_k": decision.from_k,
                "to_k": decision.to_k,
                "reason": decision.reason,
                "message": decision.message,
            }
            for decision in found.decisions
        ]
    same = [
        (at, table[load] == recorded[load])
        for (at, load, table), after in zip(tables, trace.passes[1:], strict=False)
        for recorded in _in_force(after, len(table))
        if load is not None
    ]
    return Retraced(
        file=trace.file,
        name=trace.name,
        passes=len(trace.passes),
        seconds=trace.passes[-1].at - start if trace.passes else 0.0,
        compared=len(same),
        same_k_pct=round(100 * sum(equal for _, equal in same) / len(same), 2) if same else None,
        first_difference_seconds=next((at for at, equal in same if not equal), None),
        decisions=tuple(decisions),
    )


def _in_force(one: Pass, length: int) -> Iterator[tuple[int, ...]]:
    """The table of the first engine that tells one of this length."""
    for engine in one.engines:
        if engine.state is not None and len(engine.state.table) == length:
            yield engine.state.table
            return


def _dumped(engine: Engine) -> dict[str, Any]:
    if engine.state is None or engine.samples is None:
        return {"name": engine.name, "failure": engine.failure, "failureMessage": engine.failure_message}
    parts = {"state": engine.state, "samples": engine.samples}
    return {"name": engine.name, **{name: part.model_dump(mode="json", by_alias=True) for name, part in parts.items()}}


def _pass(body: Mapping[str, Any]) -> Pass:
    engines = []
    for one in body["engines"]:
        failure = Reason(one["failure"]) if one.get("failure") else None
        state = State.model_validate(one["state"]) if one.get("state") else None
        samples = Samples.model_validate(one["samples"]) if one.get("samples") else None
        engines.append(Engine(str(one["name"]), state, samples, failure, str(one.get("failureMessage", ""))))
    at, known = float(body["at"]), int(body["knownGeneration"])
    if not abs(at) < 1e12 or known < 0:
        raise ValueError(f"at {at}, generation {known}")
    return Pass(at, known, tuple(engines))


def _first(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False, include_input=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return f"{type(error).__name__}: {error}"[:200]
