"""`paceline preflight`: what is known of manifests, and of their models, before anything runs.

Of models only small files and headers are read, never weights.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline_engine.preflight import gather, models
from paceline_engine.preflight.asked import Source
from paceline_engine.preflight.check import Check, Level, skipped, timed
from paceline_engine.preflight.model import Model
from paceline_engine.pull.report import Failure
from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.cli import podfields
from paceline_operator.cli.cluster import Form, structured
from paceline_operator.cli.mistake import counted, fail
from paceline_operator.examined import MODELS, Examined, examine, misspelt
from paceline_operator.local.document import KIND_LOAD, documents
from paceline_operator.local.mistake import UserError
from paceline_operator.preflight import matrix
from paceline_operator.resources.preflight import asked
from paceline_operator.safety.incident import printable
from paceline_operator.tuning.prior import boot_table, ladder_of

KINDS = tuple(MODELS)
HUB = "hub"
HERE = "this machine is not the engine's: it is checked in the pod (spec.engine.preflight)"
VARIANTS = skipped(
    "variants", "models of an experiment's variants are not read: check a serving that is changed as the variant says"
)
MACHINE = ("driver", "kernel", "versions")
ON_A_NETWORK = ("hf://", "s3://")
HERE_TOKEN = "here only $HF_TOKEN of this shell counts"  # noqa: S105 no token
LAYOUT = "a folder of --models has hf://owner/name as owner/name, pvc://claim/path as claim/path, and paths as they are"


def preflight(
    file: Annotated[
        list[Path],
        typer.Option("--file", "-f", help="Manifests; documents of kinds of others are passed over; repeatable."),
    ],
    where: Annotated[
        str | None,
        typer.Option(
            "--models",
            metavar="hub|FOLDER",
            help="Read the models' configuration, tokenizer and headers too: from their hub, or from a folder that has "
            "them as owner/name or claim/path.",
        ),
    ] = None,
    gpu_memory: Annotated[
        float | None,
        typer.Option(
            min=1, max=4096, help="GiB of one GPU, beside --models: does it all fit? Else what it needs is told."
        ),
    ] = None,
    output: Annotated[Form, typer.Option("--output", "-o", help="For people, or for programs.")] = Form.TABLE,
) -> None:
    """Check manifests without a cluster; exit status 1 where one would be refused, or its models do not fit."""
    files: dict[Path, tuple[list[dict[str, Any]], list[Examined]]] = {}
    unread: list[str] = []
    for path in file:
        try:
            files[path] = _ours(path)
        except UserError as error:
            unread.append(str(error))
    try:
        if gpu_memory is not None and where is None:
            raise UserError("--gpu-memory needs --models: what fits is told by the models' files")
        root = None if where in (None, HUB) else _folder(str(where))
    except UserError as error:
        fail("preflight", error)
    if not files:
        fail("preflight", "\n".join(unread))
    found: list[tuple[Path, Examined, list[Check]]] = []
    judged: list[str] = []
    for path, (read, wrong) in files.items():
        found += [(path, one, []) for one in wrong]
        judged += [""] * len(wrong)
        for document in read:
            one = podfields.checked(document, examine(document))
            checks: list[Check] = []
            if where is not None and one.accepted and one.kind == naming.KIND_EXPERIMENT:
                checks = [VARIANTS]
            elif where is not None and one.accepted and one.version:
                checks = _models(document, one, root, gpu_memory)
            found.append((path, one, checks))
            judged.append(_judged(document, one.version) if one.version else "")
    text = structured([_json(*one) for one in found], output)
    if text is not None:
        typer.echo(text)
    else:
        texts = (
            _text(path if len(file) > 1 else None, one, checks, by)
            for (path, one, checks), by in zip(found, judged, strict=True)
        )
        typer.echo("\n\n".join(texts))
        if made := [check for _, _, checks in found for check in checks]:
            typer.echo("\n" + _summary(made))
    if unread:
        fail("preflight", "\n".join(unread))
    good = all(one.accepted and all(check.level is not Level.FAIL for check in checks) for _, one, checks in found)
    raise typer.Exit(0 if good else 1)


def _ours(path: Path) -> tuple[list[dict[str, Any]], list[Examined]]:
    """The documents of our kinds, and what is wrong with kinds that are nearly ours. Raises UserError."""
    written = documents(path)
    read = [document for document in written if document.get("kind") in KINDS]
    wrong = [bad for document in written if (bad := misspelt(document, (KIND_LOAD,)))]
    if not read and not wrong:
        there = f"; there is {', '.join(str(one.get('kind')) for one in written)[:200]}" if written else ""
        raise UserError(f"{path}: no document of kind {', '.join(KINDS)}{there}")
    return read, wrong


def _folder(name: str) -> Path:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise UserError(f"--models {name} is no folder: name one, or `{HUB}`")
    return folder


def _models(document: Mapping[str, Any], one: Examined, root: Path | None, gpu_memory: float | None) -> list[Check]:
    serving = _serving(document)
    table = boot_table(ladder_of(serving.spec), serving.spec.engine.max_num_seqs)
    engine = asked(serving, table, version=one.version)
    found = [skipped(name, HERE if engine.gpu or name == "versions" else "no GPU asked for") for name in MACHINE]

    secret = serving.spec.model.token_secret_name is not None

    def reading() -> Any:
        target = _read("target", engine.target, root, secret=secret)
        draft = _read("draft", engine.draft, root, secret=secret) if engine.draft else None
        yield from models.checks(engine, target, draft, int(gpu_memory * 2**30) if gpu_memory else None)

    return [*found, *timed(reading(), time.monotonic)]


def _read(name: str, source: Source, root: Path | None, *, secret: bool) -> Model:
    """A model as far as this machine can see it; `secret`: the engine gets a token that is not here."""
    if root is None and not source.source.startswith(ON_A_NETWORK) and not os.path.isdir(source.path or source.source):
        return Model(name, source.source, unread="it is not on this machine: give --models FOLDER that has its files")
    found = gather.model(name, source, os.environ, root)
    if root is not None:
        return replace(found, remedy="correct the source, or bring the files: " + LAYOUT)
    if not found.gone.startswith(Failure.TOKEN_MISSING.value):
        return found
    if secret and not os.environ.get("HF_TOKEN"):
        return replace(found, gone="", unread=f"it is gated, private or not there, and {HERE_TOKEN}: it is not set")
    return replace(found, gone=f"{found.gone} ({HERE_TOKEN})")


def _json(path: Path, one: Examined, checks: list[Check]) -> dict[str, Any]:
    remarks = [remark._asdict() for remark in one.remarks]
    told = [check.model_dump(mode="json") for check in checks]
    failed = sum(check.level is Level.FAIL for check in checks)
    return {"file": str(path), **one._asdict(), "remarks": remarks, "checks": told, "failed": failed}


def _summary(checks: list[Check]) -> str:
    """The last line: what came of the checks of all documents."""
    count = Counter(check.level for check in checks)
    unread = {
        model
        for check in checks
        for model in ("target", "draft")
        if check.name == f"{model}-config" and check.level is Level.SKIP
    }
    why = f" ({' and '.join(sorted(unread, reverse=True))} not read)" if unread else ""
    return (
        f"{counted(len(checks), 'check')}: {count[Level.FAIL]} failed, {count[Level.WARN]} warned, "
        f"{count[Level.SKIP]} skipped{why}"
    )


def _judged(document: Mapping[str, Any], version: str) -> str:
    """The version, and the one by whose rules it was judged where that is another."""
    said = matrix.said_version(_serving(document).spec.engine)
    return version if said in ("", version) else f"{said}, judged by the rules of {version}"


def _serving(document: Mapping[str, Any]) -> SpeculativeServing:
    return SpeculativeServing.model_validate({key: value for key, value in document.items() if key != "status"})


def _text(path: Path | None, one: Examined, checks: list[Check], judged: str) -> str:
    """`judged`: the version of vLLM, in words."""
    of = f" (vLLM {judged}, {one.runner} model runner)" if judged else ""
    ks = " ".join(map(str, one.ladder))
    ladder = f", k {'fixed at' if len(one.ladder) == 1 else 'among'} {ks}" if ks else ""
    verdict = "accepted" if one.accepted else "refused"
    where = f"{path}: " if path else ""
    lines = [f"{where}{one.kind} {one.name or 'without a name'}{of}: {verdict}{ladder}"]
    for remark in one.remarks:
        source = f" ({remark.source})" if remark.source and remark.source not in remark.message else ""
        lines.append(f"  {remark.level.value:<8} {remark.reason}: {remark.message}{source}")
    for check in checks:
        remedy = f"; {check.remedy}" if check.remedy else ""
        source = f" ({check.source})" if check.source else ""
        lines.append(f"  {check.level.value:<8} {check.name}: {check.reason}{remedy}{source} [{check.seconds:.1f} s]")
    return "\n".join(map(printable, lines))
