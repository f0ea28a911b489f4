"""`paceline experiment`: what an experiment measured, judged and told."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline_operator.experiment import results

USER_ERROR_STATUS = 2
experiment = typer.Typer(no_args_is_help=True, help="Is speculation worth it: what an experiment measured.")


@experiment.callback()
def _group() -> None:
    """Make `report` a command of its own while it is the only one."""


@experiment.command()
def report(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Result files, one for each variant.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Of the report; else FOLDER/report.")
    ] = None,
    price: Annotated[
        float | None, typer.Option("--gpu-hour-price", min=0, help="Of one GPU for an hour, for the cost of tokens.")
    ] = None,
) -> None:
    """Judge every variant against the baseline, and write page, pictures, JSON and CSV."""
    try:
        from paceline_operator.experiment import publish
        from paceline_operator.experiment import report as reports
    except ImportError as error:
        typer.echo(f"paceline experiment report: {error}: install paceline[report]", err=True)
        raise typer.Exit(USER_ERROR_STATUS) from None
    try:
        found = reports.build(results.folder(folder), price)
        files = publish.write(found, out or folder / "report")
    except results.ResultError as error:
        typer.echo(f"paceline experiment report: {error}", err=True)
        raise typer.Exit(USER_ERROR_STATUS) from None
    except OSError as error:
        typer.echo(f"paceline experiment report: {error.filename}: {error.strerror}", err=True)
        raise typer.Exit(USER_ERROR_STATUS) from None
    for line in found.conclusions:
        typer.echo(line)
    typer.echo(str(files[0]))
