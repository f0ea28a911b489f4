"""The report: self-contained, complete, escaped, the same for the same files; and its command."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_operator.cli.app import app
from paceline_operator.experiment import page, pictures
from paceline_operator.experiment.publish import write
from paceline_operator.experiment.report import Report, as_json, build, comparisons_csv, windows_csv
from paceline_operator.experiment.results import (
    Acceptance,
    Latency,
    LengthPoint,
    LogWarning,
    Methods,
    Quantiles,
    Spread,
    VariantResult,
    Window,
    folder,
)

PUBLISHED = Path(__file__).parents[1] / "data" / "experiments" / "qwen3-32b-rtx-pro-6000"
RATES = {"baseline": (100.0, 101.0, 100.5), "serving": (170.0, 171.0, 172.0), "k9": (80.0, 81.0, 80.5)}
RUNNER = CliRunner()


def window(rate: float, round_: int, **fields: Any) -> Window:
    tpot = 4000 / rate
    return Window.model_validate(
        {
            "load": 4, "round": round_, "seed": round_, "started_at": 1000 + 100 * round_, "seconds": 60,
            "warmed": True, "tokens": int(60 * rate), "requests": 20, "memory_bytes": 2**31,
            "prefix_cache_hit_rate": 0.01,
            "client": Latency(
                ttft=Quantiles(mean=60, p50=50, p95=90, p99=95), tpot=Quantiles(mean=tpot, p50=tpot, p95=tpot, p99=tpot)
            ),
            "server": Latency(ttft=Quantiles(mean=40, p50=41, p95=42, p99=43)), **fields,
        }
    )  # fmt: skip


def results(name: str = "chat", **fields: Any) -> tuple[VariantResult, ...]:
    drafted = Acceptance(drafts=100, drafted=300, accepted=80, by_position=(0.5, 0.2, 0.1))
    return tuple(
        VariantResult(
            experiment=name, variant=variant, k=0 if variant == "baseline" else 3, gpus=2,
            methods=Methods(gpu="NVIDIA <H200>", versions={"vllm": "0.33.0"}, digests={"model": "sha256:aa"}),
            windows=tuple(
                window(rate, at, acceptance=None if variant == "baseline" else drafted) for at, rate in enumerate(rates)
            ),
            lengths=() if variant == "baseline" else (LengthPoint(at=1010, length=1.8), LengthPoint(at=1020, length=2)),
            **fields if variant == "k9" else {},
        )
        for variant, rates in RATES.items()
    )  # fmt: skip


def rendered(report: Report) -> str:
    return page.html(report, {name: pictures.svg(figure) for name, figure in pictures.draw(report).items()})


def test_each_variant_gets_its_sentence() -> None:
    assert build(results()).conclusions == ("serving: better at 4 (1.70×)", "k9: worse at 4 (0.80×)")
    once = tuple(one.model_copy(update={"windows": one.windows[:1]}) for one in results())
    assert build(once).conclusions[0] == (
        "serving: no difference shown at 4 (1.70×); it takes two rounds with clean windows to show one"
    )
    noisy = tuple(one.model_copy(update={"windows": results()[0].windows}) for one in results())
    unsure = build((noisy[0], noisy[1].model_copy(update={"windows": (window(99, 0), window(105, 1))})))
    assert unsure.conclusions == ("serving: no difference shown at 4 (1.01×; one of 122.1 % would be)",)
    wild = build((noisy[0], noisy[1].model_copy(update={"windows": (window(40, 0), window(250, 1))})))
    assert wild.conclusions == ("serving: no difference shown at 4 (1.00×; only a multiple would be)",)
    alone = results()
    nothing = (alone[0].model_copy(update={"windows": ()}), *alone[1:])
    assert build(nothing).conclusions[0] == "serving: not compared, no load was measured with the baseline"


def test_a_gain_by_one_judge_alone_is_told_so() -> None:
    blind = tuple(
        one.model_copy(update={"windows": tuple(window(rate, at, client=Latency()) for at, rate in enumerate(rates))})
        for one, rates in zip(results(), RATES.values(), strict=True)
    )
    slow = (blind[0].model_copy(update={"windows": results()[0].windows}), blind[1], blind[2])
    assert build(slow).conclusions[0] == "serving: better at 4 (1.70×)", "TPOT was not measured: nothing else to say"
    same = results()
    level = tuple(
        one.model_copy(update={"client": same[0].windows[at].client}) for at, one in enumerate(same[1].windows)
    )
    split = (same[0], same[1].model_copy(update={"windows": level}), same[2])
    assert build(split).conclusions[0] == "serving: better by throughput alone at 4 (1.70×)"
    swift = tuple(one.model_copy(update={"client": window(170, at).client}) for at, one in enumerate(same[0].windows))
    split = (same[0], same[1].model_copy(update={"windows": swift}), same[2])
    assert build(split).conclusions[0] == "serving: better by TPOT alone at 4 (TPOT 0.59×)"


def test_what_was_made_up_is_told_before_anything_else() -> None:
    assert "synthetic" not in rendered(build(results())).partition("<h2>")[0]
    arguments = ("--speculative-config", '{"rejection_sample_method":"synthetic"}', "--load-format", "dummy")
    made_up = tuple(
        one.model_copy(update={"methods": one.methods.model_copy(update={"arguments": arguments})}) for one in results()
    )
    head = rendered(build(made_up)).partition("<h2>")[0]
    assert "Acceptance is synthetic" in head
    assert "Weights are dummies" in head


def test_the_page_needs_nothing_beside_it_and_runs_nothing() -> None:
    html = rendered(build(results(), 3.5))
    assert html.count("<svg") == 4
    assert not re.search(r"<script|<link|<img|@import|javascript:", html)
    linked = set(re.findall(r"(?:href|src)=\"([^\"]*)\"", html))
    assert all(target.startswith("#") for target in linked)


def test_the_page_has_what_it_promises() -> None:
    warning = LogWarning(at=1001, event="Triton kernel JIT compilation", kernel="_topk_topp_kernel")
    html = page.html(build(results(warnings=(warning,), missing=("round 4: the budget was spent",)), 3.5), {})
    for text in (
        "better", "worse", "ITL does not judge speculation", "_topk_topp_kernel", "round 4: the budget was spent",
        "vllm=0.33.0", "sha256:aa", "seeds: <code>0, 1, 2</code>", "2 × NVIDIA &lt;H200&gt;", "per computed position",
        "Cost of a million output tokens", "smallest effect",
    ):  # fmt: skip
        assert text in html, text


def test_the_heading_names_the_devices_that_measured() -> None:
    first, *rest = results()
    never = [one.model_copy(update={"windows": (), "methods": Methods(gpu="unknown")}) for one in rest]
    assert ">NVIDIA &lt;H200&gt;; 3 variants" in page.html(build((first, *never)), {})
    assert "unknown; 2 variants" in page.html(build(tuple(never)), {})


def test_the_spread_between_requests_is_told_of_those_that_draft() -> None:
    alike = tuple(window(100, at, request_lengths=Spread(p5=1.25, p50=2.5, p95=3 + at)) for at in range(2))
    report = build(tuple(one.model_copy(update={"windows": alike}) for one in results()))
    html = page.html(report, {})
    assert html.count("<td>1.25</td><td>2.50</td><td>3.50</td>") == 2, "serving and k9; the baseline has no drafts"
    found = json.loads(json.dumps(as_json(report)))
    assert found["figures"][0]["request_lengths"] == {"p5": 1.25, "p50": 2.5, "p95": 3.5}
    row = next(csv.DictReader(io.StringIO(windows_csv(report))))
    assert (row["request_length_p5"], row["request_length_p95"]) == ("1.25", "3.0")
    assert "Between requests" not in page.html(build(results()), {})


def test_what_comes_from_outside_is_escaped() -> None:
    html = page.html(build(results("<script>alert(1)</script>", missing=("<img src=x>",))), {})
    assert "<script" not in html
    assert "<img" not in html


def test_tables_hold_every_window_and_every_comparison() -> None:
    report = build(results())
    windows = list(csv.DictReader(io.StringIO(windows_csv(report))))
    assert len(windows) == 9
    assert {row["clean"] for row in windows} == {"True"}
    assert (windows[0]["client_ttft_p95_ms"], windows[0]["server_ttft_p95_ms"]) == ("90.0", "42.0")
    comparisons = list(csv.DictReader(io.StringIO(comparisons_csv(report))))
    assert [(row["variant"], row["judge"], row["word"]) for row in comparisons] == [
        ("serving", "throughput", "better"), ("k9", "throughput", "worse"),
        ("serving", "tpot", "better"), ("k9", "tpot", "worse"),
    ]  # fmt: skip


def test_the_json_is_strict_and_priced() -> None:
    """170 tok/s on 2 GPUs at 3.6 an hour: 0.002 a second, so 10^6 tokens cost 0.002 / 171 x 10^6."""
    found = json.loads(json.dumps(as_json(build(results(), 3.6)), allow_nan=False))
    serving = next(one for one in found["figures"] if one["variant"] == "serving")
    assert serving["cost_per_million_tokens"] == pytest.approx(0.002 / 171 * 1e6, rel=1e-4)
    assert serving["clean_windows"] == 3
    assert serving["server"]["ttft"]["p50"] == 41
    assert found["consistency"][0]["efficiency"] == pytest.approx(1.9 / 4)
    assert found["methods"]["k9"]["gpu"] == "NVIDIA <H200>"


def test_the_same_files_give_the_same_report(tmp_path: Path) -> None:
    first, second = (write(build(folder(PUBLISHED)), tmp_path / name) for name in "ab")
    assert [path.name for path in first] == [
        "report.html", "report.json", "windows.csv", "comparisons.csv", "by-load.png", "lengths.png",
    ]  # fmt: skip
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == sorted(path.name for path in first)


AMOUNTS = st.floats(0, 1e12) | st.just(0.0) | st.just(5e-324)
QUANTILES = st.none() | st.builds(Quantiles, mean=AMOUNTS, p50=AMOUNTS, p95=AMOUNTS, p99=AMOUNTS)
LATENCIES = st.builds(Latency, ttft=QUANTILES, tpot=QUANTILES, itl=QUANTILES, e2e=QUANTILES)
COUNTS = st.integers(0, 10**15) | st.integers(0, 5)
WINDOWS = st.builds(
    Window, load=st.integers(1, 3), round=st.integers(0, 2), seed=COUNTS, started_at=AMOUNTS,
    seconds=st.floats(1e-3, 1e9), warmed=st.booleans(), tokens=COUNTS, requests=COUNTS,
    errors=st.dictionaries(st.text(max_size=4), COUNTS, max_size=2), client=LATENCIES, server=LATENCIES,
    acceptance=st.none() | st.builds(
        Acceptance, drafts=COUNTS, drafted=COUNTS, accepted=COUNTS,
        by_position=st.lists(st.floats(0, 1), max_size=4).map(tuple),
    ),
    prefix_cache_hit_rate=st.none() | st.floats(0, 1), memory_bytes=st.none() | COUNTS,
    fault_seconds=st.none() | AMOUNTS,
)  # fmt: skip
VARIANTS = st.builds(
    VariantResult, experiment=st.just("e"), variant=st.just("a"), k=st.integers(0, 64), gpus=st.integers(1, 4096),
    methods=st.builds(Methods, gpu=st.text(max_size=4)),
    windows=st.lists(WINDOWS, max_size=5, unique_by=lambda one: (one.load, one.round)).map(tuple),
    lengths=st.lists(st.builds(LengthPoint, at=AMOUNTS, length=st.floats(1, 65)), max_size=4).map(tuple),
    warnings=st.lists(
        st.builds(LogWarning, at=AMOUNTS, event=st.text(max_size=4), kernel=st.text(max_size=4)), max_size=2
    ).map(tuple),
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(VARIANTS, VARIANTS, st.none() | st.floats(0, 1e6))
def test_whatever_is_in_valid_files_is_told(base: VariantResult, other: VariantResult, price: float | None) -> None:
    report = build((base.model_copy(update={"variant": "baseline"}), other), price)
    json.dumps(as_json(report), allow_nan=False)
    page.html(report, {})
    windows_csv(report)
    comparisons_csv(report)


def test_an_experiment_that_measured_nothing_has_a_report_too() -> None:
    empty = tuple(one.model_copy(update={"windows": (), "missing": ("it never started",)}) for one in results())
    html = rendered(build(empty))
    assert "it never started" in html
    assert "<svg" not in html


def test_the_command_writes_the_report_and_says_what_it_says(tmp_path: Path) -> None:
    for one in results():
        (tmp_path / f"{one.variant}.json").write_text(one.model_dump_json())
    result = RUNNER.invoke(app, ["experiment", "report", str(tmp_path), "--gpu-hour-price", "3.5"])
    assert result.exit_code == 0, result.output
    assert "serving: better at 4 (1.70×)" in result.output
    assert (tmp_path / "report" / "report.html").stat().st_size > 10_000


@pytest.mark.parametrize(
    ("content", "said"), [(None, "no result file"), ("{", "baseline.json"), ('{"format": 1}', "experiment")]
)
def test_a_mistake_is_one_message_and_status_2(content: str | None, said: str, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "baseline.json").write_text(content)
    result = RUNNER.invoke(app, ["experiment", "report", str(tmp_path)])
    assert result.exit_code == 2
    assert said in result.output
    assert "Traceback" not in result.output


def test_a_report_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = RUNNER.invoke(app, ["experiment", "report", str(PUBLISHED), "-o", str(tmp_path / "file" / "x")])
    assert result.exit_code == 2
    assert "Not a directory" in result.output


def test_neither_operator_nor_command_line_load_pictures_before_they_are_needed() -> None:
    """Memory that an operator has no use for."""
    code = (
        "import sys, paceline_operator.cli.app, paceline_operator.experiment.plan;sys.exit('matplotlib' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_without_the_extra_the_command_says_which_one(tmp_path: Path) -> None:
    code = (
        "import sys; sys.modules['matplotlib'] = None; from paceline_operator.cli.app import app;"
        f"app(['experiment', 'report', {str(PUBLISHED)!r}, '-o', {str(tmp_path)!r}])"
    )
    result = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True)
    assert result.returncode == 2
    assert "`pip install '.[report]'`" in result.stderr
    assert "Traceback" not in result.stderr
