"""Experiments of a cluster, on the command line: stored there, ended, and their results as a folder of files."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline_operator import naming
from paceline_operator.api.status_experiment import ENDED, ExperimentStatus
from paceline_operator.cli.cluster import Context, Namespace, Object, Where, reach
from paceline_operator.cli.mistake import counted, fail
from paceline_operator.local import container
from paceline_operator.local.mistake import UserError
from paceline_operator.local.trial import files
from paceline_operator.verdicts import status_of

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube

VISITS = "visits.json"
"""Beside results in ConfigMaps: how engines ended, which is the operator's to read."""
NAMED = re.compile(r"([a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?/)?[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
"""[NAMESPACE/]NAME: names are DNS subdomains, those of namespaces DNS labels."""
Results = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|NAME",
        help="Results of `paceline experiment run`: a folder, or an experiment of the cluster, [NAMESPACE/]NAME.",
    ),
]


def store(paths: Sequence[Path], where: Where) -> str:
    """Write an experiment and its prompts into the cluster, where the operator runs it; what is said. No return on a
    mistake."""
    try:
        experiment, *others = files.of_cluster(paths)
    except UserError as error:
        fail("experiment run", error)

    async def work(kube: Kube) -> str:
        place, name = where.split(experiment["metadata"]["name"])
        serving = experiment["spec"]["servingRef"]["name"]
        if await kube.get(naming.KIND_SERVING, place, serving) is None:
            raise UserError(f"no {naming.KIND_SERVING} {serving} in namespace {place}, which spec.servingRef names")
        for body in (*others, experiment):
            metadata = {**body["metadata"], "namespace": place}
            await kube.apply({**body, "metadata": metadata}, manager=naming.CLI_MANAGER)
        stored = f"{naming.KIND_EXPERIMENT.lower()}.{naming.GROUP}/{name} is stored in namespace {place}"
        return f"{stored}: `paceline experiment watch {place}/{name}` shows how far it is"

    return reach("experiment run", where, work)


def cancel(
    experiment: Annotated[str, typer.Argument(metavar="[NAMESPACE/]NAME", help="A SpeculationExperiment.")],
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """End an experiment of the cluster now; what was measured is judged."""
    where = Where(context, namespace)

    async def work(kube: Kube) -> str:
        place, name = where.split(experiment)
        raw = await _read(kube, place, name)
        phase = status_of(raw, ExperimentStatus).phase
        if phase in ENDED:
            return f"{place}/{name} has ended already: {phase}"
        changes = {"metadata": {"uid": raw["metadata"]["uid"]}, "spec": {"cancel": True}}
        await kube.merge(naming.KIND_EXPERIMENT, place, name, changes)
        return f"{place}/{name} is cancelled"

    typer.echo(reach("experiment cancel", where, work))


def folder_of(verb: str, given: str, where: Where) -> Path:
    """`given` where it is a folder here; else that experiment's results, brought from the cluster."""
    if (folder := Path(given)).is_dir():
        return folder
    folder, status = brought(verb, given, where)
    if not any(folder.glob("*.json")):
        fail(verb, f"{given}: nothing is measured yet: {status.phase}")
    return folder


def brought(verb: str, given: str, where: Where) -> tuple[Path, ExperimentStatus]:
    """The folder with the results of an experiment of the cluster, and its status. No return on a mistake."""
    if not NAMED.fullmatch(given):
        fail(verb, f"no folder {given}")
    return reach(f"{verb}: no folder {given} here", where, lambda kube: _brought(kube, given, where))


async def _brought(kube: Kube, given: str, where: Where) -> tuple[Path, ExperimentStatus]:
    place, name = where.split(given)
    raw = await _read(kube, place, name)
    maps = await kube.list("ConfigMap", place, {naming.LABEL_EXPERIMENT: name})
    folder = container.cache_folder() / "experiments" / f"{place}_{name}"
    try:
        _write(folder, _texts(maps, raw["metadata"]["uid"]))
    except OSError as error:
        raise UserError(f"{folder}: {error.strerror}") from None
    return folder, status_of(raw, ExperimentStatus)


def state(name: str, status: ExperimentStatus) -> list[str]:
    """How far an experiment of the cluster is, in lines."""
    running = f", {status.running} runs" if status.running else ""
    planned = counted(status.planned_windows, "window")
    done = (
        f"; {status.windows} of {planned}, {status.gpu_seconds / 60:.0f} GPU-minutes spent"
        if status.planned_windows
        else ""
    )
    lines = [f"{name}: {status.phase}{running}{done}"]
    lines += [
        f"{one.type} {one.status}: {one.reason}: {one.message}"
        for one in status.conditions
        if one.status != "True" and status.phase not in ENDED
    ]
    lines += [status.winner_message] if status.winner_message else []
    return [*lines, *(f"missing: {text}" for text in status.missing)]


async def _read(kube: Kube, place: str, name: str) -> Object:
    raw = await kube.get(naming.KIND_EXPERIMENT, place, name)
    if raw is None:
        raise UserError(f"no {naming.KIND_EXPERIMENT} {name} in namespace {place}")
    return raw


def _texts(maps: Sequence[Mapping[str, Any]], uid: str) -> dict[str, str]:
    """File name -> content, of the experiment's own ConfigMaps."""
    mine = [one for one in maps if uid in [owner.get("uid") for owner in one["metadata"].get("ownerReferences") or []]]
    found = {name: str(text) for one in mine for name, text in (one.get("data") or {}).items()}
    return {
        name: text
        for name, text in found.items()
        if Path(name).name == name and (name == files.KEPT or (name.endswith(".json") and name != VISITS))
    }


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.json"), folder / files.KEPT):
        if old.name not in texts:
            old.unlink(missing_ok=True)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
