"""The engine client against what no engine should say: it never raises, and never takes long."""

import asyncio
import json
import time
from collections.abc import AsyncIterator

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from paceline_engine.protocol import (
    Samples,
    State,
)
from paceline_operator.api.conditions import Reason
from paceline_operator.clients import answers, exchange
from paceline_operator.clients.answers import EngineFailure
from paceline_operator.clients.engine import EngineClient
from tests.unit.engine_answers import (
    SAMPLES,
    SERVING,
    STATE,
    answering,
    observe,
    ok,
    push,
    wire,
)

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
    assert answers.parse_series(lines) == {name: 2.0 * value for name, value in values.items()}


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


LABELS = ",".join(f'x{i}="1"' for i in range(40_000))
BUCKET = 'vllm:time_to_first_token_seconds_bucket{le="+Inf"} 3'


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        (f"vllm:a{{{LABELS}}} 1\nvllm:b 2\n", Reason.PLUGIN_ABSENT),
        (f"vllm:b 2\nvllm:a{{{LABELS}}} 1", Reason.PLUGIN_ABSENT),
        ("vllm:a{{{}}} 1\n".format(LABELS[:4000].rpartition(",")[0]) * 100, Reason.MALFORMED_ANSWER),
    ],
    ids=["long line", "long last line", "many lines"],
)
async def test_metrics_that_are_slow_to_parse_are_not_parsed(text: str, failure: Reason) -> None:
    began = time.process_time()
    answer = await observe(answering(metrics=httpx.Response(200, text=text)))
    assert time.process_time() - began < 1.0
    assert answer.failure is failure
    assert answer.counters == ({"vllm:b": 2.0} if failure is Reason.PLUGIN_ABSENT else None)


async def test_requests_are_read_beside_lines_that_are_too_long() -> None:
    text = f"{BUCKET.replace('le=', LABELS + ',le=')}\n{BUCKET}\n"
    async with EngineClient(answering(metrics=httpx.Response(200, text=text))) as client:
        times, requests = await client.first_token_times(SERVING), await client.requests_page(SERVING)
    assert times is not None
    assert requests is not None
    assert times.counts == requests.first_token == {float("inf"): 3.0}


@given(
    st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    st.integers(1, 30),
    st.integers(1, 40),
)
def test_lines_are_those_of_the_text_whatever_chunks_it_comes_in(
    lines: list[bytes], at_once: int, longest: int
) -> None:
    text = b"\n".join(lines)

    async def chunks() -> AsyncIterator[bytes]:
        for at in range(0, len(text), at_once):
            yield text[at : at + at_once]

    async def read() -> list[str]:
        return [line async for line in exchange.lines(httpx.Response(200, content=chunks()))]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exchange, "MAX_LINE_BYTES", longest)
        assert asyncio.run(read()) == [
            line.decode("utf-8", "replace") for line in lines or [b""] if len(line) <= longest
        ]
