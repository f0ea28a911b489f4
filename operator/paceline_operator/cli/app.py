"""The command line: reads arguments, calls, prints. No logic."""

from __future__ import annotations

import asyncio
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline_operator.cli import change, get
from paceline_operator.cli.doctor import doctor
from paceline_operator.cli.experiment import experiment
from paceline_operator.cli.explain import explain
from paceline_operator.cli.incidents import incidents
from paceline_operator.cli.mistake import fail
from paceline_operator.cli.preflight import preflight
from paceline_operator.cli.profiles import profile
from paceline_operator.cli.record import record
from paceline_operator.cli.replay import replay
from paceline_operator.local import container
from paceline_operator.local.document import UserError
from paceline_operator.local.run import Options, run
from paceline_operator.local.view import LiveView, PlainView

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Keeps speculative decoding at the right pace.",
)


@app.command()
def local(
    file: Annotated[Path, typer.Option("--file", "-f", help="A SpeculativeServing and, optionally, a LocalLoad.")],
    duration: Annotated[
        float | None, typer.Option(min=1, help="Seconds; else until the last phase, without a load until Ctrl-C.")
    ] = None,
    tty: Annotated[
        bool | None, typer.Option("--tty/--no-tty", help="A live screen, or plain lines; else by what the output is.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="JSON report; else in the cache folder.")] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Serving port; else 8000 or a free one.")] = None,
) -> None:
    """Run a serving's engines on this machine, tune them, and report what k was used when and why."""
    console = Console()
    live = console.is_terminal if tty is None else tty
    view = LiveView(console) if live else PlainView(console)
    try:
        target = report or container.cache_folder() / "reports" / f"{file.stem}.json"
        raise typer.Exit(asyncio.run(run(Options(file, target, duration, port), view)))
    except UserError as error:
        view.close()
        fail("local", error)


app.command()(get.status)
app.command()(get.top)
app.command()(explain)
app.command()(preflight)
app.command()(get.history)
app.command()(get.table)
app.command()(change.suspend)
app.command()(change.resume)
app.command()(change.pin)
app.command()(change.unpin)
app.command()(change.rollback)
app.command()(change.retry)
app.command()(doctor)
app.command()(replay)
app.command()(record)
app.add_typer(experiment, name="experiment")
app.add_typer(profile, name="profile")
app.add_typer(incidents, name="incidents")


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(installed_version(container.DISTRIBUTION))


def main() -> None:
    """Entry point of `paceline`."""
    app()
