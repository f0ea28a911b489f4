"""How every verb ends on a mistake of its caller: one message, one status."""

from __future__ import annotations

from typing import NoReturn

import typer

USER_ERROR_STATUS = 2


def fail(verb: str, error: Exception | str) -> NoReturn:
    """End with status 2 and one message that begins with the verb."""
    typer.echo(f"paceline {verb}: {error}", err=True)
    raise typer.Exit(USER_ERROR_STATUS) from None
