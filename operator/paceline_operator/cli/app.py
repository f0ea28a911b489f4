"""The command line: reads arguments, calls, prints. No logic."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated

import typer

from paceline_operator.cli.mistake import why
from paceline_operator.cli.verbs import Verbs
from paceline_operator.cli.version import version

app = typer.Typer(cls=Verbs, no_args_is_help=True, pretty_exceptions_enable=False)


def _version(asked: bool) -> None:
    if asked:
        version()
        raise typer.Exit


@app.callback()
def paceline(
    _: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Keeps speculative decoding at the right pace."""


def main() -> None:
    """Entry point of `paceline`. What cannot be written, a full disk for one, is told in one line: status 1."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # of a terminal that has no arrows
    try:
        app()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left in buffers is not tried again
        print(f"paceline: {why(error)}", file=sys.stderr)
        sys.exit(1)
