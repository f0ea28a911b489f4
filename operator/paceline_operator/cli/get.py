"""`paceline status`, `top`, `history` and `table`: what servings do, read from their status."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from paceline_operator import shown
from paceline_operator.api.status import ServingStatus
from paceline_operator.cli.cluster import (
    Context,
    Format,
    Namespace,
    Object,
    Output,
    Serving,
    Where,
    complete,
    present_namespace,
    printed,
    reach,
    serving_of,
    servings_in,
)
from paceline_operator.safety.incident import printable
from paceline_operator.verdicts import status_of

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube

WIDE_COLUMNS = 10_000
"""In a pipe nothing is wrapped or cut: programs and pagers take lines as they are."""
Servings = Annotated[
    list[str] | None, typer.Argument(metavar="[[NAMESPACE/]NAME ...]", help="Else all.", autocompletion=complete)
]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="Those of all namespaces.")]


def status(
    servings: Servings = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    output: Format = Output.TABLE,
) -> None:
    """Show servings: readiness, k, tier, load, and what speculation brings."""
    where = Where(context, namespace)
    found = reach("status", where, lambda kube: read(kube, where, servings or [], everywhere))
    text = printed(found, output, one=len(servings or []) == 1)
    if text is not None:
        typer.echo(text)
        return
    if not found:
        place = "any namespace" if everywhere else f"namespace {where.namespace or present_namespace(where.context)}"
        typer.echo(f"No SpeculativeServing in {place}.", err=True)
        return
    wide = output is Output.WIDE
    show(shown.WIDE if wide else shown.OVERVIEW, [shown.overview(raw, wide=wide) for raw in found])


def top(
    servings: Servings = None,
    namespace: Namespace = None,
    everywhere: Everywhere = False,
    context: Context = None,
    interval: Annotated[float, typer.Option(min=0.5, max=3600, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="Looks; else until Ctrl-C, in a pipe one.")] = None,
) -> None:
    """Watch servings live: load, k in force, tokens per second, acceptance, and the last decision of each."""
    where, console = Where(context, namespace), console_of_output()
    looks = count or (None if console.is_terminal else 1)

    async def watch(kube: Kube) -> None:
        made = 0
        with screen(console) as show_now:
            while True:
                show_now(watched(await read(kube, where, servings or [], everywhere)))
                made += 1
                if looks is not None and made >= looks:
                    return
                await asyncio.sleep(interval)

    try:
        reach("top", where, watch)
    except KeyboardInterrupt:
        raise typer.Exit from None


def history(
    serving: Serving, namespace: Namespace = None, context: Context = None, output: Format = Output.TABLE
) -> None:
    """List the changes of k, and of how drafts are verified, with their reasons; newest first."""
    raw, status = _one("history", serving, Where(context, namespace))
    parts = status.model_dump(mode="json", by_alias=True, include={"decisions"}, exclude_none=True)
    _part(raw, parts, output, shown.DECISIONS, shown.decisions(status), "no decision was made yet")


def table(
    serving: Serving, namespace: Namespace = None, context: Context = None, output: Format = Output.TABLE
) -> None:
    """Show the k of each load, and what was measured of it."""
    raw, status = _one("table", serving, Where(context, namespace))
    parts = status.model_dump(mode="json", by_alias=True, include={"table", "recommended_table", "buckets"})
    _part(raw, parts, output, shown.TABLE, shown.table(status), "nothing was measured yet")


async def read(kube: Kube, where: Where, names: Sequence[str], everywhere: bool) -> list[Object]:
    """The servings named, or all of the namespace. Raises UserError where a named one is not there."""
    if names:
        return [await serving_of(kube, *where.split(name)) for name in names]
    place = "" if everywhere else where.namespace or present_namespace(where.context)
    return await servings_in(kube, place)


def watched(found: Sequence[Object]) -> Group:
    """The live table, and below it the newest decision of each serving."""
    news = []
    for raw in found:
        status = status_of(raw, ServingStatus)
        if status.decisions:
            last = status.decisions[0]
            news.append(Text(f"{raw['metadata']['name']}  {last.at}  {last.reason}: {last.message}"))
    return Group(laid_out(shown.LIVE, [shown.live(raw) for raw in found]), *news)


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table."""
    console_of_output().print(laid_out(head, rows))


def laid_out(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """Columns as kubectl sets them: no lines, no colours that mean something."""
    laid = Table(*head, box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for row in rows:
        laid.add_row(*(Text(printable(cell)) for cell in row))
    return laid


@contextmanager
def screen(console: Console) -> Iterator[Callable[[Group], None]]:
    """Shows one thing in the place of the one before; in a pipe, one after the other."""
    if not console.is_terminal:
        yield console.print
        return
    with Live(console=console, auto_refresh=False) as live:
        yield lambda found: live.update(found, refresh=True)


def console_of_output() -> Console:
    """A terminal as wide as it is; a pipe as wide as its lines."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE_COLUMNS)


def _one(verb: str, serving: str, where: Where) -> tuple[Object, ServingStatus]:
    raw = reach(verb, where, lambda kube: serving_of(kube, *where.split(serving)))
    return raw, status_of(raw, ServingStatus)


def _part(
    raw: Object, parts: Object, output: Output, head: Sequence[str], rows: Sequence[Sequence[str]], none: str
) -> None:
    text = printed([{**raw, "spec": {}, "status": parts}], output, one=True)
    if text is not None:
        typer.echo(text)
    elif rows:
        show(head, rows)
    else:
        typer.echo(none, err=True)
