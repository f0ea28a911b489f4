"""`paceline explain`: the numbers behind a serving's decisions, from its status in the cluster or from a recording."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from pydantic.alias_generators import to_camel

from paceline_operator import explained, told, worth
from paceline_operator.api.status import DecisionRecord, ServingStatus
from paceline_operator.cli.cluster import (
    Context,
    Form,
    Namespace,
    Object,
    Where,
    complete,
    reach,
    serving_of,
    structured,
)
from paceline_operator.cli.mistake import fail
from paceline_operator.effective.fleet import Known
from paceline_operator.local.mistake import UserError
from paceline_operator.replay import traces
from paceline_operator.tuning import decide
from paceline_operator.tuning.model import Memory
from paceline_operator.verdicts import merge, status_of
from paceline_operator.worth import Workload


def explain(
    serving: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAMESPACE/]NAME", help="A SpeculativeServing of the cluster.", autocompletion=complete
        ),
    ] = None,
    record: Annotated[
        Path | None, typer.Option(metavar="TRACE", help="In place of it: a trace of `paceline record`.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="For people, or for programs.")] = Form.TABLE,
    requests: Annotated[
        int | None, typer.Option(min=1, help="In a step: tell of this load alone, and of the k that it has now.")
    ] = None,
    gpu_hour: Annotated[
        float | None, typer.Option(min=0, help="Price of a GPU for an hour: tells the cost of a million tokens.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of one engine, for the cost.")] = 1,
    prefill_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Share of requests' time in prefill: tells whether it can pay.")
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="Of the requests, for the same.")] = None,
    structured_share: Annotated[
        float | None, typer.Option(min=0, max=1, help="Of answers that are code, JSON and the like, for the same.")
    ] = None,
) -> None:
    """Tell what is in force and why: costs, acceptance by position and goodput of each k, decision by decision."""
    try:
        if (serving is None) == (record is None):
            raise UserError("name a serving of the cluster, or a trace with --record: one of them")
        name, status = of_cluster(serving, Where(context, namespace)) if serving else of_trace(record)
    except UserError as error:
        fail("explain", error)
    text = structured(plain(name, status, requests), output)
    if text is not None:
        typer.echo(text)
        return
    typer.echo(explained.text(name, status) if requests is None else explained.at(name, status, requests))
    if any(one is not None for one in (gpu_hour, prefill_share, temperature, structured_share)):
        workload = Workload(prefill_share=prefill_share, temperature=temperature, structured_share=structured_share)
        typer.echo(f"\n{worth.text(worth.of_status(status, workload, gpu_hour, gpus))}")


def plain(name: str, status: ServingStatus, requests: int | None = None) -> Object:
    """Status with the API's own names and units, and what the table says of `requests` in a step."""
    found: Object = {"name": name, "status": status.model_dump(mode="json", by_alias=True, exclude_none=True)}
    if requests is not None:
        at = explained.entry(status, requests)._asdict()
        found["at"] = {to_camel(key): value for key, value in at.items() if value is not None}
    return found


def of_cluster(serving: str, where: Where) -> tuple[str, ServingStatus]:
    """By the rights of KUBECONFIG."""
    namespace, name = where.split(serving)
    raw = reach("explain", where, lambda kube: serving_of(kube, namespace, name))
    return f"{namespace}/{name}", status_of(raw, ServingStatus)


def of_trace(path: Path | None) -> tuple[str, ServingStatus]:
    """What today's tuner makes of a recording, all decisions included; times are since its start. Raises UserError."""
    assert path is not None
    trace, notes = traces.read(path)
    if trace is None:
        raise UserError("; ".join(map(str, notes)))
    for note in notes:
        typer.echo(str(note), err=True)
    memory, status, start = Memory(), ServingStatus(), trace.passes[0].at if trace.passes else 0.0
    seen: Mapping[str, Known] = {}
    made: list[DecisionRecord] = []
    for one in trace.passes:
        known = one.known_generation
        step = decide.step(trace.settings, memory, one.engines, known_generation=known, now=one.at)
        memory, at = step.memory, f"+{one.at - start:.0f}s"
        fields, verdicts = told.status(step, one.engines, status, at)
        seen, effective = told.effective(seen, one.engines, {}, {})
        conditions = merge(status.conditions, [*verdicts, effective], 0, at)
        status = status.model_copy(update={**fields, "conditions": conditions})
        made = [*status.decisions[: len(step.decisions)], *made]
    return f"{trace.name} ({path})", status.model_copy(update={"decisions": made})
