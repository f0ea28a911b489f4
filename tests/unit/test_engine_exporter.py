"""The series on /metrics: what the state says, absent where the engine is, and nothing done where they cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from paceline_engine import exporter
from paceline_engine.exporter import CACHE_SECONDS, SERIES, StateCollector, StateReader, families, feasible
from paceline_engine.protocol import (
    ENV_CONTROL_HOST,
    ENV_CONTROL_PORT,
    ENV_TOKEN_DIRECTORY,
    TOKEN_FILE_CURRENT,
    Policy,
    State,
    Verification,
    VerificationState,
)
from tests.unit.engine_parts import MAX_NUM_SEQS, TOKEN, Parts, serving

SET = {ENV_TOKEN_DIRECTORY: "/tokens"}


def shown(state: State | None) -> dict[tuple[str, ...], float]:
    """Name and label values -> value, as Prometheus would read them."""
    registry = CollectorRegistry()
    registry.register(StateCollector(lambda: state))
    found = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.documentation
        for sample in family.samples:
            found[(sample.name, *sample.labels.values())] = sample.value
    return found


def parts_with_steps() -> Parts:
    parts = Parts()
    parts.policy.swap(Policy(generation=3, table=(2,) * (MAX_NUM_SEQS + 1)))
    for _ in range(4):
        parts.policy.choose(1, 1)
    parts.policy.probe_steps_by_k[5] = 2
    return parts


def test_the_series_are_what_the_state_says() -> None:
    assert shown(parts_with_steps().backend.state()) == {
        ("paceline_up",): 1.0,
        ("paceline_k_in_force",): 2.0,
        ("paceline_table_generation",): 3.0,
        ("paceline_steps_total", "2", "table"): 4.0,
        ("paceline_steps_total", "5", "probe"): 2.0,
        ("paceline_policy_errors_total",): 0.0,
        ("paceline_samples_lost_windows_total",): 0.0,
    }


def test_verification_has_series_where_it_was_booted() -> None:
    found = VerificationState(mode=Verification.CAPPED, cap=64, drafted=9, verified=4, starved=True)
    state = Parts().backend.state().model_copy(update={"adaptive_verification": found})
    series = {name: value for name, value in shown(state).items() if "verification" in name[0]}
    assert series == {
        ("paceline_verification_mode", "All"): 0.0,
        ("paceline_verification_mode", "Adaptive"): 0.0,
        ("paceline_verification_mode", "Capped"): 1.0,
        ("paceline_verification_cap",): 64.0,
        ("paceline_verification_drafted_tokens_total",): 9.0,
        ("paceline_verification_verified_tokens_total",): 4.0,
        ("paceline_verification_starved",): 1.0,
    }


def test_an_engine_that_does_not_answer_is_down_and_has_no_other_series() -> None:
    assert shown(None) == {("paceline_up",): 0.0}


def test_every_series_is_described_before_anything_is_read() -> None:
    def read() -> State | None:
        raise AssertionError("registering must not ask the engine")

    names = {family.name for family in StateCollector(read).describe()}
    assert names == {f"paceline_{name.removesuffix('_total')}" for name, _, _ in SERIES}
    CollectorRegistry(auto_describe=True).register(StateCollector(read))
    assert [family.name for family in families(None)]


@pytest.mark.parametrize(
    ("api_servers", "environment", "reason"),
    [
        (1, SET, ""),
        (1, SET | {"VLLM_USE_RUST_FRONTEND": "0"}, ""),
        (2, SET, "2 API servers"),
        (1, SET | {"VLLM_USE_RUST_FRONTEND": "1"}, "Rust"),
        (1, SET | {"PROMETHEUS_MULTIPROC_DIR": ""}, "PROMETHEUS_MULTIPROC_DIR"),
        (1, {}, ENV_TOKEN_DIRECTORY),
        (1, SET | {ENV_CONTROL_PORT: "0"}, ENV_CONTROL_PORT),
    ],
)
def test_where_the_series_cannot_be_it_says_why(api_servers: int, environment: dict[str, str], reason: str) -> None:
    found = feasible(api_servers, environment)
    assert found.supported is not bool(reason)
    assert reason in found.reason


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    (tmp_path / TOKEN_FILE_CURRENT).write_text(f"{TOKEN}\n")
    return {ENV_TOKEN_DIRECTORY: str(tmp_path), ENV_CONTROL_HOST: "0.0.0.0"}


def test_the_state_is_read_over_loopback_and_kept_for_a_second(environment: dict[str, str]) -> None:
    now = 0.0
    parts = Parts()
    with serving(parts) as server:
        read = StateReader(environment | {ENV_CONTROL_PORT: str(server.port)}, lambda: now)
        first = read()
        assert first is not None
        assert first.generation == 0
        parts.policy.swap(Policy(generation=1, table=(0,) * (MAX_NUM_SEQS + 1)))
        assert read() is first
        now += CACHE_SECONDS
        later = read()
        assert later is not None
        assert later.generation == 1
    now += CACHE_SECONDS
    assert read() is None  # gone, and that is kept for a second too


def test_a_wrong_token_an_absent_one_and_words_of_another_program_are_an_engine_that_is_down(
    environment: dict[str, str], tmp_path: Path
) -> None:
    parts = Parts()
    with serving(parts, tokens=(b"another",)) as server:
        assert StateReader(environment | {ENV_CONTROL_PORT: str(server.port)})() is None
    with serving(parts) as server:
        (tmp_path / TOKEN_FILE_CURRENT).unlink()
        assert StateReader(environment | {ENV_CONTROL_PORT: str(server.port)})() is None


def test_registering_twice_is_registering_once_and_without_a_token_folder_not_at_all(
    environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = CollectorRegistry(auto_describe=True)
    monkeypatch.setattr("prometheus_client.REGISTRY", registry)
    monkeypatch.setattr(exporter, "_registered", False)
    exporter.register()
    assert not list(registry.collect())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv(ENV_CONTROL_PORT, "1")
    exporter.register()
    exporter.register()
    assert registry.get_sample_value("paceline_up") == 0.0
