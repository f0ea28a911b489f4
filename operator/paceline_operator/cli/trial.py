"""`paceline experiment run`, `apply` and `template`: measure variants, bring the winner into the serving."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from paceline_operator import naming
from paceline_operator.api.experiment import SERVING
from paceline_operator.api.serving import ServingSpec
from paceline_operator.cli import stored
from paceline_operator.cli.cluster import Context, Namespace, Where, reach, serving_of
from paceline_operator.cli.mistake import bring, fail
from paceline_operator.cli.stored import Results, folder_of
from paceline_operator.clock import SystemClock
from paceline_operator.experiment import results, templates, variants, winner
from paceline_operator.local import container
from paceline_operator.local.mistake import UserError
from paceline_operator.local.trial import files
from paceline_operator.local.trial.run import Options, Run
from paceline_operator.local.view import LiveView, PlainView
from paceline_operator.preflight.evidence import PLACEHOLDER

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube

INCOMPLETE_STATUS = 1


def run(
    file: Annotated[
        list[Path],
        typer.Option(
            "--file", "-f", help="A SpeculationExperiment, its SpeculativeServing, its ConfigMap; repeatable."
        ),
    ],
    local: Annotated[
        bool, typer.Option("--local", help="With engines of this machine; else the operator runs it in the cluster.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FOLDER", help="Of results; else in the cache folder.")
    ] = None,
    dataset: Annotated[Path | None, typer.Option(help="Prompts, JSON a line, in place of the experiment's.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Start all engines at once and keep them: faster, if the memory holds them.")
    ] = False,
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="Serving port; else 8000 or a free one.")] = None,
    price: Annotated[
        float | None, typer.Option("--gpu-hour-price", min=0, help="Of one GPU for an hour, for the cost of tokens.")
    ] = None,
    tty: Annotated[
        bool | None, typer.Option("--tty/--no-tty", help="A live line, or plain lines; else by what the output is.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Measure every variant: in the cluster, or with engines of this machine.

    In the cluster the operator does. With --local it is reported, too; run again, it goes on with what is missing.

    Status 1: something is missing still.
    """
    if not local:
        here = {"--out": out, "--dataset": dataset, "--keep": keep or None, "--port": port, "--gpu-hour-price": price}
        if wrong := [option for option, value in here.items() if value is not None]:
            fail("experiment run", f"{', '.join(wrong)}: with --local alone")
        typer.echo(stored.store(file, Where(context, namespace)))
        return
    console = Console()
    view = LiveView(console) if (console.is_terminal if tty is None else tty) else PlainView(console)
    try:
        given = files.read(file, dataset)
        if port is not None and keep:
            raise UserError("--port is for one engine at a time: remove it or --keep")
        container.check_device(given.serving.spec.engine.device, f"serving {given.serving.metadata.name}")
        folder = out or container.cache_folder() / "experiments" / given.name
        made = Run(Options(folder, keep, port), given, view, SystemClock())
        whole = asyncio.run(made.run())
    except UserError as error:
        view.close()
        fail("experiment run", error)
    _report(folder, price)
    raise typer.Exit(0 if whole else INCOMPLETE_STATUS)


def _report(folder: Path, price: float | None) -> None:
    try:
        from paceline_operator.experiment import publish, report
    except ImportError as error:
        typer.echo(f"no report: {error}: {bring('report')}, then `paceline experiment report {folder}`")
        return
    try:
        found = report.build(results.folder(folder), price)
        page = publish.write(found, folder / "report")[0]
    except results.ResultError as error:
        fail("experiment run", error)
    except OSError as error:
        fail("experiment run", f"{error.filename}: {error.strerror}")
    for line in (*found.conclusions, winner.winner(found.results).message):
        typer.echo(line)
    for result in found.results:
        for text in result.missing:
            typer.echo(f"missing of {result.variant}: {text}")
    typer.echo(str(page))


def apply(
    source: Results,
    variant: Annotated[str | None, typer.Option(help="This one, whatever the results; else the winner.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")] = False,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write the winner's fields into the serving, as any change of its spec: canary and rollback apply."""
    where = Where(context, namespace)
    folder = folder_of("experiment apply", source, where)
    try:
        measured = files.kept(folder)
        chosen, why = (variant, "") if variant else _winner(folder)
        known = variants.of(measured.experiment.spec, measured.serving.spec)
        if chosen not in known:
            raise UserError(f"no variant {chosen}: there are {', '.join(known)}")
    except UserError as error:
        fail("experiment apply", error)
    if why:
        typer.echo(why)
    if chosen == SERVING:
        typer.echo("nothing to change")
        return
    name = measured.experiment.spec.serving_ref.name
    place, _ = where.split(name if folder == Path(source) else source)  # the serving is where its experiment is

    async def work(kube: Kube) -> list[str]:
        raw = await serving_of(kube, place, name)
        changes = variants.patch(raw, known[chosen], measured.serving.spec)
        lines = [f"  {line}" for line in variants.differences(changes, raw)]
        told = [f"measured with another {field} than {place}/{name} has" for field in _elsewhere(raw, measured)]
        if not lines:
            return [*told, f"{place}/{name} is {chosen} already"]
        if not dry_run:
            # Of this very object, unchanged since it was read: what was decided is about it.
            seen = {field: raw["metadata"][field] for field in ("uid", "resourceVersion")}
            await kube.merge(naming.KIND_SERVING, place, name, {**changes, "metadata": seen})
        would = "would become" if dry_run else "becomes"
        return [*told, f"{place}/{name} {would} {chosen}:", *lines]

    for line in reach("experiment apply", where, work):
        typer.echo(line)


def _winner(folder: Path) -> tuple[str, str]:
    try:
        found = winner.winner(results.folder(folder))
    except results.ResultError as error:
        raise UserError(str(error)) from None
    return found.variant, found.message


def _elsewhere(raw: dict[str, Any], given: files.Given) -> list[str]:
    """Parts of the spec in which the serving is not what was measured."""
    there = ServingSpec.model_validate(raw["spec"])
    measured = given.serving.spec
    parts = {
        "spec.model": (there.model.source, measured.model.source),
        "spec.engine": (there.engine, measured.engine),
        "spec.speculation": (there.speculation, measured.speculation),
    }
    return [name for name, (one, other) in parts.items() if one != other]


def template(
    name: Annotated[str | None, typer.Argument(help="Which; without it, all are listed.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Else it is printed.")] = None,
) -> None:
    """Write an experiment to fill in: its serving, its load."""
    if name is None:
        for one, title in templates.titles().items():
            typer.echo(f"{one:18} {title}")
        return
    try:
        text = templates.text(name)
    except KeyError:
        fail("experiment template", f"no template {name}: there are {', '.join(templates.titles())}")
    if out is None:
        typer.echo(text, nl=False)
        return
    try:
        with out.open("x") as file:
            file.write(text)
    except OSError as error:
        fail("experiment template", f"{out}: {error.strerror}")
    parts = (
        "spec.servingRef, spec.load and what is in capitals" if PLACEHOLDER in text else "spec.servingRef and spec.load"
    )
    typer.echo(f"{out}: fill in {parts}, then `paceline experiment run -f {out} -f SERVING --local`")
