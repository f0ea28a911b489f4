"""The 95th percentile of the time to first token: from vLLM's text, between two readings, and when it is read."""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import replace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client import Histogram as Recorded

from paceline_operator.clients.engine import EngineClient
from paceline_operator.firsttokens import (
    MIN_REQUESTS,
    READ_SECONDS,
    SERIES,
    FirstTokens,
    Histogram,
    is_bucket,
    parse,
    quantile,
)
from paceline_operator.observe import first_tokens
from paceline_operator.tuning.decide import settings_of
from paceline_operator.tuning.model import Engine, Settings
from tests.fakes import FakeEngines
from tests.unit.simulated import spec

EDGES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
TIMES = st.lists(st.floats(0.001, 5.0), max_size=200)


def page(times: Sequence[float], engines: int = 1) -> str:
    """As vLLM's API server writes it, with the series beside it."""
    registry = CollectorRegistry()
    family = Recorded(
        "vllm:time_to_first_token_seconds", "TTFT", ["model_name", "engine"], buckets=EDGES, registry=registry
    )
    for number, seconds in enumerate(times):
        family.labels("m", str(number % engines)).observe(seconds)
    return generate_latest(registry).decode()


def read(text: str) -> Histogram | None:
    return parse(line for line in text.splitlines() if is_bucket(line))


def test_it_is_the_percentile_of_what_came_between() -> None:
    before = [3.0] * 500
    between = [0.2] * 94 + [0.8] * 6
    found = quantile(read(page(before)), read(page(before + between)))
    assert found is not None
    assert 0.5 < found < 0.6, "the first of the six, as the bucket has it: not the 500 slow ones of before"


@given(TIMES, TIMES, st.integers(1, 3))
def test_it_is_within_the_bucket_of_the_true_one(before: list[float], between: list[float], engines: int) -> None:
    found = quantile(read(page(before, engines)), read(page(before + between, engines)))
    if len(between) < MIN_REQUESTS or not before:
        assert found is None
        return
    true = sorted(between)[math.ceil(0.95 * len(between)) - 1]
    bucket = bisect.bisect_left(EDGES, true)
    low, high = (0.0, *EDGES)[bucket], (*EDGES, EDGES[-1])[bucket]
    assert found is not None
    assert low <= found <= max(high, low)


def test_a_restart_other_edges_and_the_first_reading_have_none() -> None:
    many, few = read(page([0.2] * 100)), read(page([0.2] * 30))
    assert quantile(None, many) is None
    assert quantile(many, None) is None
    assert quantile(many, few) is None, "the counts fell"
    assert quantile(Histogram({1.0: 0.0, math.inf: 0.0}), many) is None


@given(st.lists(st.text(max_size=40) | st.from_regex(SERIES + r'\{le="[^"\n]{0,6}"\} [0-9eInf+.-]{0,6}'), max_size=8))
def test_no_page_raises_anything_but_a_value_error(lines: list[str]) -> None:
    try:
        found = parse(lines)
    except ValueError:
        return
    quantile(found, found)


def served(body: str, status: int = 200) -> EngineClient:
    return EngineClient(httpx.MockTransport(lambda _: httpx.Response(status, text=body)))


async def test_the_client_reads_it_among_other_series_and_never_raises() -> None:
    times = [0.2] * 30
    other = "vllm:num_requests_running 1\n" * 100
    assert await served(other + page(times)).first_token_times("http://pod:8000") == read(page(times))
    assert await served(other).first_token_times("http://pod:8000") is None
    assert await served(page(times), 500).first_token_times("http://pod:8000") is None
    assert await served(f'{SERIES}{{le="1"}} many\n').first_token_times("http://pod:8000") is None
    assert await served("").first_token_times("no url") is None


class Pages(FakeEngines):
    """Engines whose histograms a test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.read: list[str] = []

    async def first_token_times(self, serving_url: str) -> Histogram | None:
        self.read.append(serving_url)
        return read(page(self.times))


LIMITED = settings_of(spec(slo={"ttftP95Milliseconds": 500}))


async def _look(
    pages: Pages, past: FirstTokens, now: float, settings: Settings = LIMITED
) -> tuple[Engine, FirstTokens]:
    engine = await pages.observe_engine("a", "c", "s", "t", None)
    (told,), after = await first_tokens(pages, [engine], {"a": "s"}, settings, past, now)  # type: ignore[arg-type]
    return told, after


async def test_it_is_read_every_half_minute_and_unknown_in_between() -> None:
    assert LIMITED.ttft_limit_seconds == 0.5
    pages, past, known = Pages(), FirstTokens(), []
    for number in range(10):
        pages.times += [0.8] * 10
        told, past = await _look(pages, past, 1000.0 + 10 * number)
        known.append(told.ttft_p95_seconds)
    assert len(pages.read) == 4
    assert [found is not None for found in known] == [False, False, False, True, False, False, True, False, False, True]
    assert known[3] == pytest.approx(0.975)


async def test_it_is_not_read_where_nobody_asks_or_nothing_answers() -> None:
    pages = Pages()
    told, past = await _look(pages, FirstTokens(), 1000.0, replace(LIMITED, ttft_limit_seconds=None))
    assert (told.ttft_p95_seconds, past) == (None, FirstTokens())
    silent = Engine("a")
    engines, past = await first_tokens(pages, [silent], {"a": "s"}, LIMITED, FirstTokens(), READ_SECONDS)  # type: ignore[arg-type]
    assert engines == (silent,)
    assert pages.read == []
