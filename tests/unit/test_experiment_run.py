"""Pure parts of a run: the load's command line, what is left and why, the budget, the winner."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline_engine.trial import waves
from paceline_engine.trial.making import Source
from paceline_operator.api.experiment import BASELINE, SERVING, ExperimentSpec, Load
from paceline_operator.experiment import load, progress
from paceline_operator.experiment.plan import Costs, plan
from paceline_operator.experiment.results import Methods, VariantResult
from paceline_operator.experiment.winner import winner
from tests.unit.test_experiment_report import window as measured


def spec(**fields: Any) -> ExperimentSpec:
    return ExperimentSpec.model_validate(
        {
            "servingRef": {"name": "chat"},
            "load": {"concurrency": [1, 4], "prompts": {"random": {}}},
            "duration": {"seconds": 60},
            **fields,
        }
    )


def command(**fields: Any) -> list[str]:
    given = Load.model_validate({"concurrency": [1], "prompts": {"random": {"inputTokens": 64}}, **fields})
    shared = load.shared(
        given, url="http://127.0.0.1:1", model="chat", tokenizer="org/model", dataset="/d/prompts.jsonl"
    )
    return [*shared, *waves.arguments(8, 32, 7, "/d", "r.json")]


def test_the_command_line_of_random_prompts() -> None:
    found = " ".join(command(prompts={"random": {"inputTokens": 64, "rangePercent": 100}}, outputTokens=32))
    for part in (
        "bench serve", "--dataset-name random --random-input-len 64 --random-output-len 32",
        '--random-range-ratio {"input": 0.99, "output": 0}', "--num-prompts 32 --max-concurrency 8 --seed 7",
        "--temperature 0", "--save-result --save-detailed --result-dir /d --result-filename r.json",
    ):  # fmt: skip
        assert part in found


def test_the_command_line_of_a_dataset() -> None:
    prompts = {"configMap": {"name": "a", "key": "b"}}
    found = " ".join(command(prompts=prompts, outputTokens=32, temperatureMilli=700))
    assert "--dataset-name custom --dataset-path /d/prompts.jsonl --custom-output-len 32" in found
    assert "--temperature 0.7" in found


@pytest.mark.parametrize(
    ("prompts", "percent", "source"),
    [
        ({"random": {"inputTokens": 64, "rangePercent": 10}}, 0, None),
        ({"random": {"inputTokens": 64, "rangePercent": 10}}, 30, Source.RANDOM),
        ({"lengths": {"name": "a", "key": "b"}}, 0, Source.LENGTHS),
        ({"lengths": {"name": "a", "key": "b"}}, 30, Source.LENGTHS),
        ({"configMap": {"name": "a", "key": "b"}}, 0, None),
        ({"persistentVolumeClaim": {"claimName": "a", "path": "b"}}, 30, Source.TEXTS),
    ],
)
def test_prompts_that_are_made_bring_their_own_arguments(
    prompts: dict[str, Any], percent: int, source: Source | None
) -> None:
    given = Load.model_validate(
        {"concurrency": [1], "prompts": prompts, "outputTokens": 9, "multiTurnPercent": percent}
    )
    found = load.making(given, 1024)
    assert (found and found.source) == source
    assert ("--dataset-name" in command(prompts=prompts, multiTurnPercent=percent)) == (found is None)
    if found:
        assert (found.output_tokens, found.multi_turn_percent, found.longest) == (9, percent, 1024)
        assert (found.input_tokens, found.range_percent) == ((64, 10) if "random" in prompts else (1, 0))
    described = load.described(given, "ConfigMap a, b")
    assert described.get("multiTurnPercent", "0").startswith(f"{percent}")
    assert ("lengths as recorded in ConfigMap a, b" in described["prompts"]) == (source is Source.LENGTHS)


@given(st.integers(1, 4096), st.floats(1, 1e5), st.floats(0, allow_infinity=True, allow_nan=False))
def test_requests_are_whole_waves_and_two_at_least(concurrency: int, seconds: float, latency: float) -> None:
    found = waves.requests(concurrency, seconds, latency)
    assert 2 * concurrency <= found <= max(2 * concurrency, waves.MOST_REQUESTS)
    if latency > seconds:
        assert found == 2 * concurrency


def test_the_last_wave_tells_how_long_a_request_takes() -> None:
    assert waves.wave_latency([9.0, 9.0, 2.0, 4.0], 2) == 4.0
    assert waves.wave_latency([0.0], 1) == math.inf


def result(variant: str, *places: tuple[int, int]) -> VariantResult:
    found = tuple(measured(100.0, round_, load=load) for round_, load in places)
    return VariantResult(experiment="e", variant=variant, k=0, methods=Methods(gpu="none"), windows=found)


def test_what_is_left_and_why() -> None:
    made = plan(spec(repetitions=3, budgetGpuMinutes=20), Costs(60, 15))
    assert made.cut == (2,)
    results = {BASELINE: result(BASELINE, (0, 1)), SERVING: result(SERVING, (0, 1), (0, 4), (1, 1), (1, 4))}
    first, *_ = made.visits
    assert [one.load for one in progress.left(first, results)] == [4]
    reasons = progress.noted([first], "the engine ended", results)
    assert progress.missing(made, results[BASELINE], reasons) == (
        "round 1, load 4: the engine ended",
        "round 2, loads 1, 4: not reached",
        "round 3, loads 1, 4: left out by the budget before it began",
    )
    assert progress.missing(made, results[SERVING], reasons) == (
        "round 3, loads 1, 4: left out by the budget before it began",
    )
    assert progress.missing(made, result(BASELINE), {}) == (
        "rounds 1, 2, loads 1, 4: not reached",
        "round 3, loads 1, 4: left out by the budget before it began",
    )
    assert not progress.whole(made, results)
    assert progress.state(made, results) == "5 of 8 windows measured"


def test_the_budget_is_of_all_gpus_and_all_runs() -> None:
    budget = progress.Budget(10, spent=4, gpus=2)
    assert budget.refuses(60, 120) == ""
    assert budget.refuses(60, 121) == "spec.budgetGpuMinutes 10: 6.0 are spent, and what came next takes 4.0"


def variants(**rates: tuple[float, ...]) -> tuple[VariantResult, ...]:
    return tuple(
        VariantResult(
            experiment="e", variant=name, k=0 if name == BASELINE else 3, methods=Methods(gpu="none"),
            windows=tuple(measured(rate, round_) for round_, rate in enumerate(found)),
        )
        for name, found in rates.items()
    )  # fmt: skip


def test_the_winner_is_better_than_the_serving_and_worse_at_no_load() -> None:
    steady = {BASELINE: (100.0, 101.0, 100.5, 100.2), SERVING: (120.0, 121.0, 120.5, 120.1)}
    best = winner(variants(**steady, k2=(150.0, 151.0, 150.4, 150.3), k1=(140.0, 141.0, 140.4, 140.3)))
    assert best.variant == "k2"
    assert "1.25×" in best.message
    assert winner(variants(**steady, k2=(120.3, 120.8, 120.2, 120.4))).variant == SERVING
    off = winner(variants(**{BASELINE: (130.0, 131.0, 130.5, 130.2), SERVING: steady[SERVING]}))
    assert (off.variant, off.message.startswith("no speculation is better")) == (BASELINE, True)


def failed(results: tuple[VariantResult, ...], *names: str) -> tuple[VariantResult, ...]:
    def with_fault(one: VariantResult) -> VariantResult:
        first, *rest = one.windows
        return one.model_copy(update={"windows": (first.model_copy(update={"fault_seconds": 3.0}), *rest)})

    return tuple(with_fault(one) if one.variant in names else one for one in results)


def test_who_failed_does_not_win_and_who_did_not_is_a_remedy() -> None:
    steady = {BASELINE: (100.0, 101.0, 100.5, 100.2), SERVING: (160.0, 161.0, 160.5, 160.1)}
    made = variants(**steady, k2=(190.0, 191.0, 190.4, 190.3), k1=(140.0, 141.0, 140.4, 140.3))
    assert winner(failed(made, "k2")).variant == SERVING
    remedy = winner(failed(made, SERVING, "k2"))
    assert remedy.variant == "k1"
    assert "failed in 1 of 4 windows" in remedy.message
    assert "not proven" in remedy.message
    assert winner(failed(made, SERVING, "k1", "k2", BASELINE)).variant == SERVING


def test_without_the_serving_there_is_no_winner() -> None:
    assert winner(variants(**{BASELINE: (1.0, 1.0), "k2": (2.0, 2.0)})).variant == SERVING
