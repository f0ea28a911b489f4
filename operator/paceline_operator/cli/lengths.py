"""`paceline experiment lengths`: how long prompts and answers of running engines are, for an experiment's load."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import httpx
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
        longest = min((found for url in engines if (found := _longest(url))), default=0)
        before = [_ask(url) for url in engines]
        try:
            time.sleep(seconds)
        except KeyboardInterrupt:
            typer.echo("ended before its time", err=True)
        rows = profiles.between([(text, _ask(url)) for text, url in zip(before, engines, strict=True)], longest)
        out.write_text(profiles.written(rows))
    except ResultError as error:
        fail("experiment lengths", error)
    except OSError as error:
        fail("experiment lengths", f"{out}: {error.strerror}")
    typer.echo(f"{counted(len(rows), 'length')} in {out}")


def _longest(url: str) -> int:
    """`max_model_len` of an engine, tokens; 0 where it does not say."""
    try:
        found = json.loads(_ask(url, "/v1/models"))["data"][0]["max_model_len"]
    except (ResultError, ValueError, LookupError, TypeError):
        return 0
    return found if isinstance(found, int) and found > 0 else 0


def _ask(url: str, path: str = "/metrics") -> str:
    """Raises ResultError."""
    if not url.startswith(("http://", "https://")):
        raise ResultError(f"{url}: an engine's address begins with http:// or https://")
    where, until, content = f"{url.rstrip('/')}{path}", time.monotonic() + ASK_SECONDS, bytearray()
    headers = {"accept-encoding": "identity"}
    try:
        with httpx.stream("GET", where, headers=headers, timeout=ASK_SECONDS, trust_env=False) as answer:
            if answer.status_code != httpx.codes.OK:
                raise ResultError(f"{where}: HTTP {answer.status_code}")
            for chunk in answer.iter_raw():
                content += chunk
                if len(content) > LARGEST_ANSWER or time.monotonic() > until:
                    raise ResultError(f"{where}: more than {LARGEST_ANSWER} bytes, or {ASK_SECONDS:.0f} s")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:  # ValueError: a host that is no name
        raise ResultError(f"{where}: {str(error) or type(error).__name__}") from None
    return content.decode("utf-8", "replace")
