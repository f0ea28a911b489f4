"""`paceline experiment`: is speculation worth it here? `report` is here, the rest in trial.py and watch.py."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline_operator.cli import lengths, stored, trial, watch
from paceline_operator.cli.cluster import Context, Namespace, Where
from paceline_operator.cli.mistake import bring, fail
from paceline_operator.cli.stored import Results, folder_of
from paceline_operator.experiment import results

experiment = typer.Typer(no_args_is_help=True, help="Is speculation worth it here? Measure, judge, report, apply.")
experiment.command()(trial.run)
experiment.command()(watch.watch)


@experiment.command()
def report(
    given: Results,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FOLDER", help="Of the report; else `report` beside the results."),
    ] = None,
    price: Annotated[
        float | None, typer.Option("--gpu-hour-price", min=0, help="Of one GPU for an hour, for the cost of tokens.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Judge every variant against the baseline, and write page, pictures, JSON and CSV."""
    try:
        from paceline_operator.experiment import publish
        from paceline_operator.experiment import report as reports
    except ImportError as error:
        fail("experiment report", f"{error}: {bring('report')}")
    folder = folder_of("experiment report", given, Where(context, namespace))
    try:
        found = reports.build(results.folder(folder), price)
        files = publish.write(found, out or folder / "report")
    except results.ResultError as error:
        fail("experiment report", error)
    except OSError as error:
        fail("experiment report", f"{error.filename}: {error.strerror}")
    for line in found.conclusions:
        typer.echo(line)
    typer.echo(str(files[0]))


experiment.command()(trial.apply)
experiment.command()(stored.cancel)
experiment.command()(trial.template)
experiment.command()(lengths.lengths)
