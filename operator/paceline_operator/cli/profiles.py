"""`paceline profile`: what a serving or an experiment has learnt, taken out as a file and brought in elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline_operator import naming
from paceline_operator.api.profiles import SpeculationProfile
from paceline_operator.api.status import ServingStatus
from paceline_operator.cli.cluster import Context, Namespace, Object, Serving, Where, reach, serving_of
from paceline_operator.cli.mistake import counted, fail
from paceline_operator.cli.stored import folder_of
from paceline_operator.experiment import results
from paceline_operator.local import document
from paceline_operator.local.mistake import UserError
from paceline_operator.profiling import learn, measured
from paceline_operator.profiling.key import differing
from paceline_operator.verdicts import status_of

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube

profile = typer.Typer(
    no_args_is_help=True, help="What was learnt of an engine configuration: take it out, bring it in."
)


@profile.command("export")
def export(
    serving: Serving,
    out: Annotated[Path | None, typer.Option("--out", "-o", metavar="FILE", help="Else to standard output.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the profile; else the serving's.")] = None,
    workload: Annotated[str, typer.Option(help="Kind of text, in words: acceptance depends on it.")] = "unknown",
    experiment: Annotated[
        str | None,
        typer.Option(metavar="FOLDER|NAME", help="The numbers from these results of an experiment with the serving."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Write what a serving has learnt as a SpeculationProfile."""
    where = Where(context, namespace)
    raw = reach("profile export", where, lambda kube: serving_of(kube, *where.split(serving)))
    folder = folder_of("profile export", experiment, where) if experiment else None
    try:
        body = exported(raw, name or raw["metadata"]["name"], workload, folder)
        text = document.written(body)
        if out is None:
            typer.echo(text, nl=False)
            return
        out.write_text(text, encoding="utf-8")
    except (UserError, results.ResultError) as error:
        fail("profile export", error)
    except OSError as error:
        fail("profile export", f"{out}: {error.strerror}")
    spec = body["spec"]
    times, ks = counted(len(spec["cost"]), "step time"), counted(len(spec.get("acceptance", ())), "k")
    typer.echo(f"{out}: {times}, acceptance of {ks}")


@profile.command("import")
def bring(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A SpeculationProfile.")],
    serving: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A serving that is to start from it: refused where its key is another."),
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Store a SpeculationProfile in the cluster, and name it in a serving."""
    where = Where(context, namespace)
    try:
        body, given = document.profile(file)
    except UserError as error:
        fail("profile import", error)

    async def work(kube: Kube) -> str:
        place, of = where.split(serving or given.metadata.name)
        if serving is not None:
            refuse(given, await serving_of(kube, place, of))
        whole = {**body, "metadata": {**body["metadata"], "namespace": place}}
        await kube.apply(whole, manager=naming.CLI_MANAGER)
        said = f"speculationprofile.{naming.GROUP}/{given.metadata.name} is stored in namespace {place}"
        if serving is not None:
            ref = {"spec": {"tuning": {"profileRef": {"name": given.metadata.name}}}}
            await kube.merge(naming.KIND_SERVING, place, of, ref)
            said += f", and {of} names it"
        return said

    typer.echo(reach("profile import", where, work))


def exported(raw: Object, name: str, workload: str, experiment: Path | None) -> Object:
    """The profile of a raw serving. Raises UserError or ResultError."""
    status = status_of(raw, ServingStatus)
    if experiment is None:
        found = learn.profile_of(name, status.learned, workload)
    else:
        key = status.learned.key if status.learned else None
        if key is None:
            why = status.learned.message if status.learned else "no engine told it yet"
            raise UserError(f"{raw['metadata']['name']}: its key is not known: {why}")
        spec = measured.profile_of(results.folder(experiment), key, workload)
        found = spec if isinstance(spec, str) else learn.body(name, spec.model_dump(mode="json", by_alias=True))
    if isinstance(found, str):
        raise UserError(f"{raw['metadata']['name']}: {found}")
    return found


def refuse(given: SpeculationProfile, raw: Object) -> None:
    """Raises UserError where the engines of a raw serving are known to have another key."""
    learned = status_of(raw, ServingStatus).learned
    if learned is None or learned.key is None:
        return  # nothing contradicts it yet: the operator compares once the engines answer
    if fields := differing(given.spec.key, learned.key):
        raise UserError(
            f"the key of {given.metadata.name} is not that of {raw['metadata']['name']}: {'; '.join(fields)}"
        )
