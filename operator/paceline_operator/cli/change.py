"""`paceline suspend`, `resume`, `pin`, `unpin`, `rollback`, `retry`: changes of a serving as who asks for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from paceline_operator import naming
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.status import MAX_K, ServingStatus
from paceline_operator.api.tuning import TuningMode
from paceline_operator.cli.cluster import Context, Namespace, Object, Serving, Where, reach, serving_of
from paceline_operator.cli.mistake import counted
from paceline_operator.clock import SystemClock, rfc3339
from paceline_operator.local.mistake import UserError
from paceline_operator.resources import revision
from paceline_operator.resources.revision import Revision
from paceline_operator.rollout import undo
from paceline_operator.rollout.diff import boot_spec, changed
from paceline_operator.verdicts import status_of

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube


def suspend(serving: Serving, namespace: Namespace = None, context: Context = None) -> None:
    """Keep the operator's hands off a serving: its pods serve on with the last table."""
    _change("suspend", serving, Where(context, namespace), lambda _: ({"spec": {"suspend": True}}, "is suspended"))


def resume(serving: Serving, namespace: Namespace = None, context: Context = None) -> None:
    """Let the operator look after a serving again."""
    _change("resume", serving, Where(context, namespace), lambda _: ({"spec": {"suspend": False}}, "is resumed"))


def pin(
    serving: Serving,
    k: Annotated[int, typer.Argument(min=0, max=MAX_K, help="Tokens to draft, at every load; 0 stops drafting.")],
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Use one k at every load, until `paceline unpin`."""
    _change("pin", serving, Where(context, namespace), lambda raw: (pinned(raw, k), f"is pinned to k {k}"))


def unpin(serving: Serving, namespace: Namespace = None, context: Context = None) -> None:
    """Let k follow the measurements again, in the mode that `paceline pin` found."""

    def released(raw: Object) -> tuple[Object, str]:
        mode, changes = unpinned(raw)
        return changes, f"is in mode {mode}"

    _change("unpin", serving, Where(context, namespace), released)


def rollback(
    serving: Serving,
    to: Annotated[str | None, typer.Option(metavar="REVISION", help="A stored one; else the one before.")] = None,
    namespace: Namespace = None,
    context: Context = None,
) -> None:
    """Go back to the template that pods ran before: a change of the spec like any other, with its canary."""
    where = Where(context, namespace)

    async def work(kube: Kube) -> str:
        place, name = where.split(serving)
        raw = await serving_of(kube, place, name)
        stored = await kube.list("ControllerRevision", place, {naming.LABEL_SERVING: name})
        changes, said = undone(raw, [found for one in stored if (found := revision.read(one))], to)
        await kube.merge(naming.KIND_SERVING, place, name, _of_this(raw, changes))
        return f"{place}/{name} {said}"

    typer.echo(reach("rollback", where, work))


def undone(raw: Object, revisions: Sequence[Revision], to: str | None) -> tuple[Object, str]:
    """(the merge patch, what is said). Raises UserError where there is nothing to go back to."""
    rollout = status_of(raw, ServingStatus).rollout
    found = undo.previous(revisions, rollout.revision, rollout.target, {one.revision for one in rollout.failed}, to)
    if isinstance(found, str):
        raise UserError(found)
    try:
        now = boot_spec(ServingSpec.model_validate(raw["spec"]))
    except ValidationError as error:
        raise UserError(
            f"the spec is none that this version reads: {counted(error.error_count(), 'mistake')}"
        ) from None
    spec = undo.patch(now, dict(found.boot))
    if not spec:
        own = ", ".join(change.path for one in rollout.applied for change in one.changes)
        why = f"; what pods have besides are proposals of the operator's own: {own}" if own else ""
        raise UserError(f"the spec asks for revision {found.name} already{why}")
    fields = ", ".join(changed(now, dict(found.boot)))
    return {"spec": spec}, f"goes back to revision {found.name}: {fields}"


def retry(serving: Serving, namespace: Namespace = None, context: Context = None) -> None:
    """Ask for another try of what was rolled back, and lift a remedy of the safety ladder."""
    asked = {"metadata": {"annotations": {naming.ANNOTATION_RETRY: rfc3339(SystemClock().now())}}}
    _change("retry", serving, Where(context, namespace), lambda _: (asked, "is tried again"))


def pinned(raw: Object, k: int) -> Object:
    """The merge patch that pins `k`. Raises UserError where the engines did not boot with so many tokens."""
    spec = raw.get("spec") or {}
    largest = (spec.get("speculation") or {}).get("maxTokens", MAX_K)
    if k > largest:
        raise UserError(f"k {k} exceeds spec.speculation.maxTokens {largest}, with which the engines booted")
    annotations = raw["metadata"].get("annotations") or {}
    mode = (spec.get("tuning") or {}).get("mode", TuningMode.AUTO)
    before = annotations.get(naming.ANNOTATION_UNPINNED_MODE, mode)
    if mode == TuningMode.MANUAL and naming.ANNOTATION_UNPINNED_MODE not in annotations:
        raise UserError("spec.tuning.mode is Manual: the table is one of your own, which pin would overwrite; edit it")
    return {
        "metadata": {"annotations": {naming.ANNOTATION_UNPINNED_MODE: before}},
        "spec": {"tuning": {"mode": TuningMode.MANUAL.value, "table": [{"fromRequests": 1, "k": k}]}},
    }


def unpinned(raw: Object) -> tuple[str, Object]:
    """(the mode to return to, the merge patch). Raises UserError where nothing was pinned."""
    mode: Any = (raw["metadata"].get("annotations") or {}).get(naming.ANNOTATION_UNPINNED_MODE)
    if mode not in (TuningMode.AUTO, TuningMode.OBSERVE):
        raise UserError("it was not pinned by `paceline pin`")
    changes = {
        "metadata": {"annotations": {naming.ANNOTATION_UNPINNED_MODE: None}},
        "spec": {"tuning": {"mode": mode, "table": None}},
    }
    return str(mode), changes


def _change(verb: str, serving: str, where: Where, of: Any) -> None:
    async def work(kube: Kube) -> str:
        namespace, name = where.split(serving)
        raw = await serving_of(kube, namespace, name)
        changes, said = of(raw)
        await kube.merge(naming.KIND_SERVING, namespace, name, _of_this(raw, changes))
        return f"{namespace}/{name} {said}"

    typer.echo(reach(verb, where, work))


def _of_this(raw: Object, changes: Object) -> Object:
    """`changes` of this very object, unchanged since it was read: what was decided is about it."""
    seen = {field: raw["metadata"][field] for field in ("uid", "resourceVersion")}
    return {**changes, "metadata": {**changes.get("metadata", {}), **seen}}
