"""Whether speculation can pay, against arithmetic done by hand and published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_operator.api.status import ServingStatus
from paceline_operator.cli.app import app
from paceline_operator.worth import Price, Verdict, Workload, advise, of_status, overall, text

SHARES = st.floats(0, 0.99)
RATIOS = st.floats(0.1, 10)


@pytest.mark.parametrize(
    ("share", "ratio", "times"), [(0.0, 2.0, 2.0), (0.5, 2.0, 4 / 3), (0.9, 2.0, 20 / 19), (0.5, 1.0, 1.0)]
)
def test_prefill_stays_as_it_is(share: float, ratio: float, times: float) -> None:
    assert overall(ratio, share) == pytest.approx(times)


@given(SHARES, RATIOS)
def test_the_whole_gains_less_than_decoding_and_loses_less(share: float, ratio: float) -> None:
    times = overall(ratio, share)
    assert min(1.0, ratio) - 1e-9 <= times <= max(1.0, ratio) + 1e-9
    assert times <= 1.0 / max(share, 1e-9) + 1e-9


@given(SHARES, SHARES, st.floats(1, 10))
def test_more_prefill_is_never_better(one: float, other: float, ratio: float) -> None:
    low, high = sorted((one, other))
    assert overall(ratio, high) <= overall(ratio, low) + 1e-9


@pytest.mark.parametrize(
    ("workload", "ratio", "verdict"),
    [
        (Workload(prefill_share=0.97), None, Verdict.CANNOT),
        (Workload(prefill_share=0.97), 3.0, Verdict.CANNOT),
        (Workload(prefill_share=0.9), None, Verdict.HARDLY),
        (Workload(prefill_share=0.1), None, Verdict.MAY_PAY),
        (Workload(), None, Verdict.MAY_PAY),
        (Workload(prefill_share=0.1), 1.7, Verdict.PAYS),
        (Workload(prefill_share=0.1), 1.02, Verdict.HARDLY),
        (Workload(prefill_share=0.1), 0.84, Verdict.CANNOT),
        (Workload(temperature=1.3), None, Verdict.HARDLY),
        (Workload(temperature=1.3, structured_share=0.9), None, Verdict.MAY_PAY),
        (Workload(temperature=1.3), 1.5, Verdict.PAYS),
    ],
)
def test_the_verdict(workload: Workload, ratio: float | None, verdict: Verdict) -> None:
    assert advise(workload, ratio).verdict is verdict


def test_the_share_of_prefill_follows_from_times_and_length() -> None:
    """A second to the first of 101 tokens, ten milliseconds for each of the others: half and half."""
    found = Workload(ttft_milliseconds=1000, tpot_milliseconds=10, output_tokens=101)
    assert found.prefill == pytest.approx(0.5)
    assert Workload(ttft_milliseconds=1000, tpot_milliseconds=10).prefill is None
    assert Workload(ttft_milliseconds=0, tpot_milliseconds=0, output_tokens=0).prefill is None


def test_a_million_tokens_cost_what_the_seconds_for_them_cost() -> None:
    """3.60 an hour and GPU are a tenth of a cent a second; 1,000 tokens a second make a million in 1,000 s."""
    found = advise(Workload(), 1.5, Price(per_gpu_hour=3.6, gpus=2, tokens_per_second=1000)).cost
    assert found is not None
    assert found.with_speculation == pytest.approx(2.0)
    assert found.without == pytest.approx(3.0)


@given(SHARES, RATIOS)
def test_costs_are_apart_by_as_much_as_the_whole_is_faster(share: float, ratio: float) -> None:
    found = advise(Workload(prefill_share=share), ratio, Price(3.6, 1, 1000)).cost
    assert found is not None
    assert found.without is not None
    assert found.without / found.with_speculation == pytest.approx(overall(ratio, share))


def status_of(**fields: Any) -> ServingStatus:
    row = {
        "k": 3, "goodputMilliTokensPerSecond": 2_000_000, "lowMilliTokensPerSecond": 0, "highMilliTokensPerSecond": 0,
        "stepMicroseconds": 1, "acceptanceLengthMilli": 1, "steps": 1,
    }  # fmt: skip
    bucket = {"fromRequests": 4, "k": 3, "observed": True, "candidates": [row]}
    return ServingStatus.model_validate({"loadRequests": 5, "buckets": [bucket], **fields})


def test_of_a_serving_the_speed_at_its_load_and_the_honest_ratio_are_taken() -> None:
    found = of_status(status_of(ratioToNoDrafterPermille=1500, ratioToK0Permille=1700), Workload(), 3.6, 2)
    assert found.cost is not None
    assert (found.times, found.cost.with_speculation) == (pytest.approx(1.5), pytest.approx(1.0))
    assert not any("k=0" in reason for reason in found.reasons)
    found = of_status(status_of(ratioToK0Permille=1700), Workload(), None, 1)
    assert found.times == pytest.approx(1.7)
    assert any("k=0" in reason for reason in found.reasons)


def test_of_a_serving_that_measured_nothing_there_is_no_cost() -> None:
    found = of_status(ServingStatus(), Workload(), 3.6, 1)
    assert found.cost is None
    assert "no cost is told" in text(found)
    assert "no cost" not in text(of_status(ServingStatus(), Workload(), None, 1))


def test_what_was_not_measured_has_no_cost_without() -> None:
    found = advise(Workload(), None, Price(3.6, 1, 1000))
    assert found.cost is not None
    assert found.cost.without is None
    assert "not measured here" in text(found)


@given(
    st.none() | st.floats(0, 1), st.none() | st.floats(0, 2), st.none() | st.floats(0, 1), st.none() | st.floats(0, 20),
    st.floats(0, 1e6),
)  # fmt: skip
def test_any_workload_has_a_verdict(
    share: float | None, temperature: float | None, structured: float | None, ratio: float | None, speed: float
) -> None:
    workload = Workload(prefill_share=share, temperature=temperature, structured_share=structured)
    found = advise(workload, ratio, Price(2.0, 1, speed))
    assert found.reasons
    assert text(found)


def test_explain_tells_it_where_it_is_told_of_the_workload() -> None:
    trace = sorted((Path(__file__).parents[1] / "data" / "traces").glob("*.jsonl*"))[0]
    given = ["explain", "--record", str(trace), "--prefill-share", "0.97", "--gpu-hour", "2"]
    result = CliRunner().invoke(app, given)
    assert result.exit_code == 0, result.output
    assert "speculation cannot pay for this workload" in result.output
    assert "speculation cannot" not in CliRunner().invoke(app, given[:3]).output
