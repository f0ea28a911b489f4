"""What a person sees while it runs: a live screen on a terminal, plain lines elsewhere. Reads the record, no more."""

from __future__ import annotations

from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline_engine.protocol import compress
from paceline_operator.clients.answers import clip
from paceline_operator.local.record import PhaseRecord, Record
from paceline_operator.local.report import shares
from paceline_operator.tuning.model import BucketView, Interval

DECISIONS_SHOWN = 6


class View(Protocol):
    """Where a run shows itself."""

    def say(self, text: str) -> None:
        """One thing that happened."""
        ...

    def starting(self, engine: str, seconds: float, line: str) -> None:
        """An engine is not ready yet; `line` is the last of its log."""
        ...

    def update(self, record: Record) -> None:
        """A pass was made."""
        ...

    def close(self) -> None:
        """Leave the screen as it is."""
        ...


class PlainView:
    """A line a pass, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last_line = ""
        self._last_why = ""
        self._told = 0

    def say(self, text: str) -> None:
        """One thing that happened."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def starting(self, engine: str, seconds: float, line: str) -> None:
        """Only lines that differ: a log of a start is not twice as good with every line twice."""
        if line and line != self._last_line:
            self._last_line = line
            self.say(f"{engine} starting, {seconds:.0f} s: {clip(line)}")

    def update(self, record: Record) -> None:
        """The state in one line, with why it is so where that is new and no decision; then what was decided."""
        step, phase = record.step, record.phase
        if step is None or phase is None:
            return
        tally = phase.tally
        parts = [
            f"{record.seconds:6.1f} s",
            "requests from outside"
            if phase.concurrency is None
            else f"sends {phase.concurrency} at a time ({phase.text}){left_over(phase)}",
            f"load {step.load if step.load is not None else 'idle'}",
            f"k {step.k if step.k is not None else '-'}",
            f"table {rows(step.table)}",
            f"length {_number(tally.acceptance_length, 2)}",
            f"firing {_percent(tally.firing_rate)}",
            f"{_number(tally.tokens_per_second, 0)} tok/s",
            f"{record.completed_requests} done, {record.failed_requests} failed",
        ]
        why = f"{step.reason.value}: {step.message}"
        decisions = [
            f"{made.decision.reason.value}: {made.decision.message}" for made in record.decisions[self._told :]
        ]
        if why not in (self._last_why, *decisions):
            parts.append(why)
        self.say(" | ".join(parts))
        for decision in decisions:
            self.say(f"  DECISION {decision}")
        self._last_why, self._told = why, len(record.decisions)

    def close(self) -> None:
        """Nothing to leave."""


class LiveView:
    """A screen that is drawn anew with every pass."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def say(self, text: str) -> None:
        """Printed above the screen."""
        self._live.console.print(text, markup=False, highlight=False)

    def starting(self, engine: str, seconds: float, line: str) -> None:
        """The last line of the log, in place."""
        text = Text(f"{engine} starting, {seconds:.0f} s  ", style="bold")
        self._live.update(text.append(clip(line), style="dim"), refresh=True)

    def update(self, record: Record) -> None:
        """Draw the record."""
        self._live.update(screen(record), refresh=True)

    def close(self) -> None:
        """The last picture stays."""
        self._live.stop()


def screen(record: Record) -> RenderableType:
    """The whole picture: load and table, by position, by k, decisions."""
    step, phase = record.step, record.phase
    if step is None or phase is None:
        return Text("no reading yet")
    tables = Table.grid(expand=True, padding=(0, 1))
    tables.add_column(ratio=2)
    tables.add_column(ratio=3)
    view = next((view for view in step.buckets if view.load == step.load), None)
    tables.add_row(_by_position(phase), _by_k(view, step.k))
    return Group(_head(record, phase), tables, _decisions(record))


def rows(table: tuple[int, ...]) -> str:
    """`1:5 4:3 9:0`: from so many requests on, this k."""
    return " ".join(f"{start}:{k}" for start, k in compress(table))


def left_over(phase: PhaseRecord) -> str:
    """Why a phase that goes on may have no numbers."""
    return f", {phase.left_over} of the phase before go on" if phase.left_over else ""


def _head(record: Record, phase: PhaseRecord) -> RenderableType:
    step, tally = record.step, phase.tally
    assert step is not None
    grid = Table.grid(padding=(0, 2))
    pids = ", ".join(f"{engine.name} pid {engine.pids[-1] if engine.pids else '-'}" for engine in record.engines)
    grid.add_row("engines", f"{pids}; {record.restarts} restarts")
    grid.add_row(
        "load",
        f"{'from outside' if phase.concurrency is None else f'{phase.concurrency} requests of {phase.text}'}"
        f"{left_over(phase)}, bucket {step.load if step.load is not None else 'idle'}; "
        f"{record.completed_requests} completed, {record.failed_requests} failed",
    )
    grid.add_row("table", f"{rows(step.table)}  (from requests:k, generation {step.generation})")
    grid.add_row(
        "k in force",
        Text(str(step.k if step.k is not None else "-"), style="bold green").append(
            f"   steps of this phase by k: {shares(tally)}", style="not bold default"
        ),
    )
    grid.add_row(
        "speed",
        f"{_number(tally.tokens_per_second, 0)} tok/s, length {_number(tally.acceptance_length, 2)}, "
        f"drafts fire in {_percent(tally.firing_rate)} of steps, against k=0 {_spread(step.ratio_to_k0, 2)}",
    )
    grid.add_row("why", f"{step.reason.value}: {step.message}")
    return Panel(grid, title=f"paceline local: {record.serving.metadata.name}, {record.seconds:.0f} s", expand=True)


def _by_position(phase: PhaseRecord) -> RenderableType:
    table = Table("position", "survival", "conditional", "adds", title="drafts of this phase", expand=True)
    for at, position in sorted(phase.tally.positions.items()):
        table.add_row(
            str(at), _percent(position.survival), _percent(position.conditional), _number(position.marginal, 3)
        )
    return table


def _by_k(view: BucketView | None, in_force: int | None) -> RenderableType:
    title = f"each k at load {view.load}" if view else "each k: nothing measured at this load"
    table = Table("k", "length", "tok/pos", "step ms", "tok/s", "95 %", "steps", title=title, expand=True)
    for candidate in reversed(view.candidates) if view else ():
        length = candidate.acceptance_length.value
        table.add_row(
            f"{candidate.k}{' ◀' if candidate.k == in_force else ''}",
            f"{length:.2f}",
            f"{length / (candidate.k + 1):.2f}",
            f"{1000 * candidate.step_seconds.value:.1f}",
            f"{candidate.goodput.value:.0f}",
            f"{candidate.goodput.low:.0f}-{candidate.goodput.high:.0f}",
            "borrowed" if candidate.borrowed else str(candidate.steps),
            style="dim" if candidate.borrowed else "bold" if candidate.k == in_force else "",
        )
    return table


def _decisions(record: Record) -> RenderableType:
    table = Table("at", "reason", "what and why", title="decisions", expand=True)
    for made in record.decisions[-DECISIONS_SHOWN:]:
        table.add_row(f"{made.at_seconds:.0f} s", made.decision.reason.value, made.decision.message)
    return table


def _spread(found: Interval | None, digits: int) -> str:
    return f"{found.value:.{digits}f} ({found.low:.{digits}f} to {found.high:.{digits}f})" if found else "not measured"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
