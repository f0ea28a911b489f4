"""The engine client: each way to fail has its own reason, and no answer can make it raise."""

import asyncio
import gzip
import json
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline_engine.protocol import (
    AcceptanceCell,
    Capabilities,
    CostCell,
    Feature,
    Gauges,
    Policy,
    PolicyAck,
    Samples,
    State,
    VerificationFeature,
)
from paceline_operator.api.conditions import Reason
from paceline_operator.clients import engine
from paceline_operator.clients.engine import EngineClient, EngineFailure

CONTROL = "http://control.test:8765"
SERVING = "http://serving.test:8000"
TOKEN = "0123456789abcdef"
METRICS = '# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0"} 2.0\nprocess_open_fds 3\n'

STATE = State(
    plugin_version="0.1.0",
    engine_version="0.32.0",
    boot_id="b1",
    uptime_seconds=3.0,
    capabilities=Capabilities(
        live_k=Feature(supported=True),
        adaptive_verification=VerificationFeature(supported=False, reason="V1 runner"),
        max_k=5,
        ladder=(5, 3, 0),
        max_num_seqs=4,
        method="ngram",
        runner="V1",
    ),
    generation=2,
    table=(5, 5, 3, 3, 0),
    k_in_force=3,
    steps_by_k={3: 10, 5: 2},
    probe_steps_by_k={0: 8},
    policy_errors=0,
)
SAMPLES = Samples(
    boot_id="b1",
    cursor="b1:7",
    reset=False,
    lost_windows=0,
    from_seconds=1.0,
    to_seconds=3.0,
    cells=(
        CostCell(
            load=2,
            context=0,
            k_drafted=3,
            k_verified=3,
            probe=False,
            steps=10,
            request_steps=20,
            emitted=41,
            seconds=0.5,
            seconds_squared=0.03,
            histogram={220: 10},
        ),
    ),
    acceptance=(AcceptanceCell(k=3, load=2, request_steps=20, drafts=12, drafted=(12, 12, 11), accepted=(9, 7, 5)),),
    excluded_steps={"mixed": 2},
    steps_by_k={3: 10},
    probe_steps_by_k={},
    gauges=Gauges(running=2, waiting=0, kv_cache_usage=0.1, prompt_tokens=100, generation_tokens=50),
)
GZIPPED = gzip.compress(STATE.model_dump_json(by_alias=True).encode())
POLICY = Policy(generation=3, table=(0, 0, 0, 0, 0))


def wire(model: Any) -> dict[str, Any]:
    return json.loads(model.model_dump_json(by_alias=True))


def answering(state: Any = None, samples: Any = None, metrics: Any = None, policy: Any = None) -> httpx.MockTransport:
    """A pod whose paths answer with a Response, raise an exception, or (None) refuse the connection."""
    answers = {"/state": state, "/samples": samples, "/metrics": metrics, "/policy": policy}

    def handle(request: httpx.Request) -> httpx.Response:
        answer = answers[request.url.path]
        if answer is None:
            raise httpx.ConnectError("Connection refused")
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, httpx.Response)
        return answer

    return httpx.MockTransport(handle)


def ok(model: Any) -> httpx.Response:
    return httpx.Response(200, json=model if isinstance(model, dict) else wire(model))


async def observe(transport: httpx.AsyncBaseTransport, cursor: str | None = "b1:6") -> Any:
    async with EngineClient(transport) as client:
        return await client.observe_engine("pod-0", CONTROL, SERVING, TOKEN, cursor)


async def push(transport: httpx.AsyncBaseTransport) -> PolicyAck | EngineFailure:
    async with EngineClient(transport) as client:
        return await client.push(CONTROL, TOKEN, POLICY)


async def test_an_answering_engine_is_read_with_token_and_cursor() -> None:
    seen: list[httpx.Request] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return ok(STATE if request.url.path == "/state" else SAMPLES)

    answer = await observe(httpx.MockTransport(handle))
    assert (answer.name, answer.state, answer.samples, answer.failure) == ("pod-0", STATE, SAMPLES, None)
    assert [request.headers["authorization"] for request in seen] == [f"Bearer {TOKEN}"] * 2
    assert [str(request.url) for request in seen] == [f"{CONTROL}/state", f"{CONTROL}/samples?cursor=b1%3A6"]


@pytest.mark.parametrize("cursor", [None, ""])
async def test_without_a_cursor_everything_since_boot_is_asked_for(cursor: str | None) -> None:
    seen: list[str] = []

    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(str(request.url))
        return ok(STATE if request.url.path == "/state" else SAMPLES)

    await observe(httpx.MockTransport(handle), cursor)
    assert seen[1] == f"{CONTROL}/samples"


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
    assert sent <= engine.MAX_ANSWER_BYTES + 65536


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


HOSTILE_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
HOSTILE = (
    st.binary(max_size=200)
    | HOSTILE_JSON.map(lambda value: json.dumps(value).encode())
    | st.integers(1, 20_000).map(lambda depth: b"[" * depth)
)
STATUS = st.sampled_from([200, 204, 301, 400, 401, 404, 409, 418, 422, 500, 503])


@given(body=HOSTILE, status=STATUS)
def test_hostile_bodies_never_raise(body: bytes, status: int) -> None:
    response = httpx.Response(status, content=body)
    answer = asyncio.run(observe(answering(state=response)))
    assert answer.failure is not None
    failure = asyncio.run(push(answering(policy=response)))
    assert isinstance(failure, EngineFailure)
    assert failure.message.isprintable()


@given(body=HOSTILE | st.text(max_size=100).map(lambda text: f"vllm:{text}".encode()), status=STATUS)
def test_hostile_metrics_never_raise(body: bytes, status: int) -> None:
    answer = asyncio.run(observe(answering(metrics=httpx.Response(status, content=body))))
    assert answer.failure in (Reason.ENGINE_SERIES_MISSING, Reason.PLUGIN_ABSENT, Reason.MALFORMED_ANSWER)


SAMPLE_FIELDS = sorted(wire(SAMPLES))
CELL_FIELDS = sorted(wire(SAMPLES)["cells"][0])
ACCEPTANCE_FIELDS = sorted(wire(SAMPLES)["acceptance"][0])


@given(st.data())
def test_a_valid_answer_with_one_hostile_field_never_raises(data: st.DataObject) -> None:
    samples = wire(SAMPLES)
    target, fields = data.draw(
        st.sampled_from(
            [
                (samples, SAMPLE_FIELDS),
                (samples["cells"][0], CELL_FIELDS),
                (samples["acceptance"][0], ACCEPTANCE_FIELDS),
            ]
        )
    )
    target[data.draw(st.sampled_from(fields))] = data.draw(HOSTILE_JSON)
    body = json.dumps(samples).encode()
    answer = asyncio.run(observe(answering(state=ok(STATE), samples=httpx.Response(200, content=body))))
    assert (answer.failure is None) == (answer.samples is not None)


@given(
    st.dictionaries(
        st.from_regex(r"vllm:[a-z_]{1,20}", fullmatch=True), st.integers(-(2**40), 2**40), min_size=1, max_size=5
    )
)
def test_series_are_summed_over_their_labels(values: dict[str, int]) -> None:
    lines = [f'{name}{{engine="{i}"}} {value}' for name, value in values.items() for i in range(2)]
    assert engine.parse_series(lines) == {name: 2.0 * value for name, value in values.items()}


@pytest.mark.parametrize(
    "body",
    [
        b'{"cells":[' + b",".join([b"{}"] * 200_000) + b"]}",
        b'{"stepsByK":{' + b",".join(b'"a%d":""' % i for i in range(100_000)) + b"}}",
        b'{"probe":{"ks":[' + b",".join([b"{}"] * 200_000) + b"]}}",
    ],
    ids=["cells", "counts", "probe"],
)
async def test_a_million_mistakes_in_an_answer_cost_no_more_than_a_few(body: bytes) -> None:
    for model in (State, Samples):
        with pytest.raises(ValidationError) as caught:
            model.model_validate(json.loads(body))
        assert caught.value.error_count() < 50
    answer = await observe(answering(state=httpx.Response(200, content=body)))
    assert answer.failure is Reason.MALFORMED_ANSWER
