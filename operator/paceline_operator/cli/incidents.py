"""`paceline incidents`: the records of engines that ended or stood still, from the serving's ConfigMap."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline_operator import naming
from paceline_operator.api.status import ServingStatus
from paceline_operator.cli.cluster import (
    Context,
    Form,
    Namespace,
    Object,
    Serving,
    Where,
    reach,
    serving_of,
    structured,
)
from paceline_operator.cli.get import show
from paceline_operator.safety.incident import printable, read
from paceline_operator.verdicts import status_of

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube

incidents = typer.Typer(no_args_is_help=True, help="Records of engines that ended or stood still.")
HEAD = ("AT", "POD", "KIND", "EXIT", "LIVED", "FINGERPRINT", "INCIDENT")
Record = dict[str, Any]


@incidents.command("list")
def listed(
    serving: Serving,
    namespace: Namespace = None,
    context: Context = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="For people, or for programs.")] = Form.TABLE,
) -> None:
    """List the records of a serving, newest first."""
    found, _ = _records("incidents list", serving, Where(context, namespace))
    text = structured(found, output)
    if text is not None:
        typer.echo(text)
    elif found:
        show(HEAD, [_row(record) for record in found])
    else:
        typer.echo("No engine was seen to end.", err=True)


@incidents.command("show")
def shown(
    serving: Serving,
    incident: Annotated[str, typer.Argument(help="Of the list's last column; the newest if absent.")] = "",
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Print one record: what was run, how it ended, its last lines, and what was done."""
    found, _ = _records("incidents show", serving, Where(context, namespace))
    mine = next((record for record in found if incident in ("", record["id"])), None)
    if mine is None:
        typer.echo(f"paceline incidents show: {serving} has no incident {incident or 'at all'}", err=True)
        raise typer.Exit(2)
    for key, value in mine.items():
        if key == "log" and isinstance(value, list):
            typer.echo("log:\n  " + "\n  ".join(printable(str(line)) for line in value))
        else:
            text = value if isinstance(value, str | int) else json.dumps(value, ensure_ascii=False)
            typer.echo(printable(f"{key}: {text}"))


@incidents.command()
def export(serving: Serving, namespace: Namespace = None, context: Context = None) -> None:
    """Print all records, and what the ladder made of them, as cleaned JSON for a report: read it before you send it."""
    found, raw = _records("incidents export", serving, Where(context, namespace))
    safety = status_of(raw, ServingStatus).safety.model_dump(mode="json", by_alias=True, exclude_none=True)
    bundle = {"serving": raw["metadata"]["name"], "safety": safety, "incidents": found}
    typer.echo(json.dumps(bundle, ensure_ascii=False, indent=1))


def _records(verb: str, serving: str, where: Where) -> tuple[list[Record], Object]:
    """Newest first, and the serving."""

    async def work(kube: Kube) -> tuple[Object, Object | None]:
        namespace, name = where.split(serving)
        raw = await serving_of(kube, namespace, name)
        return raw, await kube.get("ConfigMap", namespace, naming.child(name, naming.INCIDENTS))

    raw, stored = reach(verb, where, work)
    data = (stored or {}).get("data") or {}
    records = [record for _, text in sorted(data.items(), reverse=True) if (record := read(str(text))) is not None]
    return records, raw


def _row(record: Record) -> tuple[str, ...]:
    lived = record.get("livedSeconds")
    shown = (record.get(key, "") for key in ("at", "pod", "kind", "exitCode"))
    return (
        *map(str, shown),
        f"{lived:.0f} s" if isinstance(lived, int | float) else "",
        str(record.get("fingerprint", "")),
        str(record["id"]),
    )
