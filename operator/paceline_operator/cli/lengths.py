"""`paceline experiment lengths`: how long prompts and answers of running engines are, for an experiment's load."""

from __future__ import annotations

import time
import urllib.request
from pathlib import Path
from typing import Annotated

import typer

from paceline_engine.trial.facts import ResultError
from paceline_operator.cli.mistake import counted, fail
from paceline_operator.experiment import lengths as profiles

ASK_SECONDS = 30.0
LARGEST_ANSWER = 8 * 1024 * 1024


def lengths(
    engines: Annotated[list[str], typer.Argument(metavar="URL...", help="Of engines, such as http://localhost:8000.")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="CSV to write.")],
    seconds: Annotated[float, typer.Option(min=1, help="How long; Ctrl-C ends it before.")] = 600,
) -> None:
    """Record the lengths of requests that end in the meantime, for `spec.load.prompts.lengths`.

    No text is read: engines count lengths in their /metrics.
    """
    try:
        before = [_ask(url) for url in engines]
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            typer.echo("ended before its time", err=True)
        rows = profiles.between([(text, _ask(url)) for text, url in zip(before, engines, strict=True)])
        out.write_text(profiles.written(rows))
    except ResultError as error:
        fail("experiment lengths", error)
    except OSError as error:
        fail("experiment lengths", f"{out}: {error.strerror}")
    typer.echo(f"{counted(len(rows), 'length')} in {out}")


def _ask(url: str) -> str:
    """Raises ResultError."""
    if not url.startswith(("http://", "https://")):
        raise ResultError(f"{url}: an engine's address begins with http:// or https://")
    try:
        with urllib.request.urlopen(f"{url.rstrip('/')}/metrics", timeout=ASK_SECONDS) as answer:  # noqa: S310 above
            content: bytes = answer.read(LARGEST_ANSWER)
    except (OSError, ValueError) as error:
        raise ResultError(f"{url}/metrics: {error}") from None
    return content.decode("utf-8", "replace")
