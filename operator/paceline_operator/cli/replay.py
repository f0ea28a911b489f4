"""`paceline replay` as a person sees it: progress and a table on a terminal, plain lines in a pipe."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import paceline_operator
from paceline_operator.cli.mistake import counted, fail
from paceline_operator.replay.ask import Question, material
from paceline_operator.replay.courses import GRID_SWEEPS
from paceline_operator.replay.notes import folded
from paceline_operator.replay.report import SEEDS, Report
from paceline_operator.replay.report import replay as run
from paceline_operator.replay.score import Case
from paceline_operator.replay.traces import Retraced

OWN_TABLES = Path(paceline_operator.__file__).parents[2] / "benchmarks" / "tables"
"""The project's copy of the published tables, in a checkout."""
WORKLOAD_WIDTH = 24
"""Characters of a workload on a terminal; a pipe gets it whole."""
COLUMNS: Mapping[str, Callable[[Case], str]] = {
    "table": lambda case: case.table_id,
    "workload": lambda case: case.workload,
    "load": lambda case: "all" if case.load is None else str(case.load),
    "steady regret %": lambda case: f"{case.steady_regret_pct:.2f}",
    "regret %": lambda case: f"{case.regret_pct:.2f}",
    "of oracle": lambda case: f"{case.oracle_ratio:.4f}",
    "best fixed k": lambda case: str(case.best_fixed_k),
    "of that k": lambda case: f"{case.ratio_to_best_fixed:.4f}",
    "gain kept %": lambda case: _or_dash(case.gain_kept_pct),
    "below off %": lambda case: _or_dash(case.time_below_off_pct),
    "changes/h": lambda case: f"{case.changes_per_hour:.1f}",
}


class Sweep(StrEnum):
    """How the load of a grid goes."""

    WALK = "walk"
    STEPS = "steps"


def replay(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH...]", help="Tables (CSV), traces (.jsonl), folders; else the project's tables."),
    ] = None,
    grid: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Step-cost grid (CSV): concurrency, k, step_ms.")
    ] = None,
    acceptance: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Acceptance profiles (CSV) for the grid: dataset, method, k, survival."),
    ] = None,
    method: Annotated[str, typer.Option(help="Which rows of --acceptance.")] = "eagle",
    load: Annotated[Sweep | None, typer.Option(help="How the grid's load goes; else both ways.")] = None,
    switch: Annotated[
        str | None, typer.Option(metavar="A,B", help="Workloads that follow one another; else each by itself.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="One seed; else 0 to 9.")] = None,
    out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write the result as JSON.")] = None,
    decisions: Annotated[bool, typer.Option("--decisions", help="Tell each decision with its reason.")] = False,
) -> None:
    """Run the tuner over published tables or measured grids, and tell how close to the best k it was."""
    try:
        if not paths and grid is None:
            if not OWN_TABLES.is_dir():
                raise ValueError("name a table or a folder of tables: the project's own are in its repository")
            paths = [OWN_TABLES]
        if out is not None and (out.is_dir() or not out.absolute().parent.is_dir()):
            raise ValueError(f"--json {out}: is a folder, or its folder is not there")
        sweeps = (load.value,) if load else GRID_SWEEPS
        names = tuple(name.strip() for name in switch.split(",")) if switch is not None else ()
        found = material(Question(tuple(paths or ()), grid, acceptance, method, sweeps, names))
        for note in folded(found.problems):
            typer.echo(str(note), err=True)
        if not found.courses and not found.traces:
            for note in folded(found.skipped):
                typer.echo(f"left out: {note}", err=True)
            raise ValueError("nothing to replay: no trace, and no load with two valid fixed arms in what could be read")
    except ValueError as error:
        fail("replay", error)
    seeds = SEEDS if seed is None else (seed,)
    console = Console()
    with _progress(Console(stderr=True)) as done:
        report = run(
            found.courses,
            seeds=seeds,
            processes=os.cpu_count() or 1,
            traces=found.traces,
            skipped=found.skipped,
            problems=found.problems,
            done=done,
        )
    result = report.json(decisions=decisions)
    if out is not None:
        try:
            _write(out, json.dumps(result, indent=1, ensure_ascii=False) + "\n")
        except OSError as error:
            fail("replay", f"--json {out}: {error.strerror}")
    _tell(console, report, result["overall"], decisions=decisions)


def _write(out: Path, text: str) -> None:
    """A file whole or not at all; what is no file (a pipe, /dev/stdout) as it comes."""
    if out.exists() and not out.is_file():
        out.write_text(text)
        return
    target = out.resolve()  # a link stays one
    part = target.with_name(f".{target.name[:200]}.{os.getpid()}")
    try:
        part.write_text(text)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[int, int, str], None]]:
    """On the error output, in the way of no pipe: a bar on a terminal, else a line as each table ends."""
    if not console.is_terminal:
        yield lambda count, total, table: typer.echo(f"{table}: {count} of {total} runs", err=True) if table else None
        return
    columns = (TextColumn("runs"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("runs", total=None)
        yield lambda count, total, _table: progress.update(task, completed=count, total=total)


def _tell(console: Console, report: Report, overall: Mapping[str, Any], *, decisions: bool) -> None:
    if report.cases:
        _table(console, [[value(case) for value in COLUMNS.values()] for case in report.cases])
    if decisions:
        for one in report.decisions:
            place = f"{one.table_id} {one.workload[:WORKLOAD_WIDTH] if console.is_terminal else one.workload}".strip()
            typer.echo(f"{place} {one.sweep} seed {one.seed} {_clock(one.at_seconds)} {one.reason}: {one.message}")
    for trace in report.traces:
        typer.echo(_traced(trace))
        for told in trace.decisions if decisions else ():
            typer.echo(f"{trace.name} {_clock(told['at_seconds'])} {told['reason']}: {told['message']}")
    for note in report.skipped:
        typer.echo(f"left out: {note}")
    if not report.cases:
        return
    typer.echo(
        f"{counted(overall['cases'], 'case')}: steady regret {overall['steady_mean_regret_pct']:.2f} % on average, "
        f"{overall['steady_worst_regret_pct']:.2f} % at worst, {overall['within_2pct']} within 2 %; "
        f"all counted {overall['mean_regret_pct']:.2f} % on average, {overall['worst_regret_pct']:.2f} % at worst"
    )


def _table(console: Console, rows: Sequence[Sequence[str]]) -> None:
    if not console.is_terminal:
        for row in [list(COLUMNS), *rows]:
            typer.echo("\t".join(row))
        return
    shown = Table(*COLUMNS)
    for column in shown.columns[2:]:
        column.justify = "right"
    at = list(COLUMNS).index("workload")
    for row in rows:
        shown.add_row(*row[:at], row[at][:WORKLOAD_WIDTH], *row[at + 1 :])
    console.print(shown)


def _traced(trace: Retraced) -> str:
    told = f"{trace.file}: {trace.name}, {counted(trace.passes, 'pass', 'es')} in {trace.seconds:.0f} s"
    if trace.same_k_pct is None:
        return f"{told}: nothing to compare, no load is in it"
    first = trace.first_difference_seconds
    apart = "" if first is None else f", the first other one at {_clock(first)}"
    compared = counted(trace.compared, "pass", "es")
    return f"{told}: the k of the recorded table in {trace.same_k_pct:.1f} % of {compared}{apart}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02d}"


def _or_dash(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
