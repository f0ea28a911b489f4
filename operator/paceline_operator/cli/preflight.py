"""`paceline preflight`: what is known of manifests before anything runs, without a cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline_operator.cli.cluster import Form
from paceline_operator.cli.mistake import fail
from paceline_operator.examined import MODELS, Examined, examine
from paceline_operator.local.document import UserError, documents

KINDS = tuple(MODELS)


def preflight(
    file: Annotated[Path, typer.Option("--file", "-f", help="Manifests; documents of other kinds are passed over.")],
    output: Annotated[Form, typer.Option("--output", "-o", help="For people, or for programs.")] = Form.TABLE,
) -> None:
    """Check manifests without a cluster; exit status 1 where one would be refused."""
    try:
        found = [examine(document) for document in documents(file) if document.get("kind") in KINDS]
        if not found:
            raise UserError(f"{file}: no document of kind {', '.join(KINDS)}")
    except UserError as error:
        fail("preflight", error)
    if output is Form.JSON:
        typer.echo(json.dumps([_json(one) for one in found], indent=2))
    else:
        typer.echo("\n\n".join(_text(one) for one in found))
    raise typer.Exit(0 if all(one.accepted for one in found) else 1)


def _json(one: Examined) -> dict[str, Any]:
    return {**one._asdict(), "remarks": [remark._asdict() for remark in one.remarks]}


def _text(one: Examined) -> str:
    of = f" (vLLM {one.version}, {one.runner} model runner)" if one.version else ""
    ks = " ".join(map(str, one.ladder))
    ladder = f", k {'fixed at' if len(one.ladder) == 1 else 'among'} {ks}" if ks else ""
    lines = [f"{one.kind} {one.name}{of}: {'accepted' if one.accepted else 'refused'}{ladder}"]
    for remark in one.remarks:
        source = f" ({remark.source})" if remark.source and remark.source not in remark.message else ""
        lines.append(f"  {remark.level.value:<8} {remark.reason}: {remark.message}{source}")
    return "\n".join(lines)
