"""The engine client: each way to fail has its own reason, and no answer can make it raise."""

import asyncio
from typing import Any

import httpx
import pytest

from paceline_engine.protocol import (
    Policy,
    PolicyAck,
)
from paceline_operator.api.conditions import Reason
from paceline_operator.clients import engine, exchange
from paceline_operator.clients.answers import EngineFailure
from tests.unit.engine_answers import (
    CONTROL,
    GZIPPED,
    METRICS,
    POLICY,
    SAMPLES,
    STATE,
    TOKEN,
    answering,
    observe,
    ok,
    push,
    wire,
)


async def test_an_answering_engine_is_read_with_token_and_cursor() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return ok(STATE if request.url.path == "/state" else SAMPLES)

    answer = await observe(httpx.MockTransport(handle))
    assert (answer.name, answer.state, answer.samples, answer.failure) == ("pod-0", STATE, SAMPLES, None)
    assert [request.headers["authorization"] for request in seen] == [f"Bearer {TOKEN}"] * 2
    assert [str(request.url) for request in seen] == [
        f"{CONTROL}/state?samples=b1%3A6",
        f"{CONTROL}/samples?cursor=b1%3A6",
    ]


@pytest.mark.parametrize("cursor", [None, ""])
async def test_without_a_cursor_everything_since_boot_is_asked_for(cursor: str | None) -> None:
    seen: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return ok(STATE if request.url.path == "/state" else SAMPLES)

    await observe(httpx.MockTransport(handle), cursor)
    assert seen == [f"{CONTROL}/state?samples=", f"{CONTROL}/samples"]


@pytest.mark.parametrize(
    ("pod", "reason"),
    [
        (answering(), Reason.POD_NOT_ANSWERING),
        (answering(metrics=httpx.ReadTimeout("slow")), Reason.POD_NOT_ANSWERING),
        (
            answering(state=httpx.ReadTimeout("slow"), metrics=httpx.Response(200, text=METRICS)),
            Reason.POD_NOT_ANSWERING,
        ),
        (answering(state=httpx.ReadError("reset by peer")), Reason.POD_NOT_ANSWERING),
        (answering(metrics=httpx.Response(200, text=METRICS)), Reason.PLUGIN_ABSENT),
        (answering(metrics=httpx.Response(200, text="process_open_fds 3\n")), Reason.ENGINE_SERIES_MISSING),
        (answering(metrics=httpx.Response(404)), Reason.ENGINE_SERIES_MISSING),
        (answering(metrics=httpx.Response(200, text="vllm:broken{ 1 \n")), Reason.MALFORMED_ANSWER),
        (answering(state=httpx.Response(401, json={"reason": "Unauthorized", "message": "no"})), Reason.TOKEN_REFUSED),
        (answering(state=ok(STATE), samples=httpx.Response(401)), Reason.TOKEN_REFUSED),
        (answering(state=httpx.Response(503, json={"reason": "NotReady", "message": "x"})), Reason.ENGINE_WARMING_UP),
        (answering(state=ok(STATE), samples=ok(wire(SAMPLES) | {"bootId": "b2"})), Reason.ENGINE_WARMING_UP),
        (answering(state=httpx.Response(302, headers={"location": "http://evil.test/"})), Reason.MALFORMED_ANSWER),
        (answering(state=httpx.Response(404)), Reason.MALFORMED_ANSWER),
        (answering(state=httpx.Response(200, content=b"{")), Reason.MALFORMED_ANSWER),
        (
            answering(state=httpx.Response(200, content=GZIPPED, headers={"content-encoding": "gzip"})),
            Reason.MALFORMED_ANSWER,
        ),
        (answering(state=ok(wire(STATE) | {"uptimeSeconds": None})), Reason.MALFORMED_ANSWER),
        (answering(state=httpx.RemoteProtocolError("not HTTP")), Reason.MALFORMED_ANSWER),
        (answering(state=httpx.RemoteProtocolError("Server disconnected without ...")), Reason.POD_NOT_ANSWERING),
        (answering(state=ok(wire(STATE) | {"protocolVersion": 2}), samples=ok(SAMPLES)), Reason.MALFORMED_ANSWER),
        (answering(state=ok(wire(STATE) | {"table": [1, 1]}), samples=ok(SAMPLES)), Reason.MALFORMED_ANSWER),
    ],
)
async def test_each_failure_has_its_reason(pod: httpx.MockTransport, reason: Reason) -> None:
    answer = await observe(pod)
    assert answer.failure == reason, answer.failure_message
    assert answer.state is None
    assert answer.samples is None
    assert answer.failure_message
    assert TOKEN not in answer.failure_message


@pytest.mark.parametrize(
    "change",
    [
        {"drafted": [12, 12], "accepted": [9, 7, 5]},
        {"accepted": [13, 7, 5]},
        {"accepted": [-1, 7, 5]},
        {"drafts": 21},
        {"k": 65},
    ],
)
async def test_acceptance_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    samples = wire(SAMPLES)
    samples["acceptance"][0] |= change
    answer = await observe(answering(state=ok(STATE), samples=ok(samples)))
    assert answer.failure == Reason.MALFORMED_ANSWER


@pytest.mark.parametrize(
    "change", [{"histogram": {"1000000": 1}}, {"kDrafted": 65}, {"requestSteps": 0}, {"seconds": -1}]
)
async def test_costs_that_cannot_be_are_refused(change: dict[str, Any]) -> None:
    samples = wire(SAMPLES)
    samples["cells"][0] |= change
    answer = await observe(answering(state=ok(STATE), samples=ok(samples)))
    assert answer.failure == Reason.MALFORMED_ANSWER


async def test_an_endless_body_is_cut_off() -> None:
    sent = 0

    async def endless() -> Any:
        nonlocal sent
        while True:
            sent += 65536
            yield b" " * 65536

    answer = await observe(answering(state=httpx.Response(200, content=endless())))
    assert answer.failure == Reason.MALFORMED_ANSWER
    assert sent <= exchange.MAX_ANSWER_BYTES + 65536


async def test_a_dripping_body_meets_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "DEADLINE_SECONDS", 0.05)

    async def drip() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    answer = await observe(answering(state=httpx.Response(200, content=drip())))
    assert answer.failure == Reason.POD_NOT_ANSWERING


async def test_a_cookie_of_a_pod_is_not_sent_to_another() -> None:
    seen: list[httpx.Headers] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.headers)
        return httpx.Response(200, json=wire(STATE), headers={"set-cookie": "a=b; Path=/"})

    await observe(httpx.MockTransport(handle))
    assert "cookie" not in seen[-1]


async def test_a_push_carries_the_policy_and_returns_the_acknowledgement() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return ok(PolicyAck(generation=3, applied=True))

    assert await push(httpx.MockTransport(handle)) == PolicyAck(generation=3, applied=True)
    assert (seen[0].method, Policy.model_validate_json(seen[0].content)) == ("PUT", POLICY)


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (None, Reason.POD_NOT_ANSWERING),
        (httpx.Response(401), Reason.TOKEN_REFUSED),
        (httpx.Response(503), Reason.ENGINE_WARMING_UP),
        (httpx.Response(409, json={"reason": "OlderGeneration", "message": "7 is in force"}), Reason.NOT_ACKNOWLEDGED),
        (httpx.Response(422, json={"reason": "Invalid", "message": "too short"}), Reason.NOT_ACKNOWLEDGED),
        (httpx.Response(413), Reason.MALFORMED_ANSWER),
        (httpx.Response(200, content=b"[]"), Reason.MALFORMED_ANSWER),
    ],
)
async def test_a_refused_push_has_its_reason(answer: Any, reason: Reason) -> None:
    failure = await push(answering(policy=answer))
    assert isinstance(failure, EngineFailure)
    assert failure.reason == reason
    assert TOKEN not in failure.message


async def test_the_plugins_own_words_are_shown() -> None:
    text = "generation 7 is in force\n\x1b[31m"
    failure = await push(answering(policy=httpx.Response(409, json={"reason": "OlderGeneration", "message": text})))
    assert isinstance(failure, EngineFailure)
    assert "generation 7 is in force" in failure.message
    assert failure.message.isprintable()


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("vllm:num_requests_running 3\nvllm:generation_tokens_total 5\nvllm:prompt_tokens_total 7\n", (12, 3)),
        ('vllm:num_requests_running{engine="0"} 1\nvllm:num_requests_running{engine="1"} 2\n', None),
        ("vllm:num_requests_running NaN\nvllm:generation_tokens_total 5\n", None),
        ("vllm:num_requests_running +Inf\nvllm:generation_tokens_total 5\n", None),
        ("vllm:num_requests_running{ 1\n", None),
        ("", None),
    ],
)
async def test_progress_is_read_of_an_engine_s_own_metrics_or_not_at_all(said: str, found: Any) -> None:
    pod = httpx.MockTransport(lambda _: httpx.Response(200, text=said))
    async with engine.EngineClient(pod) as client:
        assert await client.tokens("http://10.0.0.1:8000") == found


@pytest.mark.parametrize(
    ("body", "path"), [({"prompt": "x"}, "/v1/completions"), ({"messages": []}, "/v1/chat/completions")]
)
async def test_a_question_goes_where_its_form_belongs(body: dict[str, Any], path: str) -> None:
    seen: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request.url.path)
        return httpx.Response(200 if len(seen) == 1 else 400, content=b"{}")

    async with engine.EngineClient(httpx.MockTransport(handle)) as client:
        assert await client.complete("http://pod", body) == b"{}"
        assert await client.complete("http://pod", body) is None
    assert seen == [path, path]
