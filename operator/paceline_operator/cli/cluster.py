"""What the verbs about a cluster share: where, as what, by whose rights."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
import yaml

from paceline_operator import naming
from paceline_operator.cli.mistake import bring, fail, why
from paceline_operator.local.mistake import UserError

if TYPE_CHECKING:
    from paceline_operator.clients.kube import Kube

Object = dict[str, Any]
T = TypeVar("T")
UNAUTHORIZED, FORBIDDEN = 401, 403
RESOURCE = f"{naming.KIND_SERVING.lower()}.{naming.GROUP}"


class Output(StrEnum):
    """As kubectl's."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    NAME = "name"


class Form(StrEnum):
    """Of verbs that print one thing."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


def structured(body: Any, form: Form) -> str | None:
    """`body` for programs, or None where the form is a table."""
    if form is Form.JSON:
        return json.dumps(body, indent=2, ensure_ascii=False)
    if form is Form.YAML:
        plain = json.loads(json.dumps(body))
        return str(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)).rstrip()
    return None


def complete(context: typer.Context, incomplete: str) -> list[str]:
    """Names of servings that begin so, for the shell; none where the cluster does not answer at once."""
    given = context.params

    async def work(kube: Kube) -> list[str]:
        where = Where(given.get("context"), given.get("namespace"))
        found = await kube.list(naming.KIND_SERVING, where.split("")[0], {})
        return [name for one in found if (name := one["metadata"]["name"]).startswith(incomplete)]

    try:
        return asyncio.run(asyncio.wait_for(_reach(Where(given.get("context"), None), work), COMPLETE_SECONDS))
    except Exception:  # the line of a shell is no place for a message
        return []


COMPLETE_SECONDS = 5.0
Serving = Annotated[
    str,
    typer.Argument(metavar="[NAMESPACE/]NAME", help="A SpeculativeServing of the cluster.", autocompletion=complete),
]
Namespace = Annotated[str | None, typer.Option("--namespace", "-n", help="Else that of the context, else default.")]
Context = Annotated[str | None, typer.Option("--context", help="A context of KUBECONFIG; else the present one.")]
Format = Annotated[Output, typer.Option("--output", "-o", help="For people, for programs, or names alone.")]


@dataclass(frozen=True)
class Where:
    """A context of KUBECONFIG, and a namespace in it."""

    context: str | None
    namespace: str | None

    def split(self, serving: str) -> tuple[str, str]:
        """(namespace, name) of `[NAMESPACE/]NAME`."""
        namespace, _, name = serving.rpartition("/")
        return namespace or self.namespace or present_namespace(self.context), name


def reach(verb: str, where: Where, work: Callable[[Kube], Awaitable[T]]) -> T:
    """What `work` answers. A mistake, or a cluster out of reach, is told in one line and ends with status 2."""
    try:
        return asyncio.run(_reach(where, work))
    except UserError as error:
        fail(verb, error)


async def serving_of(kube: Kube, namespace: str, name: str) -> Object:
    """The raw object. Raises UserError where there is none."""
    raw = await kube.get(naming.KIND_SERVING, namespace, name)
    if raw is None:
        raise UserError(f"no {naming.KIND_SERVING} {name} in namespace {namespace}")
    return raw


async def servings_in(kube: Kube, namespace: str) -> list[Object]:
    """All of a namespace, or of all where it is empty; by namespace and name."""
    found = await kube.list(naming.KIND_SERVING, namespace, {})
    whole = [{"apiVersion": naming.API_VERSION, "kind": naming.KIND_SERVING, **item} for item in found]
    return sorted(whole, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"]))


def printed(items: Sequence[Object], output: Output, *, one: bool) -> str | None:
    """`items` for programs as kubectl prints them, or None where the output is a table."""
    cleaned = [{**item, "metadata": {**item["metadata"], "managedFields": None}} for item in items]
    for item in cleaned:
        del item["metadata"]["managedFields"]
    body = cleaned[0] if one else {"apiVersion": "v1", "kind": "List", "items": cleaned}
    if output is Output.NAME:
        return "\n".join(f"{RESOURCE}/{item['metadata']['name']}" for item in items)
    if output is Output.JSON:
        return json.dumps(body, indent=2, ensure_ascii=False)
    if output is Output.YAML:
        return yaml.safe_dump(body, sort_keys=False, allow_unicode=True).rstrip()
    return None


def present_namespace(context: str | None) -> str:
    """Of the context, as kubectl reads it; `default` where none says one."""
    from kubernetes import config

    from paceline_operator.clients.kube import UNUSABLE

    try:
        contexts, active = config.list_kube_config_contexts()
        chosen = next((one for one in contexts if one.get("name") == context), {}) if context else active
        return str((chosen.get("context") or {}).get("namespace") or "default")
    except UNUSABLE:  # whoever connects is told why
        return "default"


async def _reach(where: Where, work: Callable[[Kube], Awaitable[T]]) -> T:
    try:
        from paceline_operator.clients.kube import Kube, KubeError, NotFoundError, connect
    except ImportError as error:
        raise UserError(f"a cluster needs packages that are not here: {error}: {bring('operator,cli')}") from None
    try:
        with _logins() as failed:
            client = connect(where.context)
        if failed:
            raise UserError(f"KUBECONFIG's command to log in failed: {'; '.join(failed)}: run it by itself, or kubectl")
        async with Kube(client) as kube:
            return await work(kube)
    except NotFoundError as error:
        raise UserError(f"{error}: is paceline installed in this cluster? `paceline doctor` tells") from None
    except KubeError as error:
        raise UserError(f"{error}{_hint(error.status, error.message)}") from None
    except OSError as error:
        raise UserError(why(error)) from None
    except ValueError as error:
        raise UserError(str(error)) from None


def _hint(status: int, message: str) -> str:
    """What to do about an answer, or about none."""
    if status == 0:
        return ": is the cluster up, and is this its address in KUBECONFIG? `kubectl cluster-info` asks the same one"
    if status == UNAUTHORIZED or "system:anonymous" in message:
        return ": log in again: KUBECONFIG has no credentials that the cluster takes"
    if status == FORBIDDEN:
        return ": ask for a role with this right; `paceline doctor` lists yours"
    return ""


@contextmanager
def _logins() -> Iterator[list[str]]:
    """What the client of Kubernetes logs about logging in: it goes on as nobody where a command of KUBECONFIG fails."""
    found: list[str] = []

    class Hear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(" ".join(record.getMessage().split())[:300])

    heard, root = Hear(logging.ERROR), logging.getLogger()
    root.addHandler(heard)
    try:
        yield found
    finally:
        root.removeHandler(heard)
