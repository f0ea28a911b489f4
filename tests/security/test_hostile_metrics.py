"""Numbers on an engine's /metrics that cannot be: none reaches a decision as anything but a number, or as unknown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from paceline_engine.protocol import Samples, State
from paceline_operator import firsttokens
from paceline_operator.api.conditions import Reason
from paceline_operator.clients.answers import EngineFailure, Refused, implausible, parse_reading
from paceline_operator.clients.engine import RUNNING, TOKENS, EngineClient
from paceline_operator.rollout import page
from tests.unit.engine_answers import SAMPLES, SERVING, STATE

NUMBERS = (
    "NaN",
    "+Inf",
    "-Inf",
    "-1",
    "1e400",
    "-1e400",
    "1e308",
    "1e-400",
    "0",
    "5",
    "40",
    "9" * 400,
    "0x1",
    "",
    "1 2 3",
)
EDGES = ("0.1", "0.5", "1", "+Inf", "-Inf", "NaN", "-3", "1e400", "x", "")
NAMES = (firsttokens.SERIES, page.MEAN, page.FINISHED, page.ANSWERED, RUNNING, *TOKENS)
LABELS = st.sampled_from(EDGES).map('{{le="{}"}}'.format) | st.sampled_from(
    ("", '{finished_reason="error"}', '{status="5xx"}', "{", '{le="1"', "}")
)
LINES = st.builds("{}{} {}".format, st.sampled_from(NAMES), LABELS, st.sampled_from(NUMBERS))
PAGES = st.lists(st.lists(LINES, max_size=12).map("\n".join), min_size=2, max_size=3)


@given(PAGES)
@example([f'{name}{{le="1"}} {"9" * 400}' for name in NAMES])
async def test_no_number_that_cannot_be_reaches_a_decision(pages: list[str]) -> None:
    waiting = iter([text for text in pages for _ in range(3)])
    histograms, requests = [], []
    async with EngineClient(httpx.MockTransport(lambda _: httpx.Response(200, text=next(waiting)))) as client:
        for _ in pages:
            histograms.append(await client.first_token_times(SERVING))
            requests.append(await client.requests_page(SERVING))
            tokens = await client.tokens(SERVING)
            assert tokens is None or all(isinstance(count, int) for count in tokens)
    for before, after in pairwise(histograms):
        found = firsttokens.quantile(before, after)
        assert found is None or math.isfinite(found)
    for first, last in pairwise(requests):
        came = page.between(first, last) if first and last else None
        counts = [*came.first_token.values(), *came.token.values(), came.answered, came.failed] if came else []
        assert all(math.isfinite(count) and count >= 0 for count in counts)


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Where in JSON a number is."""
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield path


def at(value: Any, path: tuple[str | int, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def parsed(body: bytes) -> tuple[State, Samples | None] | EngineFailure:
    try:
        return parse_reading(body, SERVING)
    except Refused as refused:
        return refused.failure


READING = {**STATE.model_dump(mode="json", by_alias=True), "samples": SAMPLES.model_dump(mode="json", by_alias=True)}
LARGE = (10**400, -(10**400), 2**63, 1e300, -1e300, 1e-300)


@pytest.mark.parametrize("number", LARGE)
@pytest.mark.parametrize("path", list(places(READING["samples"])), ids=lambda path: ".".join(map(str, path)))
def test_a_sample_that_cannot_be_is_refused_or_a_double(path: tuple[str | int, ...], number: float) -> None:
    reading = json.loads(json.dumps(READING))
    at(reading["samples"], path[:-1])[path[-1]] = number
    found = parsed(json.dumps(reading).encode())
    if isinstance(found, EngineFailure):
        assert found.reason is Reason.MALFORMED_ANSWER
        assert len(found.message) < 1000
        return
    state, samples = found
    assert samples is not None
    if implausible(state, samples) is None:
        told = samples.model_dump(mode="json")
        for where in places(told):
            assert math.isfinite(float(at(told, where)) ** 2), where
