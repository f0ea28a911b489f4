"""What the client puts on the wire, and what it makes of answers: against a server that says what it is told to."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kubernetes import client

from paceline_operator import metrics
from paceline_operator.clients.kube import (
    DISCOVERY_SECONDS,
    ConflictError,
    ForbiddenError,
    InvalidError,
    Kube,
    KubeError,
    NotFoundError,
    ThrottledError,
    UnavailableError,
)
from tests.unit.kube_stub import Stub, connected, listening


@pytest.fixture
def stub() -> Iterator[Stub]:
    with listening() as found:
        yield found


@pytest.fixture
async def kube(stub: Stub) -> AsyncIterator[Kube]:
    made = connected(stub, read_seconds=0.5)
    yield made
    await made.close()


MANIFEST = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "chat", "namespace": "team"},
    "spec": {},
}
DEPLOYMENT = "/apis/apps/v1/namespaces/team/deployments/chat"


async def test_apply_is_server_side_forced_and_ours(stub: Stub, kube: Kube) -> None:
    stub.says(200, {"stored": True})
    assert await kube.apply(MANIFEST) == {"stored": True}
    method, path, query, headers, body = stub.requests[0]
    assert (method, path, body) == ("PATCH", DEPLOYMENT, MANIFEST)
    assert query == {"fieldManager": ["paceline-operator"], "force": ["true"]}
    assert headers["content-type"] == "application/apply-patch+yaml"
    assert headers["authorization"] == "Bearer secret"


async def test_status_is_applied_through_its_own_door(stub: Stub, kube: Kube) -> None:
    await kube.apply(MANIFEST, "status")
    assert stub.requests[0][1] == f"{DEPLOYMENT}/status"


async def test_nothing_is_written_by_who_may_not_any_more(stub: Stub) -> None:
    may = [True]
    async with connected(stub, may_write=lambda: may[0]) as kube:
        stub.says(200, {"stored": True})
        await kube.apply(MANIFEST)
        may[0] = False
        for write in (kube.apply(MANIFEST), kube.create(MANIFEST), kube.delete("Deployment", "team", "chat", "7")):
            with pytest.raises(UnavailableError, match="another process may act by now"):
                await write
        stub.says(200, {"read": True})
        assert await kube.get("Deployment", "team", "chat") == {"read": True}
    assert [request[0] for request in stub.requests] == ["PATCH", "GET"]


async def test_create_and_replace(stub: Stub, kube: Kube) -> None:
    await kube.create(MANIFEST)
    await kube.replace(MANIFEST)
    assert [request[:2] for request in stub.requests] == [
        ("POST", "/apis/apps/v1/namespaces/team/deployments"),
        ("PUT", DEPLOYMENT),
    ]


async def test_delete_means_this_object_and_no_other_of_its_name(stub: Stub, kube: Kube) -> None:
    assert await kube.delete("Deployment", "team", "chat", "uid-1")
    method, path, _, _, body = stub.requests[0]
    assert (method, path) == ("DELETE", DEPLOYMENT)
    assert (body["preconditions"], body["propagationPolicy"]) == ({"uid": "uid-1"}, "Background")
    for status in (404, 409):
        stub.says(status)
        assert not await kube.delete("Deployment", "team", "chat", "uid-1")
    stub.says(200)
    await kube.delete("Secret", "team", "token", None)
    assert "preconditions" not in stub.requests[-1][4]


async def test_get_of_nothing_is_none(stub: Stub, kube: Kube) -> None:
    stub.says(404, {"reason": "NotFound", "message": "no"})
    assert await kube.get("Deployment", "team", "chat") is None


async def test_kinds_of_a_group_are_told_by_plural_and_no_group_has_none(stub: Stub, kube: Kube) -> None:
    stub.says(200, {"resources": [{"name": "things"}, {"name": "things/status"}]})
    assert await kube.served("a.b/v1") == {"things", "things/status"}
    assert stub.requests[0][:2] == ("GET", "/apis/a.b/v1")
    stub.says(404, {"reason": "NotFound"})
    assert await kube.served("a.b/v1") == set()
    stub.says(503, {})
    with pytest.raises(UnavailableError):
        await kube.served("a.b/v1")


async def test_lists_are_read_to_the_last_page(stub: Stub, kube: Kube) -> None:
    pages = [
        {"metadata": {"continue": "next"}, "items": [{"n": 1}]},
        {"metadata": {"continue": "last"}, "items": None},
        {"metadata": {}, "items": [{"n": 2}]},
    ]
    stub.answers = [(200, json.dumps(page).encode(), {}) for page in pages]
    found = await kube.list("Pod", "team", {"a": "b", "c": "d"}, "reason=FailedMount")
    assert found == [{"n": 1}, {"n": 2}]
    queries = [request[2] for request in stub.requests]
    assert queries[0] == {"limit": ["500"], "labelSelector": ["a=b,c=d"], "fieldSelector": ["reason=FailedMount"]}
    assert [query.get("continue") for query in queries] == [None, ["next"], ["last"]]


async def test_names_are_read_to_the_last_page_of_metadata_alone(stub: Stub, kube: Kube) -> None:
    pages = [
        {"metadata": {"continue": "next"}, "items": [{"metadata": {"namespace": "a", "name": "x", "uid": "u"}}]},
        {"metadata": {}, "items": [{"metadata": {"namespace": "b", "name": "y"}}]},
    ]
    stub.answers = [(200, json.dumps(page).encode(), {}) for page in pages]
    assert await kube.names("Pod", "") == [("a", "x"), ("b", "y")]
    assert {request[1] for request in stub.requests} == {"/api/v1/pods"}
    assert [request[2] for request in stub.requests] == [{"limit": ["100"]}, {"limit": ["100"], "continue": ["next"]}]
    assert "as=PartialObjectMetadataList" in stub.requests[0][3]["accept"]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidError),
        (401, ForbiddenError),
        (403, ForbiddenError),
        (409, ConflictError),
        (410, UnavailableError),
        (415, InvalidError),
        (422, InvalidError),
        (429, ThrottledError),
        (500, UnavailableError),
        (503, UnavailableError),
        (302, UnavailableError),
    ],
)
async def test_refusals_are_of_a_few_kinds_and_say_where(
    stub: Stub, kube: Kube, status: int, kind: type[KubeError]
) -> None:
    stub.says(status, {"kind": "Status", "reason": "Because", "message": "spec.replicas: no"})
    with pytest.raises(kind) as refusal:
        await kube.apply(MANIFEST)
    assert refusal.value.status == status
    assert str(refusal.value) == f"PATCH Deployment team/chat: spec.replicas: no (Because, HTTP {status})"
    with pytest.raises(kind):
        await kube.get("Deployment", "team", "chat")


async def test_a_value_of_the_wrong_type_is_invalid_although_the_server_calls_it_its_own_failure(
    stub: Stub, kube: Kube
) -> None:
    stub.says(500, {"reason": "InternalError", "message": "failed to create typed patch object (team/chat): no"})
    with pytest.raises(InvalidError, match="typed patch object"):
        await kube.apply(MANIFEST, "status")


async def test_apply_to_a_namespace_that_is_gone_is_an_error(stub: Stub, kube: Kube) -> None:
    stub.says(404, {"reason": "NotFound", "message": 'namespaces "team" not found'})
    with pytest.raises(NotFoundError):
        await kube.apply(MANIFEST)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [("7", 7.0), ("0", 0.0), ("-3", 0.0), ("99999", 120.0), ("Fri, 01 Jan 2027 00:00:00 GMT", None)],
)
async def test_the_pause_that_the_server_asks_for_is_handed_on(
    stub: Stub, kube: Kube, header: str, seconds: float | None
) -> None:
    stub.says(429, {"reason": "TooManyRequests"}, Retry_After=header)
    with pytest.raises(ThrottledError) as refusal:
        await kube.get("Deployment", "team", "chat")
    assert refusal.value.retry_after == seconds


async def test_silence_and_a_closed_port_are_unavailable(stub: Stub) -> None:
    stub.block = threading.Event()
    impatient = connected(stub, read_seconds=0.1)
    with pytest.raises(UnavailableError, match="timed out"):
        await impatient.apply(MANIFEST)
    stub.block.set()
    await impatient.close()
    configuration = client.Configuration(host="http://127.0.0.1:9")
    nobody = Kube(client.ApiClient(configuration))
    with pytest.raises(UnavailableError, match="NoAnswer"):
        await nobody.get("Deployment", "team", "chat")
    await nobody.close()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(status=st.sampled_from([200, 201, 404, 422, 500]), body=st.binary(max_size=60))
def test_no_answer_breaks_a_pass_in_an_unknown_way(stub: Stub, status: int, body: bytes) -> None:
    async def call() -> None:
        made = connected(stub)
        try:
            result = await made.apply(MANIFEST)
            assert isinstance(result, dict)
        except KubeError as error:
            assert "PATCH Deployment team/chat" in str(error)  # noqa: PT017 both ends are right
        finally:
            await made.close()

    stub.says(status, body)
    asyncio.run(call())


async def test_writes_are_counted_and_reads_are_not(stub: Stub, kube: Kube) -> None:
    def count(verb: str, code: str) -> float:
        return float(metrics.API_WRITES.labels("Deployment", verb, code)._value.get())

    before = count("PATCH", "200"), count("PATCH", "409")
    await kube.apply(MANIFEST)
    await kube.get("Deployment", "team", "chat")
    stub.says(409)
    with pytest.raises(ConflictError):
        await kube.apply(MANIFEST)
    assert (count("PATCH", "200"), count("PATCH", "409")) == (before[0] + 1, before[1] + 1)


async def test_no_more_calls_at_once_than_allowed(stub: Stub) -> None:
    stub.block = threading.Event()
    made = connected(stub, concurrency=3)
    calls = [asyncio.create_task(made.get("Deployment", "team", "chat")) for _ in range(9)]
    while stub.at_once < 3:  # noqa: ASYNC110 the stub is in threads
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    stub.block.set()
    await asyncio.gather(*calls)
    assert (stub.most, len(stub.requests)) == (3, 9)
    await made.close()


async def test_who_cancels_a_call_on_its_way_waits_for_its_end(stub: Stub) -> None:
    """A fleet that has stopped must have nothing on the wire."""
    stub.block = threading.Event()
    made = connected(stub, concurrency=1)
    running = asyncio.create_task(made.apply(MANIFEST))
    queued = asyncio.create_task(made.apply(MANIFEST))
    while not stub.at_once:  # noqa: ASYNC110 the stub is in threads
        await asyncio.sleep(0.01)
    for task in (queued, running):
        task.cancel()
    await asyncio.sleep(0.05)
    assert (queued.done(), running.done()) == (True, False)
    stub.block.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert len(stub.requests) == 1, "what had not begun never does"
    await made.close()


async def test_an_optional_kind_is_looked_for_once_in_a_while(
    stub: Stub, kube: Kube, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    now = loop.time()
    with monkeypatch.context() as patched:
        patched.setattr(loop, "time", lambda: now)
        stub.says(404, {"reason": "NotFound", "message": "no such group"})
        assert not await kube.serves("ScaledObject")
        stub.says(200, {"resources": [{"name": "scaledobjects"}, {"name": "scaledobjects/status"}]})
        assert not await kube.serves("ScaledObject")
        now += DISCOVERY_SECONDS
        assert await kube.serves("ScaledObject")
        stub.says(503, {})
        assert await kube.serves("ScaledObject")
        now += DISCOVERY_SECONDS
        with pytest.raises(UnavailableError):
            await kube.serves("ScaledObject")
    assert kube.kinds_changed == 1
    assert [path for _, path, *_ in stub.requests] == 3 * ["/apis/keda.sh/v1alpha1"]


async def test_passes_that_ask_for_an_optional_kind_together_ask_the_api_once(stub: Stub, kube: Kube) -> None:
    stub.says(200, {"resources": [{"name": "scaledobjects"}]})
    assert all(await asyncio.gather(*(kube.serves("ScaledObject") for _ in range(5))))
    assert len(stub.requests) == 1


async def test_an_optional_kind_is_read_at_its_own_address(stub: Stub, kube: Kube) -> None:
    stub.says(200, {"items": []})
    await kube.list("LeaderWorkerSet", "team", {})
    assert stub.requests[0][1] == "/apis/leaderworkerset.x-k8s.io/v1/namespaces/team/leaderworkersets"


async def test_a_log_is_asked_for_in_bounds_and_one_that_is_gone_is_empty(stub: Stub, kube: Kube) -> None:
    stub.says(200, b"Traceback\n\xff")
    assert await kube.log("team", "chat-1", "engine", previous=True) == "Traceback\n\ufffd"
    method, path, query, _, _ = stub.requests[0]
    assert (method, path) == ("GET", "/api/v1/namespaces/team/pods/chat-1/log")
    assert query == {"container": ["engine"], "tailLines": ["400"], "limitBytes": ["262144"], "previous": ["true"]}
    for status in (400, 404):
        stub.says(status, {"message": "previous terminated container not found"})
        assert await kube.log("team", "chat-1", "engine", previous=False) == ""
    stub.says(403, {"message": "pods/log is forbidden"})
    with pytest.raises(ForbiddenError):
        await kube.log("team", "chat-1", "engine", previous=False)


async def test_a_kind_that_is_not_there_is_told_in_one_line(stub: Stub, kube: Kube) -> None:
    stub.says(404, b"404 page not found\n")
    with pytest.raises(NotFoundError) as raised:
        await kube.list("SpeculativeServing", "team", {})
    assert str(raised.value) == "GET SpeculativeServing team/*: 404 page not found (Unknown, HTTP 404)"
