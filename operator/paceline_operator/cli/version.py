"""`paceline version`, and `paceline --version`."""

from __future__ import annotations

from importlib.metadata import version as installed_version

import typer


def version() -> None:
    """Print the version."""
    typer.echo(installed_version("paceline"))
