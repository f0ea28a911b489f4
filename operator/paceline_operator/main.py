"""The operator process: `python -m paceline_operator`, configured by environment variables alone.

kopf watches our own kinds and calls; handlers do nothing but wake. No handler of a kind for which kopf keeps state is
used: so it adds no finalizer and no annotation, and writes nothing. Children and pods are watched by `process`.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import kopf

from paceline_operator import naming
from paceline_operator.clients import shallow
from paceline_operator.process import PLURALS, Operator
from paceline_operator.settings import OperatorSettings
from paceline_operator.settings import read as read_settings

logger = logging.getLogger(__name__)

STEADY_SECONDS = 120.0
"""A run of this length was a good one: the pause after it begins anew."""
LEVELS = {signal.SIGUSR1: "DEBUG", signal.SIGUSR2: "INFO"}
"""The log level at run time, by a signal: no port has to be opened for it."""


class Patience:
    """Pauses between kopf's attempts at one request, seconds, without end.

    Where they end, kopf gives a watch up for good, with nothing but a line in the log: after a minute of an API server
    that is down, or of a role that is missing, nobody would be woken any more.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1, 1, 2, 3, 5, 8, 13, 21), itertools.repeat(30))


class NoDiffs(kopf.DiffBaseStorage):
    """Of nothing. kopf's own copies each object for each of its events, to find changes that no handler here is about:
    more than all else that is done with an event."""

    def build(self, *, body: kopf.Body, extra_fields: Any = None) -> kopf.BodyEssence:
        """Nothing of an object is compared."""
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        """Nothing was stored."""
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Nothing is."""


@kopf.on.login()
def login(**arguments: Any) -> kopf.ConnectionInfo | None:
    """As clients.kube.connect: in the cluster by the service account, outside of it by KUBECONFIG."""
    return kopf.login_via_client(**arguments)


@kopf.on.startup()
async def startup(memo: kopf.Memo, settings: kopf.OperatorSettings, **_: Any) -> None:
    """Configure kopf, then start."""
    # A line for each event of each pod and for each reading of each engine, which conditions tell better.
    for chatty in ("kopf.objects", "httpx"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = 600
    settings.watching.client_timeout = 660
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 30
    settings.networking.error_backoffs = Patience()
    settings.watching.chunk_size = 500
    # `Operator` does that, in one namespace as in all: kopf looks at once where a definition changes, and misses a kind
    # that is served a moment later.
    settings.scanning.disabled = True
    # Unused as long as no handler needs state; set before anybody could have any under kopf's own names.
    settings.persistence.finalizer = f"{naming.GROUP}/finalizer"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{naming.GROUP}")
    settings.persistence.diffbase_storage = NoDiffs()
    # It would kill this process some minutes after a run that failed, whatever runs then.
    settings.process.ultimate_exiting_timeout = None
    try:
        await memo.operator.start()
    except OSError as error:
        raise kopf.PermanentError(f"the HTTP port cannot be opened: {error}") from None


@kopf.on.cleanup()
async def cleanup(memo: kopf.Memo, **_: Any) -> None:
    """SIGTERM: stop acting and release the Lease."""
    await memo.operator.stop()


async def on_object(
    memo: kopf.Memo,
    resource: kopf.Resource,
    type: str | None,  # noqa: A002 kopf's name
    meta: kopf.Meta,
    **_: Any,
) -> None:
    """An object of ours was listed, added, changed or deleted."""
    memo.operator.object_event(resource.kind, type, meta)


for _plural in PLURALS:
    kopf.on.event(naming.GROUP, naming.VERSION, _plural)(on_object)


async def run(config: OperatorSettings) -> None:
    """Runs of kopf until a signal, one after the other: what was known is seen again in the cluster and the engines.

    kopf gives up all of its watches where one fails for good, as those of a kind do that is deleted from the cluster.
    Raises what `Operator` raises, and SystemExit where a run does not even start.
    """
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    pauses = iter(Patience())
    namespaces = sorted(config.watch_namespaces)
    while not ended.is_set():
        operator = Operator(config)

        def end(operator: Operator = operator) -> None:
            ended.set()
            operator.stop_flag.set()

        mine, began = asyncio.all_tasks(), loop.time()
        tasks = await kopf.spawn_tasks(
            clusterwide=not namespaces, namespaces=namespaces, stop_flag=operator.stop_flag,
            memo=kopf.Memo(operator=operator),
        )  # fmt: skip
        for number, level in LEVELS.items():
            loop.add_signal_handler(number, set_level, level)
        for number in (signal.SIGINT, signal.SIGTERM):  # in place of kopf's own, which a run that is over leaves behind
            loop.add_signal_handler(number, end)
        try:
            await kopf.run_tasks(tasks, ignored=mine)
        except Exception as error:
            if not operator.started:
                raise SystemExit(f"paceline-operator: {error}") from None
            logger.error("Watching failed and begins anew: error=%r", error)
        if loop.time() - began > STEADY_SECONDS:
            pauses = iter(Patience())
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), next(pauses))


def set_level(level: str) -> None:
    """Of our own log; those of libraries stay as they are. Always logged: a reader must see where it changed."""
    ours = logging.getLogger("paceline_operator")
    ours.setLevel(logging.INFO)
    ours.info("Log level: level=%s", level)
    ours.setLevel(level)


def main() -> None:
    """Run until SIGTERM. An unusable configuration ends the process with its reason and status 1."""
    try:
        config = read_settings()
        kopf.configure(log_format=kopf.LogFormat.JSON if config.log_format == "json" else kopf.LogFormat.FULL)
        set_level(config.log_level)
        shallow.install()
        # What was imported stays for ever: left out of the count, full collections follow the growth of what servings
        # need, of which cycles would else keep a fourth of everything alive.
        gc.freeze()
        asyncio.run(run(config))
    except (ValueError, OSError) as error:
        sys.exit(f"paceline-operator: {error}")
