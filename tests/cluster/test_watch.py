"""A watch of metadata on a real API server: what it tells, and where it goes on."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from paceline_operator.clients.session import Session
from paceline_operator.clients.watch import Watch
from tests.harness.controlplane import ControlPlane

pytestmark = pytest.mark.cluster

LABEL = "example.org/of"
PATIENCE_SECONDS = 60.0


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not done():  # noqa: ASYNC110 what is waited for comes from another process
            await asyncio.sleep(0.05)


async def test_metadata_is_told_with_labels_and_nothing_is_missed_between_two_watches(
    control_plane: ControlPlane, namespace: str
) -> None:
    told: list[dict[str, Any]] = []
    anew: list[int] = []
    session = Session(control_plane.api, 0, 10.0, 30.0)
    watch = Watch(session, "ConfigMap", namespace, LABEL, told.append, lambda: anew.append(1))

    async def write(*command: str, **labels: str) -> None:
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "one", "labels": labels}, "data": {}}
        await asyncio.to_thread(control_plane.kubectl, "-n", namespace, *command, input=json.dumps(body))

    @asynccontextmanager
    async def running() -> Any:
        task = asyncio.create_task(watch.run())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def names() -> list[tuple[str, str]]:
        return [(one["name"], one["labels"][LABEL]) for one in told]

    async with running():
        await until(lambda: bool(anew))
        await write("create", "-f", "-", **{LABEL: "a"})
        await until(lambda: names() == [("one", "a")])
        assert {"namespace", "uid", "resourceVersion"} <= told[0].keys()
    await write("apply", "-f", "-", **{LABEL: "b"})
    await write("delete", "-f", "-")
    async with running():
        await until(lambda: names() == [("one", "a"), ("one", "b"), ("one", "b")])
    assert anew == [1], "it went on where it was"
    await session.close()
