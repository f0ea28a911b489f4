"""Profiles from experiments: known numbers come out as they went in, and another key is refused with its field."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_operator.api.learned import ProfileKey
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.experiment.results import VariantResult
from paceline_operator.preflight import evidence
from paceline_operator.profiling.measured import profile_of

KEY = ProfileKey.model_validate(
    {
        "gpu": "NVIDIA H200", "modelDigest": "sha256:" + 64 * "1", "draftDigest": "sha256:" + 64 * "2",
        "method": "eagle3", "maxTokens": 3, "engineVersion": "0.33.0", "graphMode": "FULL",
    }
)  # fmt: skip
QUANTILES = dict.fromkeys(("mean", "p50", "p95", "p99"), 100.0)


def window(load: int, round_: int, step: float, length: float, steps: int = 2000, **more: Any) -> dict[str, Any]:
    """Of `steps` engine steps of `step` seconds at `load` requests that each give `length` tokens, 10 requests a place
    that wait 0.1 s for their first token."""
    requests = 10 * load
    drafted = steps * load
    tokens = round(steps * load * length) + requests
    decode = steps * step * tokens / (tokens - requests)
    return {
        "load": load, "round": round_, "seed": round_, "started_at": 1e9 + 1000 * round_, "warmed": True,
        "seconds": decode + requests * 0.1 / load, "tokens": tokens, "requests": requests,
        "client": {"ttft": QUANTILES},
        "acceptance": {
            "drafts": drafted, "drafted": 3 * drafted, "accepted": tokens - requests - steps * load,
            "by_position": [0.5, 0.3, 0.2],
        } if length > 1 else None,
        **more,
    }  # fmt: skip


def result(variant: str, k: int, windows: list[dict[str, Any]], **methods: Any) -> VariantResult:
    told = {"gpu": "NVIDIA H200", "versions": {"vllm": "0.33.0"}, **methods}
    body = {"experiment": "x", "variant": variant, "k": k, "methods": told, "windows": windows}
    return VariantResult.model_validate(body)


def results(**methods: Any) -> list[VariantResult]:
    return [
        result("baseline", 0, [window(load, at, 0.010 + load / 1e4, 1.0) for load in (1, 16) for at in (0, 1)]),
        result(
            "serving", 3, [window(load, at, 0.020 + load / 1e4, 2.0) for load in (1, 16) for at in (0, 1)], **methods
        ),
    ]


def test_step_times_and_acceptance_come_out_as_they_went_in() -> None:
    found = profile_of(results(), KEY, "chat")
    assert isinstance(found, ProfileSpec), found
    assert [(row.k, row.from_requests) for row in found.cost] == [(3, 1), (3, 16)]
    assert [row.step_microseconds for row in found.cost] == pytest.approx([20_100, 21_600], rel=0.01)
    assert [row.step_microseconds for row in found.no_drafter] == pytest.approx([10_100, 11_600], rel=0.01)
    assert [row.steps for row in found.cost] == pytest.approx([4000, 4000], rel=0.01)
    (fate,) = found.acceptance
    assert [one / fate.request_steps for one in fate.accepted] == pytest.approx([0.5, 0.3, 0.2], abs=0.01)
    assert found.measured_at == "2001-09-09T02:04:04Z"
    assert list(evidence.of_profile(found)) == []


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        ({"gpu": "NVIDIA B200"}, "gpu is NVIDIA B200 in the experiment and NVIDIA H200 in the engines"),
        ({"versions": {}}, "engineVersion is unknown in the experiment and 0.33.0 in the engines"),
    ],
)
def test_another_key_is_refused_with_its_field(methods: dict[str, Any], says: str) -> None:
    assert profile_of(results(**methods), KEY, "chat") == f"the experiment was made under another key: {says}"
    other = profile_of(results(), KEY.model_copy(update={"max_tokens": 5}), "chat")
    assert other == "the experiment was made under another key: maxTokens is 3 in the experiment and 5 in the engines"


def test_without_the_serving_or_a_clean_window_there_is_none() -> None:
    assert profile_of(results()[:1], KEY, "chat") == "the experiment has no results of the variant serving"
    tainted = result("serving", 3, [window(1, 0, 0.02, 2.0, warmed=False)])
    said = profile_of([results()[0], tainted], KEY, "chat")
    assert said == "no window of the serving is clean and tells its acceptance"


COUNTS = st.integers(0, 10**9)


@given(
    tokens=COUNTS, requests=COUNTS, seconds=st.floats(1e-3, 1e6), drafts=COUNTS, accepted=COUNTS,
    shares=st.lists(st.floats(0, 1), max_size=5), ttft=st.floats(0, 1e6), load=st.integers(1, 65_536),
)  # fmt: skip
def test_whatever_was_measured_is_a_possible_profile_or_a_reason(
    tokens: int, requests: int, seconds: float, drafts: int, accepted: int, shares: list[float], ttft: float, load: int
) -> None:
    odd = window(1, 0, 0.02, 2.0) | {
        "load": load, "tokens": tokens, "requests": requests, "seconds": seconds,
        "client": {"ttft": dict.fromkeys(QUANTILES, ttft)},
        "acceptance": {"drafts": drafts, "drafted": 3 * drafts, "accepted": accepted, "by_position": shares},
    }  # fmt: skip
    found = profile_of([results()[0], result("serving", 3, [odd])], KEY, "chat")
    if isinstance(found, ProfileSpec):
        assert list(evidence.of_profile(ProfileSpec.model_validate(found.model_dump()))) == []
