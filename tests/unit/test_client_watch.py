"""Watching for changes: from a version on, taken up where it ended, begun anew where that cannot be."""

from __future__ import annotations

import asyncio
import json
import math
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubernetes import client

from paceline_operator.clients import watch
from paceline_operator.clients.kube import METADATA_LIST
from paceline_operator.clients.session import Session
from tests.unit.kube_stub import Stub, listening

Object = dict[str, Any]
LABEL = "example.org/of"


@pytest.fixture
def stub() -> Iterator[Stub]:
    with listening() as listener:
        yield listener


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """No watch counts as one that lasted, however slow the machine."""
    monkeypatch.setattr(watch, "STEADY_SECONDS", math.inf)


def listed(version: str) -> tuple[int, bytes, dict[str, str]]:
    return 200, json.dumps({"metadata": {"resourceVersion": version}, "items": []}).encode(), {}


def told(*events: tuple[str, str] | bytes) -> tuple[int, bytes, dict[str, str]]:
    """A watch that says so and ends: (type, version), or a line as it is."""
    lines = [line if isinstance(line, bytes) else json.dumps(_event(*line)).encode() for line in events]
    return 200, b"".join(line + b"\n" for line in lines), {}


def _event(kind: str, version: str) -> Object:
    return {"type": kind, "object": {"metadata": {"name": f"n{version}", "resourceVersion": version}}}


class Followed:
    """A watch of pods that ends after so many pauses."""

    def __init__(self, stub: Stub, *answers: tuple[int, bytes, dict[str, str]], namespace: str = "team") -> None:
        stub.answers = [*answers, (500, b"{}", {})]
        self.names: list[str] = []
        self.anew = 0
        self.pauses: list[float] = []
        configuration = client.Configuration(host=stub.address, api_key={"BearerToken": "Bearer secret"})  # type: ignore[attr-defined]
        self._session = Session(client.ApiClient(configuration), 0, 30.0, 30.0)
        self._watch = watch.Watch(
            self._session, "Pod", namespace, LABEL, self._told, self._again, pause=self._pause, jitter=lambda: 1.0
        )

    def _told(self, meta: Object) -> None:
        self.names.append(meta["name"])

    def _again(self) -> None:
        self.anew += 1

    async def _pause(self, seconds: float) -> None:
        self.pauses.append(seconds)
        if len(self.pauses) >= self._left or (self._until_told and self.names):
            raise asyncio.CancelledError

    async def run(self, pauses: int, *, until_told: bool = False) -> None:
        self._left, self._until_told = pauses, until_told
        with pytest.raises(asyncio.CancelledError):
            await self._watch.run()
        await self._session.close()


def asked(stub: Stub) -> list[str]:
    """ "list", or the version from which a watch was asked for."""
    return [query["resourceVersion"][0] if "watch" in query else "list" for _, _, query, _, _ in stub.requests]


async def test_it_asks_for_metadata_alone_with_the_label_and_from_the_version_of_the_list(stub: Stub) -> None:
    followed = Followed(stub, listed("7"), told(("ADDED", "8"), ("MODIFIED", "9"), ("DELETED", "10")))
    await followed.run(1)
    assert followed.names == ["n8", "n9", "n10"]
    assert followed.anew == 1
    (_, path, first, sent, _), (_, _, second, heard, _) = stub.requests
    assert path == "/api/v1/namespaces/team/pods"
    assert first == {"labelSelector": [LABEL], "limit": ["1"]}
    assert sent["accept"] == METADATA_LIST
    assert heard["accept"] == watch.METADATA
    assert heard["authorization"] == "Bearer secret"
    assert second["resourceVersion"] == ["7"]
    assert second["allowWatchBookmarks"] == ["true"]
    assert second["labelSelector"] == [LABEL]
    assert 300 <= int(second["timeoutSeconds"][0]) <= 600


async def test_a_watch_that_ends_is_taken_up_where_it_was(stub: Stub) -> None:
    followed = Followed(stub, listed("7"), told(("ADDED", "8"), ("BOOKMARK", "20")), told(), told(("ADDED", "21")))
    await followed.run(3)
    assert asked(stub) == ["list", "7", "20", "20"]
    assert followed.names == ["n8", "n21"], "a bookmark is no news"
    assert followed.anew == 1
    assert followed.pauses == sorted(followed.pauses), "one that ends at once is asked for less and less often"


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}',
        b'{"type":"ERROR","object":{"kind":"Status","code":500}}',
        b'{"type":"ADDED","object":{"metadata":{"name":"n","resourceV',
        b'{"type":"ADDED","object":{"metadata":{"name":"n"}}}',
        b'{"type":"ADDED","object":null}',
        b"[]",
        b"nonsense",
        b"[" * 5000,
    ],
)
async def test_what_cannot_be_gone_on_from_begins_anew(stub: Stub, line: bytes) -> None:
    followed = Followed(
        stub, listed("7"), told(("ADDED", "8"), line, ("ADDED", "9")), listed("30"), told(("ADDED", "31"))
    )
    await followed.run(2)
    assert asked(stub) == ["list", "7", "list", "30"]
    assert followed.names == ["n8", "n31"]
    assert followed.anew == 2, "whoever is told looks at everything"


@pytest.mark.parametrize("status", [400, 404, 410, 504])
async def test_a_watch_that_is_refused_for_its_version_begins_anew(stub: Stub, status: int) -> None:
    followed = Followed(stub, listed("7"), (status, b'{"message":"no"}', {}), listed("9"), told())
    await followed.run(2)
    assert asked(stub) == ["list", "7", "list", "9"]
    assert followed.anew == 2


@pytest.mark.parametrize("status", [401, 403, 500, 503])
async def test_one_that_is_refused_otherwise_is_asked_for_again_and_wakes_nobody(stub: Stub, status: int) -> None:
    followed = Followed(stub, listed("7"), *[(status, b'{"message":"no"}', {})] * 2, told(("ADDED", "8")))
    await followed.run(3)
    assert asked(stub) == ["list", "7", "7", "7"]
    assert (followed.anew, followed.names) == (1, ["n8"])


@pytest.mark.parametrize("meta", [b'"x"', b"[1]", b"5"])
async def test_a_list_of_another_shape_is_asked_for_again(stub: Stub, meta: bytes) -> None:
    followed = Followed(stub, (200, b'{"metadata":' + meta + b"}", {}), listed("7"), told(("ADDED", "8")))
    await followed.run(2)
    assert followed.names == ["n8"]


async def test_a_line_that_is_too_long_begins_anew(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_EVENT_BYTES", 200)
    followed = Followed(stub, listed("7"), told(b"x" * 300), listed("9"), told(("ADDED", "10")))
    await followed.run(2)
    assert asked(stub) == ["list", "7", "list", "9"]
    assert followed.names == ["n10"]


async def test_one_that_failed_after_long_waits_as_it_is_told_to(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STEADY_SECONDS", 0.0)
    followed = Followed(stub, listed("7"), *[(429, b"{}", {"Retry-After": "60"})] * 2)
    await followed.run(2)
    assert followed.pauses == [60.0, 60.0]


async def test_a_wait_that_is_no_number_is_none(stub: Stub) -> None:
    followed = Followed(stub, listed("7"), (429, b"{}", {"Retry-After": "nan"}), told(("ADDED", "8")))
    await followed.run(2)
    assert followed.names == ["n8"]
    assert followed.pauses[0] == watch.PAUSE_FIRST_SECONDS


async def test_a_server_that_asks_to_wait_is_waited_for_and_the_version_is_kept(stub: Stub) -> None:
    followed = Followed(stub, listed("7"), (429, b"{}", {"Retry-After": "17"}), told(("ADDED", "8")))
    await followed.run(2)
    assert asked(stub) == ["list", "7", "7"]
    assert followed.pauses[0] == 17.0
    assert followed.anew == 1


async def test_a_list_that_fails_is_asked_for_again_without_end(stub: Stub) -> None:
    answers: list[Any] = [(403, b"{}", {}), (200, b"[]", {}), (200, b"{}", {}), *[(500, b"{}", {})] * 9]
    followed = Followed(stub, *answers, listed("7"), told(("ADDED", "8")), namespace="")
    await followed.run(13)
    assert followed.names == ["n8"]
    assert stub.requests[0][1] == "/api/v1/pods", "of all namespaces"
    assert max(followed.pauses) == watch.PAUSE_LIMIT_SECONDS


class Gate(threading.Event):
    """Holds the first watch back."""

    def __init__(self, stub: Stub) -> None:
        super().__init__()
        self._stub = stub

    def wait(self, timeout: float | None = None) -> bool:
        return sum("watch" in request[2] for request in self._stub.requests) != 1 or super().wait(timeout)


async def test_a_connection_that_says_nothing_is_given_up(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "SILENT_SECONDS", 0.2)
    followed = Followed(stub)
    stub.answers = [listed("7"), told(("ADDED", "8"))]
    stub.block = Gate(stub)
    await followed.run(100, until_told=True)
    stub.block.set()
    assert asked(stub)[:3] == ["list", "7", "7"]
    assert followed.names == ["n8"]
    assert followed.anew == 1


async def test_a_watch_that_lasted_is_followed_by_the_next_at_once(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    followed = Followed(stub, listed("7"), told(("ADDED", "8")), told(("ADDED", "9")))
    lasted = iter([True, False])

    class Steady(float):
        """As if the first watch had lasted, and no other."""

        def __le__(self, _: float) -> bool:
            return next(lasted)

    monkeypatch.setattr(watch, "STEADY_SECONDS", Steady())
    await followed.run(1)
    assert asked(stub) == ["list", "7", "8"]
    assert len(followed.pauses) == 1


async def _chunks(parts: list[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@given(st.lists(st.binary(min_size=1).filter(lambda line: b"\n" not in line)), st.integers(1, 7))
async def test_lines_are_the_same_however_they_are_cut(lines: list[bytes], size: int) -> None:
    whole = b"".join(line + b"\n" for line in lines)
    parts = [whole[i : i + size] for i in range(0, len(whole), size)]
    assert [line async for line in watch._lines(_chunks(parts))] == lines


async def test_a_line_without_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MAX_EVENT_BYTES", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        async for _ in watch._lines(_chunks([b"x" * 6, b"x" * 6])):
            pass
