"""`paceline suspend`, `resume`, `pin` and `unpin`: changes of a serving's spec, made as the user who asks for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline_operator import naming
from paceline_operator.api.status import MAX_K
from paceline_operator.api.tuning import TuningMode
from paceline_operator.cli.cluster import Context, Namespace, Object, Serving, Where, reach, serving_of
from paceline_operator.local.document import UserError

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
        # Of this very object, unchanged since it was read: what was decided is about it.
        seen = {field: raw["metadata"][field] for field in ("uid", "resourceVersion")}
        changes = {**changes, "metadata": {**changes.get("metadata", {}), **seen}}
        await kube.merge(naming.KIND_SERVING, namespace, name, changes)
        return f"{namespace}/{name} {said}"

    typer.echo(reach(verb, where, work))
