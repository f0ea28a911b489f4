"""Capabilities: every set-up in which a live k would be ignored or would end the engine is found, and said why."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from paceline_engine.capabilities import boot_table, probe

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
    ) -> None:
        speculative = SimpleNamespace(
            method=method,
            enable_adaptive_verification=adaptive,
            use_multi_module_mtp=lambda: multi_module,
        )
        self.vllm_config = SimpleNamespace(
            speculative_config=speculative if method else None,
            scheduler_config=SimpleNamespace(max_num_seqs=4),
            parallel_config=SimpleNamespace(data_parallel_size=ranks),
            use_v2_model_runner=v2,
        )
        self.num_spec_tokens = 5 if method else 0
        self.dynamic_sd_lookup = lookup
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []

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
        ({"lookup": None}, "without num_speculative_tokens_per_batch_size"),
        ({"method": "suffix"}, "method suffix asserts"),
        ({"method": "ngram_gpu"}, "method ngram_gpu asserts"),
        ({"method": "medusa"}, "method medusa asserts"),
        ({"method": "extract_hidden_states", "v2": True}, "method extract_hidden_states asserts"),
        ({"method": "custom_class"}, "never told k"),
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
        ({"method": "eagle", "v2": True, "adaptive": True}, "as the engine booted it"),
    ],
)
def test_adaptive_verification_is_absent_with_a_reason(how: dict[str, Any], says: str) -> None:
    feature = probe(Scheduler(**how), "0.33.0").adaptive_verification
    assert not feature.supported
    assert says in feature.reason


def test_the_boot_table_is_the_schedule_or_the_one_k() -> None:
    for scheduler, table in (
        (Scheduler(), (0, 5, 5, 3, 0)),
        (Scheduler(lookup=None), (5, 5, 5, 5, 5)),
        (Scheduler(method=None, lookup=None), (0, 0, 0, 0, 0)),
    ):
        assert boot_table(scheduler, probe(scheduler, "0.32.0")) == table
