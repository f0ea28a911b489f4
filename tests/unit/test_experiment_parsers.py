"""Parsers of what an experiment leaves behind: `vllm bench serve`, the engine's log, result files."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.trial import bench, enginemetrics
from paceline_operator.experiment import enginelog, results
from paceline_operator.experiment.results import Methods, ResultError, VariantResult, Window

RECORDED = Path(__file__).parents[1] / "data" / "experiments" / "bench-serve.json"
STARTED = datetime(2026, 11, 29, 22, 0, tzinfo=UTC)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def served(**fields: Any) -> dict[str, Any]:
    """What vllm/benchmarks/serve.py writes, the fields that are read and some that are not."""
    return {
        "date": "20261129-220500", "max_concurrency": 2, "duration": 4.0, "completed": 2, "failed": 1,
        "total_input_tokens": 30, "total_output_tokens": 16, "output_lens": [11, 5, 0], "ttfts": [0.1, 0.3, 0.0],
        "itls": [[0.02] * 5, [0.05] * 4, []], "latencies": [1.1, 0.7, 0.0],
        "errors": ["", "", "Traceback: my secret prompt\naiohttp.ServerTimeoutError: Connection"],
        "generated_texts": ["a secret answer", "b", ""],
        "spec_decode_num_drafts": 10, "spec_decode_draft_tokens": 30, "spec_decode_accepted_tokens": 4,
        "spec_decode_per_position_acceptance_rates": [0.3, 0.1, 0.0], **fields,
    }  # fmt: skip


def window(content: bytes) -> Window:
    return bench.window(content, round_=1, seed=7, started_at=1000.0, warmed=True)


def test_one_run_becomes_a_window() -> None:
    found = window(json.dumps(served()).encode())
    assert (found.load, found.round, found.seed, found.seconds, found.tokens, found.requests) == (2, 1, 7, 4.0, 16, 2)
    assert found.errors == {"ServerTimeoutError": 1}
    client = found.client
    assert client.ttft
    assert client.tpot
    assert client.itl
    assert (client.ttft.mean, client.ttft.p50) == (pytest.approx(200), pytest.approx(200))
    assert client.tpot.p50 == pytest.approx(100), "1.0 s over 10 further tokens, 0.4 s over 4"
    assert client.itl.p50 == pytest.approx(20), "arrivals, not tokens: five gaps of 20 ms, four of 50"
    lengths = found.request_lengths
    assert lengths
    assert (lengths.p5, lengths.p50, lengths.p95) == pytest.approx((1.05, 1.5, 1.95)), "10 tokens in 5 steps, 4 in 4"
    assert found.acceptance
    assert found.acceptance.by_position == (0.3, 0.1, 0.0)
    assert found.firing_rate == pytest.approx(10 / (16 - 2 - 4))
    assert found.tokens_per_second == 4.0
    assert found.decode_tokens_per_second == pytest.approx(16 / (4.0 - 2 * 0.2 / 2))


def test_a_file_of_vllms_own_is_read_to_the_figures_of_its_own_summary() -> None:
    content = RECORDED.read_bytes()
    found, said = window(content), json.loads(content)
    for name, quantiles in {"ttft": found.client.ttft, "tpot": found.client.tpot, "itl": found.client.itl}.items():
        assert quantiles
        assert quantiles.mean == pytest.approx(said[f"mean_{name}_ms"])
        assert quantiles.p50 == pytest.approx(said[f"median_{name}_ms"])
        assert quantiles.p99 == pytest.approx(said[f"p99_{name}_ms"])
    assert found.client.e2e
    assert found.client.e2e.p99 == pytest.approx(said["p99_e2el_ms"])
    assert found.tokens_per_second == pytest.approx(said["output_throughput"])
    assert (found.requests, found.errors) == (6, {"other": 2})
    assert found.acceptance
    assert 1 + found.acceptance.accepted / found.acceptance.drafts == pytest.approx(
        said["spec_decode_acceptance_length"]
    )


def test_no_text_of_a_request_is_kept() -> None:
    assert "secret" not in window(json.dumps(served()).encode()).model_dump_json()


def test_without_speculation_there_is_no_acceptance() -> None:
    plain = {name: value for name, value in served().items() if not name.startswith("spec_decode")}
    assert window(json.dumps(plain).encode()).acceptance is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ttfts": None}, "ttfts"),
        ({"ttfts": [0.1]}, "differ in length"),
        ({"duration": 0}, "duration"),
        ({"duration": float("nan")}, "duration"),
        ({"max_concurrency": None}, "--max-concurrency"),
        ({"completed": -1}, "completed"),
        ({"latencies": [float("inf"), 1, 1]}, "latencies"),
    ],
)
def test_what_cannot_be_is_named(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ResultError, match=said):
        window(json.dumps(served(**fields)).encode())


def test_a_run_without_details_says_which_option_is_missing() -> None:
    short = {name: value for name, value in served().items() if name != "output_lens"}
    with pytest.raises(ResultError, match="--save-detailed"):
        window(json.dumps(short).encode())


@given(st.binary(max_size=64) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_garbage_is_a_named_error(content: bytes) -> None:
    with pytest.raises(ResultError):
        window(content)
    with pytest.raises(ResultError):
        results.read(content, "file")


@given(st.dictionaries(st.sampled_from(sorted(served())), ANYTHING, min_size=1, max_size=3))
def test_any_value_in_any_field_is_read_or_named(fields: dict[str, Any]) -> None:
    try:
        found = window(json.dumps(served(**fields)).encode())
    except ResultError:
        return
    assert 0 <= found.tokens_per_second < float("inf")


def test_deep_nesting_is_a_named_error() -> None:
    with pytest.raises(ResultError):
        window(b"[" * 100_000)


LOG = """\
(APIServer pid=10) INFO 11-29 22:00:09 [api_server.py:90] Started
(EngineCore pid=11) \x1b[33mWARNING\x1b[0m 11-29 22:01:00 [jit_monitor.py:136] Triton kernel JIT compilation during \
inference: _topk_topp_kernel. This causes a latency spike; consider extending warmup to cover this shape/config.
(APIServer pid=10) INFO 11-29 22:01:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 2.22, Accepted \
throughput: 12.00 tokens/s, Drafted throughput: 30.00 tokens/s, Accepted: 122 tokens, Drafted: 300 tokens, \
Per-position acceptance rate: 0.700, 0.400, 0.120, Avg Draft acceptance rate: 40.7%
(APIServer pid=10) INFO 01-02 00:00:01 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 1.00, Accepted
WARNING 02-30 00:00:00 [x.py:1] Triton kernel JIT compilation during inference: never_was
INFO 11-29 22:02:00 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: 0.50, below what can be
"""


def test_the_log_tells_of_compilers_and_of_lengths_in_time_order() -> None:
    warnings, lengths = enginelog.read(LOG.splitlines(), STARTED)
    assert [(one.event, one.kernel) for one in warnings] == [("Triton kernel JIT compilation", "_topk_topp_kernel")]
    assert warnings[0].at == STARTED.timestamp() + 60
    assert [one.length for one in lengths] == [2.22, 1.00]
    assert datetime.fromtimestamp(lengths[1].at, UTC) == datetime(2027, 1, 2, 0, 0, 1, tzinfo=UTC)


def test_the_log_is_in_the_engines_time_zone() -> None:
    east = STARTED.replace(tzinfo=timezone(timedelta(hours=2)))
    assert enginelog.read(LOG.splitlines(), east)[0][0].at == STARTED.timestamp() + 60 - 7200


@given(st.lists(st.text(max_size=80) | st.sampled_from(LOG.splitlines()), max_size=8), st.datetimes())
def test_no_line_raises(lines: list[str], started: datetime) -> None:
    enginelog.read(lines, started)


@given(
    st.from_regex(r"INFO \d\d-\d\d \d\d:\d\d:\d\d \[x\] (a during inference: b|SpecDecoding metrics: Mean acceptance "
                  r"length: [0-9]{1,400})", fullmatch=True),
    st.datetimes(),
)  # fmt: skip
def test_no_number_raises(line: str, started: datetime) -> None:
    enginelog.read([line], started)


def result(**fields: Any) -> VariantResult:
    return VariantResult.model_validate(
        {"experiment": "e", "variant": "baseline", "k": 0, "methods": Methods(gpu="none"), **fields}
    )


def write(folder: Path, *found: VariantResult) -> None:
    for at, one in enumerate(found):
        (folder / f"{at}.json").write_text(one.model_dump_json())


def test_a_folder_is_one_experiment_with_its_baseline_first(tmp_path: Path) -> None:
    one = window(json.dumps(served()).encode())
    write(tmp_path, result(variant="a", k=3, windows=(one,)), result())
    found = results.folder(tmp_path)
    assert [each.variant for each in found] == ["baseline", "a"]
    assert found[1].windows == (one,)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([], "no result file"),
        ([{"variant": "a"}], "no file of the variant baseline"),
        ([{}, {"variant": "a", "experiment": "f"}], "several experiments: e, f"),
        ([{}, {}], "several files of one variant"),
    ],
)
def test_a_folder_that_is_none_is_told(found: list[dict[str, Any]], said: str, tmp_path: Path) -> None:
    write(tmp_path, *(result(**fields) for fields in found))
    with pytest.raises(ResultError, match=said):
        results.folder(tmp_path)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"format": 2}')
    with pytest.raises(ResultError, match=r"a\.json: format"):
        results.folder(tmp_path)
    with pytest.raises(ResultError, match="no result file"):
        results.folder(tmp_path / "absent")
    (tmp_path / "a.json").unlink()
    (tmp_path / "a.json").mkdir()
    with pytest.raises(ResultError, match="cannot be read"):
        results.folder(tmp_path)


def test_a_load_measured_twice_in_a_round_is_refused() -> None:
    one = window(json.dumps(served()).encode()).model_dump(mode="json")
    with pytest.raises(ResultError, match="load 2 is there twice in round 1"):
        results.read(json.dumps({**result().model_dump(mode="json"), "windows": [one, one]}).encode(), "a.json")


def metrics(scale: float, edges: tuple[tuple[str, float], ...] = (("0.1", 0), ("0.2", 10), ("+Inf", 10))) -> str:
    """What vLLM shows, two engines behind one port, after `scale` times the same."""
    lines = ["# TYPE vllm:time_to_first_token_seconds histogram"]
    for engine in "01":
        labels = f'engine="{engine}",model_name="m"'
        lines += [
            f'vllm:time_to_first_token_seconds_bucket{{{labels},le="{edge}"}} {count * scale}' for edge, count in edges
        ]
        lines += [
            f"vllm:time_to_first_token_seconds_sum{{{labels}}} {1.5 * scale}",
            f"vllm:time_to_first_token_seconds_count{{{labels}}} {10 * scale}",
            f"vllm:prefix_cache_queries_total{{{labels}}} {1000 * scale}",
            f"vllm:prefix_cache_hits_total{{{labels}}} {403 * scale}",
            f"vllm:spec_decode_num_drafts_total{{{labels}}} {100 * scale}",
            f"vllm:spec_decode_num_draft_tokens_total{{{labels}}} {200 * scale}",
            f"vllm:spec_decode_num_accepted_tokens_total{{{labels}}} {90 * scale}",
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="0"}} {60 * scale}',
            f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="1"}} {30 * scale}',
        ]
    return "\n".join(lines) + "\n"


def test_the_servers_side_is_what_came_between_two_readings() -> None:
    found = enginemetrics.between(metrics(1), metrics(3))
    assert found.prefix_cache_hit_rate == pytest.approx(0.403)
    assert found.acceptance
    assert (found.acceptance.drafts, found.acceptance.accepted) == (400, 360)
    assert found.acceptance.by_position == (0.6, 0.3)
    ttft = found.latency.ttft
    assert ttft
    assert (ttft.mean, ttft.p50, ttft.p95) == (pytest.approx(150), pytest.approx(150), pytest.approx(195))
    assert found.latency.itl is None


def test_beyond_the_last_finite_edge_is_that_edge() -> None:
    slow = (("0.1", 0.0), ("0.2", 0.0), ("+Inf", 10.0))
    ttft = enginemetrics.between(metrics(1, slow), metrics(2, slow)).latency.ttft
    assert ttft
    assert ttft.p99 == pytest.approx(200)


def test_an_engine_that_restarted_between_the_readings_is_told() -> None:
    with pytest.raises(ResultError, match="the engine restarted"):
        enginemetrics.between(metrics(2), metrics(1))
    fresh = enginemetrics.between("", metrics(1))
    assert fresh.acceptance
    assert fresh.acceptance.drafts == 200
    assert enginemetrics.between(metrics(1), metrics(1)).acceptance is None


SAMPLES = st.builds(
    lambda line, value: f"{line.rpartition(' ')[0]} {value}", st.sampled_from(metrics(1).splitlines()[1:]), st.floats()
)
EDGES = st.builds(
    lambda edge, value: f'vllm:time_to_first_token_seconds_bucket{{le="{edge}"}} {value}', st.floats(), st.floats(0, 9)
)
POSITIONS = st.builds(
    lambda at: f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}} 1', st.integers() | st.text()
)
LINES = st.lists(
    st.sampled_from(metrics(1).splitlines()) | st.text(max_size=60) | SAMPLES | EDGES | POSITIONS, max_size=8
).map("\n".join)
VALUES = st.sampled_from(["NaN", "-1", "Inf", "1e400", "x", ""])


@given(LINES, LINES)
def test_any_page_is_read_or_named(before: str, after: str) -> None:
    try:
        enginemetrics.between(before, after)
    except ResultError:
        return


READ = [line for line in metrics(1).splitlines()[1:] if "_count{" not in line]


@given(st.sampled_from(READ), VALUES)
def test_any_value_on_a_page_is_read_or_named(line: str, value: str) -> None:
    with pytest.raises(ResultError):
        enginemetrics.between("", f"{line.rpartition(' ')[0]} {value}\n")
