"""k changes live in a real engine: as pushed, as its own counters show, without a restart, with the same text."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import re
import threading
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from paceline_engine.identity import digest
from paceline_engine.protocol import MAX_BODY_BYTES, Probe, Samples, prompt_bucket
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.history import Load
from paceline_operator.history.question import question
from tests.engine.engines import MAX_K, MAX_NUM_SEQS, MODEL, SEED, RealEngine, models_folder
from tests.harness.processes import wait_until
from tests.harness.prometheus import Prometheus
from tests.servings import serving

pytestmark = pytest.mark.engine

PROMPTS = (
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,",
    "x = 1\ny = 2\nz = 3\nx = 1\ny = 2\nz = 3\nx = 1\ny =",
    "The capital of France is Paris. The capital of Italy is Rome. The capital of",
)
"""On the first every draft is right; on the others some fire and fail."""
TOKENS = 160
CROWD = 8
"""Times PROMPTS: more requests than the engine takes at once, so that prompts are computed while others decode."""
SEQUENCE = (5, 1, 0, 3, 5)


@pytest.fixture(scope="module")
def plain(engine: RealEngine) -> list[str]:
    """What the model says to PROMPTS without speculation."""
    engine.push_k(0)
    before = engine.counters()
    texts = engine.complete(PROMPTS, TOKENS)
    assert engine.counters()["spec_decode_num_drafts"] == before["spec_decode_num_drafts"]
    return texts


def grown(before: dict[str, float], after: dict[str, float]) -> dict[str, float]:
    """How much each counter grew."""
    return {name: value - before.get(name, 0.0) for name, value in after.items()}


def test_it_boots_on_the_seed_schedule_and_says_what_it_can_do(engine: RealEngine) -> None:
    state = engine.state()
    found = state.capabilities
    assert found.live_k.supported, found.live_k.reason
    assert (found.max_k, found.ladder, found.max_num_seqs) == (MAX_K, (5, 3, 1, 0), MAX_NUM_SEQS)
    assert (found.method, found.runner) == ("ngram", "V1")
    assert "V1" in found.adaptive_verification.reason
    told = found.identity
    assert told.gpu.startswith("CPU")
    assert (told.tensor_parallel_size, told.graph_mode, told.max_capture_size) == (1, "NONE", 0)
    assert told.model_digest == digest(models_folder() / MODEL)
    assert told.draft_digest == "", "ngram has no weights"
    boot = [next(k for first, last, k in SEED if first <= n <= last) for n in range(1, MAX_NUM_SEQS + 1)]
    assert (state.generation, list(state.table[1:])) == (0, boot)


def test_the_engines_counters_show_each_k_as_pushed_and_the_text_is_that_of_k_0(
    engine: RealEngine, plain: list[str]
) -> None:
    pid, boot_id = engine.core_pid, engine.state().boot_id
    for k in SEQUENCE:
        generation = engine.push_k(k)
        before = engine.counters()
        texts = engine.complete(PROMPTS, tokens=24)
        growth = grown(before, engine.counters())
        drafts, drafted = growth["spec_decode_num_drafts"], growth["spec_decode_num_draft_tokens"]
        assert (drafts > 0) is (k > 0)
        assert k - 0.5 < drafted / (drafts or 1) <= k or k == drafted == 0
        assert all(whole.startswith(text) for whole, text in zip(plain, texts, strict=True))
        state = engine.state()
        assert (state.generation, state.k_in_force) == (generation, k)
    assert (engine.core_pid, engine.state().boot_id) == (pid, boot_id)


def test_k_changes_in_the_middle_of_requests(engine: RealEngine, plain: list[str]) -> None:
    before = engine.state()
    texts: list[str] = []
    load = threading.Thread(target=lambda: texts.extend(engine.complete(PROMPTS, TOKENS)))
    load.start()
    wait_until(lambda: engine.samples().gauges.running == len(PROMPTS), "the load", timeout_seconds=30)
    for k in SEQUENCE:
        engine.push_k(k)
        wait_until(lambda k=k: engine.state().k_in_force == k, f"k {k}", timeout_seconds=10)  # type: ignore[misc]
    assert load.is_alive()
    load.join()
    assert texts == plain
    after = engine.state()
    assert after.boot_id == before.boot_id
    assert all(after.steps_by_k.get(k, 0) > before.steps_by_k.get(k, 0) for k in SEQUENCE)
    assert after.policy_errors == 0


def test_samples_agree_with_the_engines_own_counters(engine: RealEngine) -> None:
    def all_of_it() -> tuple[Samples, dict[str, float]] | None:
        """Everything since boot, once the window of the last step is sealed; another request may have to seal it."""
        engine.complete(["Once"], tokens=4)
        samples, counters, state = engine.samples(), engine.counters(), engine.state()
        done = sum(samples.steps_by_k.values()) == sum(state.steps_by_k.values())
        return (samples, counters) if done else None

    engine.push_k(3)
    first = wait_until(all_of_it, "the windows of earlier tests", timeout_seconds=30)[0].cursor
    engine.complete(PROMPTS * CROWD, tokens=24)
    samples, counters = wait_until(all_of_it, "the last window", timeout_seconds=30)
    cells = samples.acceptance
    assert sum(cell.drafts for cell in cells) == counters["spec_decode_num_drafts"]
    assert sum(sum(cell.drafted) for cell in cells) == counters["spec_decode_num_draft_tokens"]
    assert sum(sum(cell.accepted) for cell in cells) == counters["spec_decode_num_accepted_tokens"]
    for at in range(MAX_K):
        accepted = sum(cell.accepted[at] for cell in cells if len(cell.accepted) > at)
        assert accepted == counters[f"spec_decode_num_accepted_tokens_per_pos[{at}]"]
    assert samples.gauges.generation_tokens == counters["generation_tokens"]
    assert samples.gauges.prompt_tokens == counters["prompt_tokens_by_source[local_compute]"]
    assert (samples.gauges.running, samples.gauges.waiting) == (0, 0)
    late = engine.samples(first)
    assert not late.reset
    assert {cell.k_drafted for cell in late.cells} == {3}
    assert max(cell.load for cell in late.cells) > 1
    assert all(cell.request_steps <= cell.emitted <= cell.request_steps * 4 for cell in late.cells)
    assert all(0.001 < cell.seconds / cell.steps < 5 for cell in late.cells)
    assert all(sum(cell.histogram.values()) == cell.steps for cell in late.cells)
    mixed = [cell for cell in late.cells if cell.prompt]
    assert mixed
    assert 0 < sum(cell.first_tokens for cell in mixed) <= len(PROMPTS * CROWD)
    assert all(prompt_bucket(cell.prompt_tokens // cell.steps) >= cell.prompt > 0 for cell in mixed)
    assert sum(cell.prompt_tokens for cell in samples.cells) <= samples.gauges.prompt_tokens


def test_probe_bursts_run_at_their_k_and_the_table_returns(engine: RealEngine, plain: list[str]) -> None:
    before, cursor = engine.state(), engine.samples().cursor
    engine.push_k(3, probe=Probe(ks=(0, 5), interval_steps=20))
    assert engine.complete(PROMPTS, TOKENS) == plain
    after = engine.state()
    assert after.probe_steps_by_k[0] >= 10
    assert after.steps_by_k[3] > before.steps_by_k.get(3, 0)
    probed = [cell for cell in engine.samples(cursor).cells if cell.probe]
    assert {cell.k_drafted for cell in probed} >= {0}
    assert all(cell.k_verified <= cell.k_drafted for cell in probed)
    engine.push_k(1)


GOOD: dict[str, Any] = {"generation": 10**6, "table": [0] * (MAX_NUM_SEQS + 1)}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (json.dumps(GOOD | {"table": [MAX_K + 1] * (MAX_NUM_SEQS + 1)}), 422),
        (json.dumps(GOOD | {"table": [0] * MAX_NUM_SEQS}), 422),
        (json.dumps(GOOD | {"table": [float("nan")] * (MAX_NUM_SEQS + 1)}), 422),
        (json.dumps(GOOD | {"generation": 1}), 409),
        ("{", 400),
        (" " * (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_a_refused_policy_changes_nothing_in_a_real_engine(engine: RealEngine, body: str, status: int) -> None:
    before = engine.state()
    answer = engine.control.put("/policy", content=body)
    assert answer.status_code == status
    assert answer.json()["message"]
    unauthorized = httpx.put(
        f"{engine.control.base_url}/policy", content=json.dumps(GOOD), headers={"Authorization": "Bearer wrong"}
    )
    assert unauthorized.status_code == 401
    after = engine.state()
    assert (after.generation, after.table) == (before.generation, before.table)
    assert engine.complete(["The"], tokens=2)


async def test_prometheus_tells_the_load_that_the_engine_tells(engine: RealEngine, tmp_path: Path) -> None:
    """History as the operator asks for it, from a real Prometheus that scrapes this engine."""
    prometheus = Prometheus(tmp_path, [f"127.0.0.1:{engine.serving_port}"], {"namespace": "team-a"})
    source = {"url": prometheus.url, "labels": {"model_name": MODEL}}
    asked = question(serving(metrics={"prometheus": source}))
    assert asked is not None
    lately = dataclasses.replace(asked, window_seconds=2, step_seconds=1)
    client = PrometheusClient()
    try:
        prometheus.wait_for("vllm:num_requests_running", "a first scrape")
        with ExitStack() as requests:  # closed, they are given up: the engine works on none of them any longer
            for prompt in PROMPTS:
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 1900, "ignore_eos": True, "stream": True}
                requests.enter_context(engine.http.stream("POST", "/v1/completions", json=body))
            steady = f"min_over_time(vllm:num_requests_running[4s]) == {len(PROMPTS)}"
            await asyncio.to_thread(prometheus.wait_for, steady, "a steady load")
            found = await client.load(lately, datetime.now(UTC))
            own = re.search(r"^vllm:num_requests_running\{.*\} (\S+)$", engine.http.get("/metrics").text, re.MULTILINE)
    finally:
        client.close()
        prometheus.stop()
    assert own is not None
    assert float(own[1]) == len(PROMPTS)
    assert isinstance(found, Load), found
    assert (found.running.p50, found.running.p99, found.demand.p99) == (len(PROMPTS),) * 3
    assert found.running.shares == {len(PROMPTS): 1.0}
