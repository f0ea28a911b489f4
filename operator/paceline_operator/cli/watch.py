"""`paceline experiment watch`: how far an experiment of this machine is, read from its folder of results."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from paceline_operator.cli.get import console_of_output, laid_out
from paceline_operator.cli.mistake import fail
from paceline_operator.experiment import progress, watched
from paceline_operator.local.mistake import UserError
from paceline_operator.local.trial import files, record
from paceline_operator.local.trial.run import Options, planned


def watch(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Results of `paceline experiment run`.")],
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="Looks; else until all is measured, in a pipe one.")] = None,
) -> None:
    """Watch an experiment that runs: windows measured of each variant, and the newest one's numbers."""
    console = console_of_output()
    looks = count or (None if console.is_terminal else 1)
    try:
        with Live(console=console, auto_refresh=False) as screen:
            while True:
                found, whole = look(folder)
                screen.update(found, refresh=True)
                looks = looks and looks - 1
                if whole or looks == 0:
                    return
                time.sleep(interval)
    except UserError as error:
        fail("experiment watch", error)
    except KeyboardInterrupt:
        raise typer.Exit from None


def look(folder: Path) -> tuple[Group, bool]:
    """What is there to see, and whether all is measured. Raises UserError."""
    given = files.kept(folder)
    results = files.Folder(folder).earlier()
    keep = any(record.ENGINES in one.methods.load for one in results.values())
    plan = planned(given, Options(folder, keep))
    there = results and set(plan.variants) <= results.keys()
    state = progress.state(plan, results) if there else "nothing measured yet"
    whole = bool(there) and progress.whole(plan, results)
    lines = [Text(f"{given.name}: {state}; {plan.message}")]
    lines += [Text(f"missing of {one.variant}: {text}") for one in results.values() for text in one.missing]
    return Group(laid_out(watched.HEAD, watched.rows(plan, results)), *lines), whole
