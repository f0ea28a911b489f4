"""`paceline doctor`: is the operator healthy, are its kinds served, do versions agree, can metrics be read."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline_operator import naming
from paceline_operator.api.crd import KINDS, crd
from paceline_operator.cli.cluster import Context, Form, Where, reach, structured
from paceline_operator.cli.get import show
from paceline_operator.kinds import OPTIONAL
from paceline_operator.local.container import DISTRIBUTION
from paceline_operator.preflight.installation import Check, Found, Grade, checks, worst

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube

OPERATOR_LABELS = {"app.kubernetes.io/name": naming.APP, "app.kubernetes.io/component": "operator"}
WANTED = ("list", "get", "patch")


def doctor(
    operator_namespace: Annotated[str, typer.Option(help="Where the operator lives.")] = "paceline-system",
    context: Context = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="For people or for programs.")] = Form.TABLE,
) -> None:
    """Check the installation; exit status 1 where something fails."""
    found = reach("doctor", Where(context, None), lambda kube: look(kube, operator_namespace))
    results = checks(found, operator_namespace, datetime.now(UTC))
    text = structured([dataclasses.asdict(check) for check in results], output)
    if text is not None:
        typer.echo(text)
    else:
        show(["CHECK", "RESULT", "FOUND", "REMEDY"], [_row(check) for check in results])
    raise typer.Exit(1 if worst(results) is Grade.FAIL else 0)


async def look(kube: Kube, namespace: str) -> Found:
    """Everything the checks are about. What may not be read is told, and the rest is read."""
    from paceline_operator.clients.kube import KubeError

    refused: list[str] = []

    async def tried(what: str, call: Any, otherwise: Any = None) -> Any:
        try:
            return await call
        except KubeError as error:
            refused.append(f"{what}: {error}")
            return otherwise

    server = await kube.fetch("/version") or {}
    wanted = {body["metadata"]["name"]: body for body in map(crd, KINDS)}
    crds: dict[str, Any] = {}
    for name in wanted:
        seen = len(refused)
        body = await tried(name, kube.fetch(f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"))
        if len(refused) == seen:
            crds[name] = body
    kinds = await tried(naming.API_VERSION, kube.served(naming.API_VERSION))
    served = naming.PLURAL_SERVING in (kinds or ())
    seen = len(refused)
    lease = await tried("the Lease", kube.get("Lease", namespace, naming.FIELD_MANAGER))
    lease_seen = len(refused) == seen
    return Found(
        server=f"{server.get('major', '?')}.{server.get('minor', '?')}",
        version=installed_version(DISTRIBUTION),
        crds=crds,
        wanted_crds=wanted,
        kinds=kinds,
        deployments=await tried("the operator's Deployment", kube.list("Deployment", namespace, OPERATOR_LABELS)),
        lease=lease,
        lease_seen=lease_seen,
        servings=await tried("servings", kube.list(naming.KIND_SERVING, "", {})) if served else None,
        optional={kind: await tried(kind, kube.serves(kind)) for kind in OPTIONAL},
        rights={
            f"{verb} {naming.PLURAL_SERVING}": await tried(
                f"may {verb}", kube.may(verb, naming.GROUP, naming.PLURAL_SERVING, "")
            )
            for verb in WANTED
        },
        refused=refused,
    )


def _row(check: Check) -> list[str]:
    return [check.name, check.grade.value, check.message, check.remedy]
