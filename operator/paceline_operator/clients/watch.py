"""What changes in the cluster, told by metadata alone: of children only a label is read.

As client-go's reflector: a list, of which only the version is used, then a watch from that version on, which is taken
up where it ended, whatever ended it. Where the server does not know the version any more, or says what cannot be read,
it begins anew, and whoever is told looks at everything. An event that never comes is nobody's loss: objects are looked
at all the same now and then.
https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from urllib.parse import urlencode

from paceline_operator.clients import shallow
from paceline_operator.clients.kube import METADATA_LIST, KubeError, UnavailableError, path_of, result, shaped
from paceline_operator.clients.session import BROKEN, Answer, Session

logger = logging.getLogger(__name__)

STEADY_SECONDS = 5.0
"""A watch of this length was a good one: the next begins at once."""
PAUSE_FIRST_SECONDS, PAUSE_LIMIT_SECONDS = 0.5, 30.0
SERVER_SECONDS = 300
"""After which the server ends a watch, at the earliest; at the latest after twice that, as for client-go."""
SILENT_SECONDS = 180.0
"""In which nothing came: the connection is dead. A server that has bookmarks sends one a minute."""
VERSION_GONE = (400, 404, 410, 504)
"""Statuses that may be for the version. Others are for whoever asks, or for now."""
MAX_EVENT_BYTES = 4 * 1024 * 1024
"""No object is larger than etcd takes, 1.5 MiB."""
METADATA = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
Told = Callable[[dict[str, Any]], None]
"""Takes the metadata of an object that came, changed or went."""


class Watch:
    """Objects of one `kind` with one `label`, in a namespace or, where that is empty, in all."""

    def __init__(
        self,
        session: Session,
        kind: str,
        namespace: str,
        label: str,
        told: Told,
        anew: Callable[[], None],
        *,
        gone: Told | None = None,
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        """`anew` is called when anything may have changed meanwhile: at the beginning, too. `gone` is told of objects
        that went, in place of `told`."""
        self._path = path_of(kind, namespace)
        self._session, self._label = session, label
        self._told, self._gone = told, gone or told
        self._anew, self._pause, self._jitter = anew, pause, jitter
        self._version = ""
        """Of the last event; empty where the next watch begins with a list."""

    async def run(self) -> None:
        """Tell until cancelled."""
        clock, failures = asyncio.get_running_loop().time, 0
        while True:
            began, why, floor = clock(), "", 0.0
            try:
                if not self._version:
                    self._version = await self._newest()
                    self._anew()
                await self._follow()
            except KubeError as error:
                why, floor = str(error), error.retry_after or 0.0
            except BROKEN as error:
                why = f"{self._path}: {error!r}"
            if clock() - began >= STEADY_SECONDS:
                failures = 0
                if not why:
                    continue
            backoff = min(PAUSE_LIMIT_SECONDS, PAUSE_FIRST_SECONDS * 2 ** min(failures, 10))
            seconds = max(floor, backoff * (0.5 + self._jitter() / 2))
            failures += 1
            logger.warning("Watch interrupted: next_seconds=%.1f error=%s", seconds, why or f"{self._path}: it ended")
            await self._pause(seconds)

    async def _newest(self) -> str:
        """Version of the cluster as it is now. Raises KubeError."""
        path = f"{self._path}?{urlencode({'labelSelector': self._label, 'limit': '1'})}"
        answer = await self._session.request("GET", path, None, "", METADATA_LIST)
        with shaped(f"GET {path}"):
            version = str((result(answer, f"GET {path}").get("metadata") or {}).get("resourceVersion") or "")
        if not version:
            raise UnavailableError(answer.status, "NoVersion", f"GET {path}: the list has no version")
        return version

    async def _follow(self) -> None:
        """Tell of events until the watch ends. Raises KubeError, or one of BROKEN."""
        query = {
            "watch": "true",
            "labelSelector": self._label,
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(SERVER_SECONDS * (1 + self._jitter()))),
        }
        path = f"{self._path}?{urlencode(query)}"
        async with self._session.stream(path, METADATA, SILENT_SECONDS) as answer:
            if answer.status != 200:
                if answer.status in VERSION_GONE:
                    self._version = ""
                said = Answer(answer.status, await answer.content.read(64 * 1024), answer.headers.get("Retry-After"))
                result(said, f"GET {path}")
                raise UnavailableError(answer.status, "NoWatch", f"GET {path}: events were asked for")
            try:
                async for line in _lines(answer.content.iter_any()):
                    self._take(line)
            except ValueError:  # it would be as long the next time
                self._version = ""
                raise

    def _take(self, line: bytes) -> None:
        """Raises KubeError where the watch cannot go on."""
        version, self._version = self._version, ""  # unless the line is in order
        try:
            event = shallow.loads(line)
            kind, meta = event["type"], event["object"].get("metadata") or {}
            if kind == "ERROR":
                raise UnavailableError(0, "WatchEnded", f"{self._path}: {str(event['object'].get('message'))[:300]}")
            told = str(meta["resourceVersion"])
            if kind != "BOOKMARK":
                (self._gone if kind == "DELETED" else self._told)(meta)
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            raise UnavailableError(0, "NoEvent", f"{self._path}: {error!r}") from None
        self._version = told or version


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Raises ValueError for a line that is too long."""
    kept: list[bytes] = []
    size = 0
    async for chunk in chunks:
        first, *more = chunk.split(b"\n")
        kept.append(first)
        size += len(first)
        if size > MAX_EVENT_BYTES:
            raise ValueError(f"an event of more than {MAX_EVENT_BYTES} bytes")
        for part in more:
            if whole := b"".join(kept):
                yield whole
            kept, size = [part], len(part)
