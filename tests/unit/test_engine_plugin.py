"""Installation into an engine that is not there: patched once, inert without a token, and never in the engine's way."""

from __future__ import annotations

import json
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from paceline_engine import plugin
from paceline_engine.policy import LivePolicy
from paceline_engine.protocol import (
    ENV_CONTROL_HOST,
    ENV_CONTROL_PORT,
    ENV_TOKEN_DIRECTORY,
    TOKEN_FILE_CURRENT,
    State,
    Verification,
)
from tests.unit.engine_parts import TOKEN
from tests.unit.engine_workers import UniProcExecutor, step
from tests.unit.test_engine_capabilities import LOOKUP
from tests.unit.test_engine_capabilities import Scheduler as Probed

OUTPUTS = {0: SimpleNamespace(outputs=[SimpleNamespace(new_token_ids=[7])], scheduler_stats=None)}


class Scheduler(Probed):
    """As vLLM calls it: schedule() composes a step and hands it to _update_after_schedule()."""

    kv_cache_manager = SimpleNamespace(usage=float("inf"))

    def __init__(self) -> None:
        super().__init__(lookup=list(LOOKUP))
        self.vllm_config.parallel_config.pipeline_parallel_size = 1
        self.requests = {"a": SimpleNamespace(num_tokens=2, num_computed_tokens=1, num_output_placeholders=0)}
        self.running = ["a"]
        self.stopped = False

    def get_request_counts(self) -> tuple[int, int]:
        return 1, 0

    def schedule(self, throttle: bool = False) -> Any:
        assert self.dynamic_sd_lookup is not None
        output = SimpleNamespace(
            num_scheduled_tokens={"a": 1},
            total_num_scheduled_tokens=1,
            scheduled_new_reqs=[],
            scheduled_cached_reqs=SimpleNamespace(resumed_req_ids=set(), num_computed_tokens=[1]),
            scheduled_spec_decode_tokens={},
            num_invalid_spec_tokens=None,
            num_spec_tokens_to_schedule=self.dynamic_sd_lookup[1],
        )
        self._update_after_schedule(output)
        return output

    def _update_after_schedule(self, output: Any) -> None:
        output.reserved = output.num_spec_tokens_to_schedule

    def update_from_output(self, output: Any, result: Any) -> Any:
        return OUTPUTS

    def shutdown(self) -> None:
        self.stopped = True


@pytest.fixture
def scheduler_config(monkeypatch: pytest.MonkeyPatch) -> type:
    class SchedulerConfig:
        def get_scheduler_cls(self) -> Any:
            return Scheduler

    class Executor(UniProcExecutor):
        def __init__(self, vllm_config: Any) -> None:
            super().__init__()
            self.vllm_config = vllm_config

    names = ("vllm", "vllm.config", "vllm.version", "vllm.v1", "vllm.v1.executor")
    monkeypatch.setattr("paceline_engine.exporter._registered", True)  # not into the registry of the tests themselves
    vllm, config, version, v1, executor = map(ModuleType, names)
    config.SchedulerConfig = SchedulerConfig  # type: ignore[attr-defined]
    version.__version__ = "0.32.0"  # type: ignore[attr-defined]
    executor.Executor = Executor  # type: ignore[attr-defined]
    for module in (vllm, config, version, v1, executor):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return SchedulerConfig


@pytest.fixture
def token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    (tmp_path / TOKEN_FILE_CURRENT).write_text(TOKEN)
    monkeypatch.setenv(ENV_TOKEN_DIRECTORY, str(tmp_path))
    monkeypatch.setenv(ENV_CONTROL_HOST, "127.0.0.1")
    return tmp_path / TOKEN_FILE_CURRENT


@pytest.fixture
def free_port(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "CONTROL_PORT", 0)
    monkeypatch.delenv(ENV_CONTROL_PORT, raising=False)


@pytest.fixture
def engine(scheduler_config: type, token: Path, free_port: None) -> Iterator[Any]:
    plugin.register()
    scheduler = scheduler_config().get_scheduler_cls()()
    yield scheduler
    scheduler.shutdown()


def call(engine: Any, path: str, body: bytes | None = None) -> Any:
    request = urllib.request.Request(
        f"http://127.0.0.1:{engine._paceline.server.port}{path}",
        data=body,
        method="PUT" if body else "GET",
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=5) as response:
        return json.load(response)


def test_a_pushed_table_is_what_the_next_step_reserves_and_drafts(engine: Any) -> None:
    output = engine.schedule()
    assert (output.reserved, output.num_spec_tokens_to_schedule) == (5, 5)
    assert call(engine, "/policy", b'{"generation": 1, "table": [0, 1, 0, 0, 0]}') == {
        "generation": 1,
        "applied": False,
    }
    output = engine.schedule(throttle=True)
    assert (output.reserved, output.num_spec_tokens_to_schedule) == (1, 1)
    result = SimpleNamespace(sampled_token_ids=[[1]], req_id_to_index={"a": 0})
    assert engine.update_from_output(output, result) is OUTPUTS
    state = State.model_validate(call(engine, "/state"))
    assert (state.generation, state.k_in_force, state.steps_by_k) == (1, 1, {1: 1, 5: 1})
    gauges = call(engine, "/samples")["gauges"]
    assert (gauges["running"], gauges["generationTokens"], gauges["kvCacheUsage"]) == (1, 1, 1.0)


def test_a_failing_hook_leaves_the_engine_with_its_boot_schedule(engine: Any, caplog: pytest.LogCaptureFixture) -> None:
    call(engine, "/policy", b'{"generation": 1, "table": [0, 1, 0, 0, 0]}')
    engine._paceline.hooks._digest = None
    for _ in range(3):
        assert engine.update_from_output(engine.schedule(), SimpleNamespace(sampled_token_ids=[])) is OUTPUTS
    assert engine.dynamic_sd_lookup == LOOKUP
    assert engine.schedule().reserved == 5
    state = State.model_validate(call(engine, "/state"))
    assert not state.capabilities.live_k.supported
    assert "AttributeError" in state.capabilities.live_k.reason
    assert (state.generation, state.policy_errors) == (0, 1)
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_registering_again_changes_nothing(scheduler_config: type, token: Path) -> None:
    plugin.register()
    once = scheduler_config.get_scheduler_cls  # type: ignore[attr-defined]
    plugin.register()
    assert scheduler_config.get_scheduler_cls is once  # type: ignore[attr-defined]


def test_without_a_token_folder_the_engines_own_class_is_built(
    scheduler_config: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(ENV_TOKEN_DIRECTORY, raising=False)
    plugin.register()
    assert scheduler_config().get_scheduler_cls() is Scheduler


def serves_as_booted(scheduler: Any) -> None:
    assert scheduler._paceline is None
    assert scheduler.dynamic_sd_lookup == LOOKUP
    output = scheduler.schedule()
    assert output.reserved == 5
    assert scheduler.update_from_output(output, SimpleNamespace()) is OUTPUTS
    scheduler.shutdown()
    assert scheduler.stopped


def test_without_a_readable_token_no_port_is_opened(
    scheduler_config: type, token: Path, free_port: None, caplog: pytest.LogCaptureFixture
) -> None:
    token.unlink()
    plugin.register()
    serves_as_booted(scheduler_config().get_scheduler_cls()())
    assert "no token" in caplog.text
    assert len(caplog.records) == 1


def test_a_port_in_use_is_logged_once(
    engine: Any, scheduler_config: type, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENV_CONTROL_PORT, str(engine._paceline.server.port))
    serves_as_booted(scheduler_config().get_scheduler_cls()())
    assert "in use" in caplog.text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("broken", ["probe", "boot_table", "Recorder", "ControlServer", "_engine_version"])
def test_whatever_fails_at_installation_the_engine_runs_as_booted(
    scheduler_config: type,
    token: Path,
    free_port: None,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ImportError("injected")

    monkeypatch.setattr(plugin, broken, fail)
    plugin.register()
    serves_as_booted(scheduler_config().get_scheduler_cls()())
    assert [record.exc_text is not None for record in caplog.records] == [True]


def test_a_port_that_is_no_number_is_logged_and_the_engine_runs(
    scheduler_config: type, token: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(ENV_CONTROL_PORT, "http")
    plugin.register()
    serves_as_booted(scheduler_config().get_scheduler_cls()())
    assert "'http'" in caplog.text


def test_a_scheduler_that_cannot_be_extended_is_returned_as_it_is(
    scheduler_config: type, token: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    final = lambda: None  # noqa: E731 not a class at all
    monkeypatch.setattr(scheduler_config, "get_scheduler_cls", lambda _: final)
    plugin.register()
    assert scheduler_config().get_scheduler_cls() is final
    assert "cannot extend" in caplog.text


def test_another_vllm_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "vllm", None)
    monkeypatch.setitem(sys.modules, "vllm.config", None)
    plugin.register()
    assert "cannot be installed in this vLLM" in caplog.text


def test_a_scheduler_without_live_k_keeps_its_schedule_and_is_measured(
    scheduler_config: type, token: Path, free_port: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    built = scheduler_config().get_scheduler_cls()
    original = Scheduler.__init__

    def suffix(self: Any) -> None:
        original(self)
        self.vllm_config.speculative_config.method = "suffix"

    monkeypatch.setattr(Scheduler, "__init__", suffix)
    scheduler = built()
    assert not isinstance(scheduler.dynamic_sd_lookup, LivePolicy)
    scheduler.schedule()
    state = State.model_validate(call(scheduler, "/state"))
    assert "suffix asserts" in state.capabilities.live_k.reason
    assert (state.table, state.k_in_force, state.steps_by_k) == (tuple(LOOKUP), 5, {5: 1})
    scheduler.shutdown()


@pytest.fixture
def adaptive(
    scheduler_config: type, token: Path, free_port: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Any, Any]]:
    """A scheduler and the executor of the same engine, which booted with AV."""
    plugin.register()
    built = scheduler_config().get_scheduler_cls()
    other, executor = (sys.modules["vllm.v1.executor"].Executor(object()) for _ in range(2))
    original = Scheduler.__init__

    def booted(self: Any) -> None:
        original(self)
        executor.vllm_config = self.vllm_config
        self.vllm_config.use_v2_model_runner = True
        self.vllm_config.speculative_config.method = "eagle"
        self.vllm_config.speculative_config.enable_adaptive_verification = True

    monkeypatch.setattr(Scheduler, "__init__", booted)
    scheduler = built()
    yield scheduler, executor
    scheduler.shutdown()
    assert not other.calls


def test_verification_is_probed_in_the_workers_and_changed_in_front_of_the_next_step(adaptive: Any) -> None:
    scheduler, executor = adaptive
    policy = scheduler._paceline.hooks.policy
    (rank,) = executor.workers
    state = State.model_validate(call(scheduler, "/state"))
    assert state.capabilities.adaptive_verification.supported
    assert state.adaptive_verification is not None
    assert state.adaptive_verification.mode is policy.verification is Verification.ADAPTIVE
    free = step(rank, 8, 3)
    body = b'{"generation": 1, "table": [0, 1, 0, 0, 0], "adaptiveVerification": {"mode": "%s"}}'
    assert not call(scheduler, "/policy", body % b"All")["applied"]
    assert policy.verification is Verification.ADAPTIVE
    assert step(rank, 8, 3) == free < 24
    scheduler.schedule()
    assert policy.verification is Verification.ALL
    assert step(rank, 8, 3) == 24
    assert call(scheduler, "/policy", body % b"All")["applied"]
    for _ in range(3):
        scheduler.schedule()
    assert executor.calls == ["inspect", "verify"]


def test_a_failing_hook_gives_verification_back_too(adaptive: Any, caplog: pytest.LogCaptureFixture) -> None:
    scheduler, executor = adaptive
    call(
        scheduler,
        "/policy",
        b'{"generation": 1, "table": [0, 1, 0, 0, 0], "adaptiveVerification": {"mode": "Capped", "cap": 0}}',
    )
    scheduler.schedule()
    assert step(executor.workers[0], 8, 3) == 0
    scheduler._paceline.hooks._digest = None
    for _ in range(3):
        scheduler.update_from_output(scheduler.schedule(), SimpleNamespace(sampled_token_ids=[]))
    assert step(executor.workers[0], 8, 3) > 0
    state = State.model_validate(call(scheduler, "/state"))
    assert state.adaptive_verification is not None
    assert (state.adaptive_verification.mode, state.adaptive_verification.generation) == (Verification.ADAPTIVE, 0)


def test_an_executor_that_cannot_be_remembered_is_logged_and_the_rest_works(
    scheduler_config: type,
    token: Path,
    free_port: None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.delitem(sys.modules, "vllm.v1.executor")
    plugin.register()
    assert "cannot reach the workers" in caplog.text
    scheduler = scheduler_config().get_scheduler_cls()()
    assert call(scheduler, "/state")["capabilities"]["liveK"]["supported"]
    scheduler.shutdown()


def test_later_ranks_of_data_parallelism_open_no_port(
    scheduler_config: type, token: Path, free_port: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    original = Scheduler.__init__

    def second(self: Any) -> None:
        original(self)
        self.vllm_config.parallel_config.data_parallel_rank_local = 1

    monkeypatch.setattr(Scheduler, "__init__", second)
    serves_as_booted(scheduler_config().get_scheduler_cls()())


@pytest.mark.parametrize("missing", ["requests", "running", "finished_req_ids"])
def test_a_scheduler_of_another_shape_keeps_its_schedule_and_the_port_says_why(
    scheduler_config: type, token: Path, free_port: None, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin.register()
    original = Scheduler.__init__

    def without(self: Any) -> None:
        original(self)
        delattr(self, missing)

    monkeypatch.setattr(Scheduler, "__init__", without)
    scheduler = scheduler_config().get_scheduler_cls()()
    assert scheduler.update_from_output(scheduler.schedule(), SimpleNamespace(sampled_token_ids=[])) is OUTPUTS
    state = State.model_validate(call(scheduler, "/state"))
    assert f"the scheduler Scheduler has no {missing}" in state.capabilities.live_k.reason
    assert (state.policy_errors, state.table) == (0, tuple(LOOKUP))
    assert scheduler.dynamic_sd_lookup == LOOKUP
    scheduler.shutdown()
