"""`paceline experiment watch`: how far an experiment is, read from its folder of results or from the cluster."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.table import Table
from rich.text import Text

from paceline_operator.api.status_experiment import ENDED
from paceline_operator.cli import stored
from paceline_operator.cli.cluster import Context, Namespace, Where
from paceline_operator.cli.get import console_of_output, laid_out, screen
from paceline_operator.cli.mistake import fail
from paceline_operator.cli.stored import Results
from paceline_operator.experiment import progress, watched
from paceline_operator.experiment.plan import Plan
from paceline_operator.experiment.results import VariantResult
from paceline_operator.local.mistake import UserError
from paceline_operator.local.trial import files, record
from paceline_operator.local.trial.run import Options, planned
from paceline_operator.safety.incident import printable


def watch(
    results: Results,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="Looks; else until all is measured, in a pipe one.")] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Watch an experiment that runs: windows measured of each variant, and the newest one's numbers."""
    console, where = console_of_output(), Where(context, namespace)
    looks = count or (None if console.is_terminal else 1)
    try:
        with screen(console) as show_now:
            while True:
                found, whole = look(Path(results)) if Path(results).is_dir() else _look(results, where)
                show_now(found)
                looks = looks and looks - 1
                if whole or looks == 0:
                    return
                time.sleep(interval)
    except UserError as error:
        fail("experiment watch", error)
    except KeyboardInterrupt:
        raise typer.Exit from None


def _look(given: str, where: Where) -> tuple[Group, bool]:
    """At an experiment of the cluster."""
    folder, status = stored.brought("experiment watch", given, where)
    lines = [Text(printable(line)) for line in stored.state(given, status)]
    table = [_table(*_read(folder)[1:])] if (folder / files.KEPT).exists() else []
    return Group(*table, *lines), status.phase in ENDED


def look(folder: Path) -> tuple[Group, bool]:
    """What is there to see, and whether all is measured. Raises UserError."""
    name, plan, results = _read(folder)
    there = results and set(plan.variants) <= results.keys()
    state = progress.state(plan, results) if there else "nothing measured yet"
    whole = bool(there) and progress.whole(plan, results)
    lines = [Text(f"{name}: {state}; {plan.message}")]
    lines += [Text(printable(f"missing of {one.variant}: {text}")) for one in results.values() for text in one.missing]
    return Group(_table(plan, results), *lines), whole


def _read(folder: Path) -> tuple[str, Plan, dict[str, VariantResult]]:
    given = files.kept(folder)
    results = files.Folder(folder).earlier()
    keep = any(record.ENGINES in one.methods.load for one in results.values())
    return given.name, planned(given, Options(folder, keep)), results


def _table(plan: Plan, results: Mapping[str, VariantResult]) -> Table:
    return laid_out(watched.HEAD, watched.rows(plan, results))
