"""The report of a run: JSON for programs, Markdown for people. Both from the same record, in every case it ends in."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline_engine.protocol import PROTOCOL_VERSION, compress
from paceline_operator.api.conditions import Reason
from paceline_operator.local.container import DISTRIBUTION
from paceline_operator.local.record import PhaseRecord, Record
from paceline_operator.local.tally import Tally
from paceline_operator.tuning.cost import MIN_STEPS
from paceline_operator.tuning.model import Interval

DIGITS = 4


def build(record: Record) -> dict[str, Any]:
    """The report as JSON. Times in seconds since the first reading, rates in tokens per second, intervals of 95 %."""
    ratio = record.ratio_to_k0()
    return {
        "serving": record.serving.metadata.name,
        "model": record.serving.spec.model.source,
        "method": record.serving.spec.speculation.method.value,
        "started_at": record.started_at,
        "seconds": round(record.seconds, 1),
        "ended_by": record.ended_by,
        "prior": record.prior,
        "engine_restarts": record.restarts,
        "engines": [{"name": engine.name, "pids": engine.pids} for engine in record.engines],
        "completed_requests": record.completed_requests,
        "failed_requests": record.failed_requests,
        "ratio_to_k0": {
            "value": _round(ratio.value) if ratio else None,
            "interval": _interval(ratio),
            "of": "decode time that the same tokens would have taken at k=0, measured by probe bursts in this run, "
            "over the decode time they took",
        },
        "decisions": [
            {
                "at_seconds": round(made.at_seconds, 1),
                "reason": made.decision.reason.value,
                "message": made.decision.message,
                "load": made.decision.load,
                "from": made.decision.from_k,
                "to": made.decision.to_k,
                "generation": made.decision.generation,
                "candidates": [
                    {
                        "k": candidate.k,
                        "goodput": _round(candidate.goodput.value),
                        "interval": _interval(candidate.goodput),
                        "acceptance_length": _round(candidate.acceptance_length.value),
                        "step_milliseconds": _round(1000 * candidate.step_seconds.value),
                        "steps": candidate.steps,
                    }
                    for candidate in (made.decision.evidence.candidates if made.decision.evidence else ())
                    if not candidate.borrowed
                ],
            }
            for made in record.decisions
        ],
        "phases": [_phase(phase) for phase in record.phases],
        "versions": _versions(record),
    }


def _phase(phase: PhaseRecord) -> dict[str, Any]:
    tally = phase.tally
    load = tally.load()
    return {
        "concurrency": phase.concurrency,
        "text": phase.text,
        "seconds": round(tally.seconds + phase.drain.seconds, 1),
        "drain_seconds": round(phase.drain.seconds, 1),
        "table": [{"from_requests": start, "k": k} for start, k in compress(phase.table)],
        "k_in_force": {str(k): steps for k, steps in sorted(tally.steps_by_k.items()) if steps},
        "probe_steps": {str(k): steps for k, steps in sorted(tally.probe_steps_by_k.items()) if steps},
        "firing_rate": _round(tally.firing_rate),
        "acceptance_by_position": [
            {
                "position": at,
                "drafts": position.drafts,
                "accepted": position.accepted,
                "survival": _round(position.survival),
                "conditional": _round(position.conditional),
                "marginal_tokens": _round(position.marginal),
            }
            for at, position in sorted(tally.positions.items())
        ],
        "acceptance_length": _round(tally.acceptance_length),
        "tokens_per_second": _round(tally.tokens_per_second),
        "ratio_to_k0": {"value": _round(r.value), "interval": _interval(r)} if (r := tally.ratio_to_k0()) else None,
        "sweep": {
            "load": load,
            "goodput_by_k": [
                {"k": k, "goodput": _round(goodput.value), "interval": _interval(goodput), "steps": steps}
                for k, (goodput, steps) in (tally.sweep(load) if load is not None else {}).items()
            ],
        },
    }


def _versions(record: Record) -> dict[str, Any]:
    states = [engine.state for engine in record.engines if engine.state is not None]
    return {
        "paceline": version(DISTRIBUTION),
        "protocol": PROTOCOL_VERSION,
        "plugin": sorted({state.plugin_version for state in states}),
        "engine": sorted({state.engine_version for state in states}),
        "runner": sorted({state.capabilities.runner for state in states}),
        "python": platform.python_version(),
    }


def write(record: Record, path: Path) -> None:
    """Write the report whole or not at all."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    part.write_text(json.dumps(build(record), indent=2, allow_nan=False) + "\n")
    part.replace(path)


def summary(record: Record) -> str:
    """The report in Markdown."""
    lines = [f"# {record.serving.metadata.name}: {record.seconds:.0f} s, ended by {record.ended_by}", ""]
    lines += [
        f"- engine restarts {record.restarts}, requests {record.completed_requests} completed, "
        f"{record.failed_requests} failed" + (f" (last: {record.last_failure})" if record.failed_requests else ""),
        f"- goodput against k=0 in the same run: {_ratio(record.ratio_to_k0())}",
        "",
    ]
    if record.phases:
        lines += _table(
            (
                "load",
                "text",
                "k in force (share of steps)",
                "length",
                "firing",
                "tok/s",
                "against k=0",
                "best k (sweep)",
            ),
            [_phase_row(phase) for phase in record.phases],
        )
        lines += _drained(record.phases)
    lines += ["", "## Decisions", ""]
    lines += [
        f"- {made.at_seconds:.0f} s, {made.decision.reason.value}: {made.decision.message}" for made in record.decisions
    ] or [f"- none: {_undecided(record)}"]
    for number, phase in enumerate(record.phases, start=1):
        load = phase.tally.load()
        if load is None:
            continue
        lines += ["", f"## Phase {number}: {_load(phase)}; goodput of each k at load {load}", ""]
        lines += _table(
            ("k", "tokens/s", "95 % interval", "steps"),
            [
                (str(k), f"{goodput.value:.1f}", f"{goodput.low:.1f} to {goodput.high:.1f}", str(steps))
                for k, (goodput, steps) in phase.tally.sweep(load).items()
            ],
        )
    return "\n".join(lines)


def _undecided(record: Record) -> str:
    """Why the k in force never changed, as the last pass saw it."""
    step = record.step
    if step is None:
        return "no pass was made"
    if step.reason is not Reason.OBSERVING:
        return f"{step.reason.value}: {step.message}"
    total = record.total()
    steps = sum(total.steps_by_k.values()) + sum(total.probe_steps_by_k.values())
    return (
        f"{step.message}. There were {steps} steps in {total.seconds:.0f} s, and a decision needs about "
        f"{MIN_STEPS:.0f} at each k: this machine is too slow or too busy for this load, or the run was too short"
    )


def _drained(phases: Sequence[PhaseRecord]) -> list[str]:
    """What the rows leave out, as a paragraph below them."""
    seconds = [
        f"{phase.drain.seconds:.0f} s of phase {number}"
        for number, phase in enumerate(phases, start=1)
        if phase.drain.seconds
    ]
    told = "Without the time in which requests of the phase before were still answered: "
    return ["", f"{told}{', '.join(seconds)}."] if seconds else []


def _phase_row(phase: PhaseRecord) -> tuple[str, ...]:
    tally = phase.tally
    return (
        "-" if phase.concurrency is None else str(phase.concurrency),
        phase.text or "-",
        shares(tally),
        _number(tally.acceptance_length, 2),
        "-" if tally.firing_rate is None else f"{tally.firing_rate:.0%}",
        _number(tally.tokens_per_second, 0),
        _ratio(tally.ratio_to_k0()),
        best(tally),
    )


def shares(tally: Tally) -> str:
    """`5: 80 %, 3: 20 %`: steps by the k in force, bursts left out."""
    total = sum(tally.steps_by_k.values())
    return ", ".join(f"{k}: {n / total:.0%}" for k, n in tally.steps_by_k.most_common() if n) if total else "-"


def best(tally: Tally) -> str:
    """The k of the largest goodput measured at the phase's load; told where it was compared to none."""
    load = tally.load()
    found = tally.sweep(load) if load is not None else {}
    if not found:
        return "-"
    return f"{max(found, key=lambda k: found[k][0].value)}{' (only one measured)' * (len(found) == 1)}"


def _load(phase: PhaseRecord) -> str:
    return f"{phase.concurrency} requests of {phase.text}" if phase.text else "load from outside"


def _ratio(found: Interval | None) -> str:
    return f"{found.value:.2f}× ({found.low:.2f} to {found.high:.2f})" if found else "not measured"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _interval(found: Interval | None) -> list[float | None] | None:
    return [_round(found.low), _round(found.high)] if found else None
