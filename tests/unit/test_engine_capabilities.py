"""Capabilities: every set-up in which a live k would be ignored or would end the engine is found, and said why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline_engine.capabilities import boot_table, probe
from paceline_engine.protocol import Verification, VerificationFeature
from tests.unit.engine_workers import Manager, MultiprocExecutor, UniProcExecutor, worker

LOOKUP = [0, 5, 5, 3, 0]


class Scheduler:
    """The attributes of vLLM's scheduler that are looked at."""

    def __init__(
        self,
        *,
        method: str | None = "ngram",
        v2: bool = False,
        lookup: list[int] | None = LOOKUP,
        ranks: int = 1,
        adaptive: bool = False,
        multi_module: bool = False,
        world: int = 1,
        **parallel: Any,
    ) -> None:
        speculative = SimpleNamespace(
            method=method,
            enable_adaptive_verification=adaptive,
            use_multi_module_mtp=lambda: multi_module,
        )
        self.vllm_config = SimpleNamespace(
            speculative_config=speculative if method else None,
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            parallel_config=SimpleNamespace(data_parallel_size=ranks, world_size=world, **parallel),
            use_v2_model_runner=v2,
        )
        self.num_spec_tokens = 5 if method else 0
        self.dynamic_sd_lookup = lookup
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.finished_req_ids: set[str] = set()

    def schedule(self) -> None: ...

    def _update_after_schedule(self) -> None: ...

    def update_from_output(self) -> None: ...


def test_a_seeded_engine_takes_any_k_up_to_what_it_booted_with() -> None:
    found = probe(Scheduler(), "0.32.0")
    assert found.live_k.supported
    assert (found.max_k, found.ladder, found.max_num_seqs, found.method, found.runner) == (
        5,
        (5, 3, 0),
        4,
        "ngram",
        "V1",
    )


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"method": None, "lookup": None}, "without --speculative-config"),
        ({"ranks": 2, "lookup": None}, "data_parallel_size is 2"),
        ({"lookup": None}, "without num_speculative_tokens_per_batch_size, or vLLM dropped it"),
        ({"method": "suffix"}, "method suffix asserts"),
        ({"method": "ngram_gpu"}, "method ngram_gpu asserts"),
        ({"method": "medusa"}, "method medusa asserts"),
        ({"method": "extract_hidden_states", "v2": True}, "method extract_hidden_states asserts"),
        ({"method": "custom_class"}, "never told k"),
        ({"distributed_executor_backend": "external_launcher"}, "a scheduler of its own"),
    ],
)
def test_where_k_cannot_be_live_the_reason_is_the_one_to_act_on(how: dict[str, Any], says: str) -> None:
    live = probe(Scheduler(**how), "0.32.0").live_k
    assert not live.supported
    assert says in live.reason


@pytest.mark.parametrize(
    ("how", "notes"),
    [
        ({"method": "eagle", "v2": True}, ""),
        ({"method": "draft_model", "v2": True}, "saves verification only"),
        ({"method": "ngram", "v2": True}, "saves verification only"),
        ({"method": "ngram_gpu", "v2": True}, "saves verification only"),
        ({"method": "dflash", "v2": True}, "saves verification only, 0 the draft too"),
        ({"method": "mtp", "v2": True, "multi_module": True}, "saves verification only"),
        ({"method": "mtp", "v2": True}, ""),
        ({"method": "draft_model"}, ""),
    ],
)
def test_methods_that_draft_everything_anyway_are_live_with_a_note(how: dict[str, Any], notes: str) -> None:
    live = probe(Scheduler(**how), "0.33.0").live_k
    assert live.supported
    assert notes in live.reason
    assert bool(live.reason) is bool(notes)


def test_blocks_are_drafted_at_k_0_too_before_0_33() -> None:
    found = {version: probe(Scheduler(method="dspark", v2=True), version).live_k for version in ("0.32.0", "0.33.0")}
    assert found["0.32.0"].reason.endswith("saves verification only")
    assert found["0.33.0"].reason.endswith("0 the draft too")


@pytest.mark.parametrize(
    ("version", "v2", "supported"),
    [
        ("0.26.0", True, False),
        ("0.26.0", False, True),
        ("0.32.0+cpu", True, True),
        ("1.0", True, True),
        ("dev", True, False),
    ],
)
def test_the_v2_runner_of_old_releases_ignores_k(version: str, v2: bool, supported: bool) -> None:
    live = probe(Scheduler(method="eagle", v2=v2), version).live_k
    assert live.supported is supported
    assert supported or version in live.reason


def test_a_scheduler_without_the_seam_is_named_with_what_it_lacks() -> None:
    class Other(Scheduler):
        _update_after_schedule = property()  # type: ignore[assignment]

    class Paced(Other):
        pass

    live = probe(Paced(), "0.32.0").live_k
    assert not live.supported
    assert "Other has no _update_after_schedule" in live.reason


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"method": None, "lookup": None}, "without --speculative-config"),
        ({}, "V1 model runner"),
        ({"method": "eagle", "v2": True}, "without enable_adaptive_verification"),
        ({"method": "eagle", "v2": True, "adaptive": True}, "executor is not known"),
    ],
)
def test_adaptive_verification_is_absent_with_a_reason(how: dict[str, Any], says: str) -> None:
    feature = probe(Scheduler(**how), "0.33.0").adaptive_verification
    assert not feature.supported
    assert says in feature.reason


ADAPTIVE: dict[str, Any] = {"method": "eagle", "v2": True, "adaptive": True}


def verification(executor: Any, **how: Any) -> VerificationFeature:
    feature = probe(Scheduler(**ADAPTIVE | how), "0.33.0", executor).adaptive_verification
    assert feature.supported is not bool(feature.reason)
    return feature


def test_adaptive_verification_that_is_at_work_is_live_on_all_ranks() -> None:
    feature = verification(MultiprocExecutor(), world=2)
    assert (feature.supported, feature.present, feature.repriceable, feature.ranks) == (True, True, True, 2)
    assert feature.modes == (Verification.ADAPTIVE, Verification.ALL, Verification.CAPPED)


@pytest.mark.parametrize(
    ("executor", "how", "says"),
    [
        (object(), {}, "calls through object are not known to keep their place"),
        (UniProcExecutor(worker(SimpleNamespace())), {}, "SimpleNamespace has no get_num_tokens"),
        (UniProcExecutor(object()), {}, "has no attribute 'model_runner'"),
        (UniProcExecutor(), {"ranks": 2}, "data_parallel_size is 2"),
        (UniProcExecutor(), {"distributed_executor_backend": "external_launcher"}, "a scheduler of its own"),
    ],
)
def test_adaptive_verification_that_cannot_be_changed_stays_and_says_why(
    executor: Any, how: dict[str, Any], says: str
) -> None:
    feature = verification(executor, **how)
    assert (feature.present, feature.modes, feature.repriceable) == (True, (Verification.ADAPTIVE,), False)
    assert says in feature.reason


def test_adaptive_verification_that_vllm_left_out_is_absent_though_it_was_asked_for() -> None:
    feature = verification(UniProcExecutor(worker(None)), method="ngram")
    assert (feature.present, feature.modes) == (False, (Verification.ALL,))
    assert "vLLM has none for method ngram" in feature.reason


def test_workers_that_do_not_answer_leave_it_unknown() -> None:
    class Broken(UniProcExecutor):
        def collective_rpc(self, *_: Any, **__: Any) -> Any:
            raise RuntimeError("ModuleNotFoundError: No module named 'paceline_engine'")

    feature = verification(Broken())
    assert feature.present
    assert "No module named 'paceline_engine'" in feature.reason
    assert probe(Scheduler(), "0.32.0", Broken()).live_k.supported


def test_what_the_workers_have_is_told() -> None:
    graphs = SimpleNamespace(dispatch=lambda *_, **__: SimpleNamespace(cg_mode=SimpleNamespace(name="FULL")))
    group = SimpleNamespace(backend=SimpleNamespace(get_name=lambda: "FLASH_ATTN"))
    executor = UniProcExecutor(worker(Manager(), cudagraph_manager=graphs, attn_groups=[[group]]))
    found = probe(Scheduler(**ADAPTIVE), "0.33.0", executor)
    assert (found.attention_backend, found.graph_requests) == ("FLASH_ATTN", {5: 4, 3: 4, 0: 4})


@pytest.mark.parametrize(
    ("servers", "rust", "says"), [(1, "0", ""), (1, "1", "Rust front end"), (2, "0", "2 API servers share the port")]
)
def test_metrics_are_the_api_servers_where_there_is_one_and_it_takes_plugins(
    servers: int, rust: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_TOKEN_DIR", "tokens")
    monkeypatch.setenv("VLLM_USE_RUST_FRONTEND", rust)
    found = probe(Scheduler(_api_process_count=servers), "0.33.0")
    assert found.api_servers == servers
    assert found.metrics.supported is not bool(says)
    assert says in found.metrics.reason


def test_the_boot_table_is_the_schedule_or_the_one_k() -> None:
    for scheduler, table in (
        (Scheduler(), (0, 5, 5, 3, 0)),
        (Scheduler(lookup=None), (5, 5, 5, 5, 5)),
        (Scheduler(method=None, lookup=None), (0, 0, 0, 0, 0)),
    ):
        assert boot_table(scheduler, probe(scheduler, "0.32.0")) == table
