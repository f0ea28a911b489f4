"""`paceline local`: a serving's engines on this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from paceline_operator.cli.mistake import fail
from paceline_operator.local import container
from paceline_operator.local.mistake import UserError
from paceline_operator.local.run import Options, run
from paceline_operator.local.view import LiveView, PlainView


def local(
    file: Annotated[Path, typer.Option("--file", "-f", help="A SpeculativeServing and, optionally, a LocalLoad.")],
    duration: Annotated[
        float | None, typer.Option(min=1, help="Seconds; else until the last phase, without a load until Ctrl-C.")
    ] = None,
    tty: Annotated[
        bool | None, typer.Option("--tty/--no-tty", help="A live screen, or plain lines; else by what the output is.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="JSON report; else in the cache folder.")] = None,
    profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A SpeculationProfile to start from, where its key fits.")
    ] = None,
    save_profile: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to write what was learnt, as a SpeculationProfile.")
    ] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Serving port; else 8000 or a free one.")] = None,
) -> None:
    """Run a serving's engines on this machine, tune them, and report what k was used when and why."""
    console = Console()
    live = console.is_terminal if tty is None else tty
    view = LiveView(console) if live else PlainView(console)
    try:
        target = report or container.cache_folder() / "reports" / f"{file.stem}.json"
        options = Options(file, target, duration, port, profile=profile, save_profile=save_profile)
        raise typer.Exit(asyncio.run(run(options, view)))
    except UserError as error:
        view.close()
        fail("local", error)
