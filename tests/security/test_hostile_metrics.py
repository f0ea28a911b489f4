"""Numbers on an engine's /metrics that cannot be: none reaches a decision as anything but a number, or as unknown."""

from __future__ import annotations

import math
from itertools import pairwise

import httpx
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator import firsttokens
from paceline_operator.clients.engine import RUNNING, TOKENS, EngineClient
from paceline_operator.rollout import page
from tests.unit.engine_answers import SERVING

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
