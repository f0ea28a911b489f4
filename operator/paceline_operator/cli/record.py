"""`paceline record`: what a live serving's engines answer, pass by pass, into a trace that `paceline replay` reads.

In a cluster it stands beside the operator, not in its place: it reads with cursors of its own and pushes nothing.
"""

from __future__ import annotations

import asyncio
import math
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from pydantic import ValidationError
from rich.console import Console

from paceline_operator import naming
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.cli.cluster import Context, Namespace, Where
from paceline_operator.cli.mistake import bring, counted, fail, why
from paceline_operator.clock import Clock, SystemClock
from paceline_operator.local import container
from paceline_operator.local.mistake import UserError
from paceline_operator.local.run import Options, run
from paceline_operator.local.view import PlainView
from paceline_operator.replay.traces import Writer
from paceline_operator.tuning.model import Memory

if TYPE_CHECKING:
    from paceline_operator.clients.engine import EngineClient
    from paceline_operator.clients.keys import KeyFile
    from paceline_operator.clients.kube import Kube


def record(
    out: Annotated[Path, typer.Option("--out", "-o", metavar="TRACE", help="Trace to write, one JSON object a line.")],
    serving: Annotated[
        str | None, typer.Argument(metavar="[NAMESPACE/]NAME", help="A SpeculativeServing of the cluster.")
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="In place of it: run this file's serving on this machine.")
    ] = None,
    duration: Annotated[
        float | None, typer.Option(min=1, help="Seconds; else until Ctrl-C or, with a file, its last phase.")
    ] = None,
) -> None:
    """Record what a serving's engines answer, for `paceline replay`.

    In a cluster it needs the operator's key (the file that PACELINE_MASTER_KEY_FILE names) and a way to the pods.
    """
    try:
        if (serving is None) == (file is None):
            raise UserError("name a serving of the cluster, or a file to run with --file")
        if file is not None:
            report = container.cache_folder() / "reports" / f"{file.stem}.json"
            view = PlainView(Console())
            raise typer.Exit(asyncio.run(run(Options(file, report, duration, trace=out), view)))
        assert serving is not None
        passes = asyncio.run(watch(serving, Where(context, namespace), duration, out, typer.echo))
        typer.echo(f"{counted(passes, 'pass', 'es')} in {out}")
    except UserError as error:
        fail("record", error)


@dataclass(frozen=True)
class Live:
    """A serving in the cluster, and how long to watch it."""

    name: str
    namespace: str
    duration: float | None
    """Seconds; None = until a signal."""


async def watch(serving: str, where: Where, duration: float | None, out: Path, say: Callable[[str], None]) -> int:
    """Passes written of `[NAMESPACE/]NAME`.

    Runs where the operator could: with its key file and a way to the pods. Raises UserError.
    """
    try:
        from paceline_operator import settings
        from paceline_operator.clients.engine import EngineClient
        from paceline_operator.clients.keys import KeyFile
        from paceline_operator.clients.kube import Kube, KubeError, connect
    except ImportError as error:
        raise UserError(f"a cluster needs packages that are not here: {error}: {bring('operator,cli')}") from None
    try:
        namespace, name = where.split(serving)
        live = Live(name, namespace, duration)
        keys = KeyFile(settings.read().master_key_file)
        async with Kube(connect(where.context)) as kube, EngineClient() as client:
            return await follow(live, out, kube, client, keys, SystemClock(), _signals(), say)
    except OSError as error:
        raise UserError(why(error)) from None
    except (KubeError, ValueError) as error:
        raise UserError(str(error)) from None


async def follow(
    live: Live,
    out: Path,
    kube: Kube,
    client: EngineClient,
    keys: KeyFile,
    clock: Clock,
    ended: asyncio.Event,
    say: Callable[[str], None],
) -> int:
    """Read pass after pass until `ended` or the duration; the passes written. None without a look at the pods.

    What was in `out` stays until the serving is known.
    """
    from paceline_operator import observe
    from paceline_operator.clients.kube import KubeError

    kind, at = naming.KIND_SERVING, (live.namespace, live.name)
    raw = await kube.get(kind, *at)
    if raw is None:
        raise UserError(f"no {kind} {live.name} in namespace {live.namespace}")
    try:
        spec = SpeculativeServing.model_validate(raw).spec
    except ValidationError as error:
        said = f"{kind} {live.name} is not one that this version reads: {counted(error.error_count(), 'mistake')}"
        raise UserError(said) from None
    passes, memory = 0, Memory()
    with out.open("w") as file:
        write = Writer(file, f"{live.namespace}/{live.name}", spec)
        end = math.inf if live.duration is None else clock.monotonic() + live.duration
        while not ended.is_set() and clock.monotonic() < end:
            try:
                raw = await kube.get(kind, *at) or raw
                pods = (await observe.surroundings(kube, raw, full=False)).pods
            except KubeError as error:
                say(f"no look at the pods: {error}")
            else:
                engines = await observe.engines(client, observe.targets(raw, pods, keys.ring()), pods, memory)
                cursors = {one.name: one.samples.cursor for one in engines if one.samples}
                memory = Memory(cursors={**memory.cursors, **cursors})
                write(clock.monotonic(), (raw.get("status") or {}).get("policyGeneration", 0), engines)
                passes += 1
            with suppress(TimeoutError):
                left = min(float(spec.tuning.interval_seconds), end - clock.monotonic())
                await asyncio.wait_for(ended.wait(), max(0.05, left))
        return passes


def _signals() -> asyncio.Event:
    """Set by Ctrl-C or a request to end."""
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    return ended
