"""How verbs say things: one message and one status on a mistake of the caller, and numbers with their noun."""

from __future__ import annotations

from typing import NoReturn

import typer

USER_ERROR_STATUS = 2


def fail(verb: str, error: Exception | str) -> NoReturn:
    """End with status 2 and one message that begins with the verb."""
    typer.echo(f"paceline {verb}: {error}", err=True)
    raise typer.Exit(USER_ERROR_STATUS) from None


def why(error: OSError) -> str:
    """What the system said, and of which file where it told."""
    said = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {said}" if error.filename else said


def bring(extra: str) -> str:
    """How packages that are not here come: nothing is published under the project's name."""
    return f"in a clone of paceline, `pip install '.[{extra}]'` brings what is missing"


def counted(number: int, one: str, more: str = "s") -> str:
    """`1 pass`, `2 passes`."""
    return f"{number} {one}" if number == 1 else f"{number} {one}{more}"
