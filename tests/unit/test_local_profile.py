"""`paceline local` starts from a profile where its key fits, and leaves one: what it learnt."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline_engine.protocol import Identity, Policy, PolicyAck
from paceline_operator.api.profiles import ProfileSpec
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.cli.app import app
from paceline_operator.local import document
from paceline_operator.local.passes import Passes
from paceline_operator.local.record import EngineRecord, PhaseRecord, Record
from paceline_operator.profiling import learn
from paceline_operator.tuning.model import Engine
from tests.unit.simulated import Loop, grid, workload

TOLD = Identity(
    gpu="NVIDIA H200",
    tensor_parallel_size=1,
    graph_mode="FULL",
    max_capture_size=512,
    model_digest="sha256:" + 64 * "1",
    draft_digest="sha256:" + 64 * "2",
)
SERVING: dict[str, Any] = {
    "apiVersion": "paceline.dev/v1alpha1",
    "kind": "SpeculativeServing",
    "metadata": {"name": "one", "uid": "u"},
    "spec": {
        "model": {"source": "hf://a/b"},
        "speculation": {"method": "eagle", "draft": {"source": "hf://a/c"}, "maxTokens": 5},
        "tuning": {"intervalSeconds": 2},
    },
}
LOAD = 256
"""Requests: where exploring takes longest, see tests/replay/test_profiles.py."""
EXAMPLES = Path(__file__).parents[2] / "examples"


class Clock:
    """Stands still until it is moved."""

    seconds = 0.0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.seconds)

    def monotonic(self) -> float:
        return self.seconds


class Local:
    """Passes of a run over a simulated H200, which is both the process and its control port."""

    def __init__(self, seed: int = 0, **told: Any) -> None:
        loop = Loop.of(grid("h200_dense32b_eagle.csv"), workload("gsm8k"), seed=seed)
        self.engine = loop.engines["pod-0"]
        self.engine.requests = LOAD
        self.identity = TOLD.model_copy(update=told)
        self.serving = SpeculativeServing.model_validate(SERVING)
        self.record = Record(self.serving, "2026-01-01T00:00:00Z", phases=[PhaseRecord(LOAD, "copy")])
        self.record.engines = [EngineRecord("one-0", [1])]
        self.said: list[str] = []
        self.clock = Clock()
        process: Any = SimpleNamespace(command=SimpleNamespace(name="one-0", control_url="c", serving_url="s"))
        client: Any = self
        self.passes = Passes(self.serving.spec, "token", [process], self.record, client, self.clock, self.said.append)

    async def observe_engine(self, name: str, *_: object) -> Engine:
        found = self.engine.answer(self.passes.settings.interval_seconds, name)
        assert found.state is not None
        able = found.state.capabilities.model_copy(update={"identity": self.identity})
        state = found.state.model_copy(update={"capabilities": able, "engine_version": "0.33.0"})
        return dataclasses.replace(found, state=state)

    async def push(self, _url: str, _token: str, policy: Policy) -> PolicyAck:
        self.engine.push(policy)
        return PolicyAck(generation=policy.generation, applied=True)

    async def once(self) -> None:
        self.clock.seconds += self.passes.settings.interval_seconds
        await self.passes.once()

    async def until_known(self, most: int = 100) -> int:
        """Passes until every k has its minimum count at the load, what a profile lends included."""
        for made in range(1, most + 1):
            await self.once()
            step = self.record.step
            if step and any(view.observed for view in step.buckets if view.load == LOAD):
                return made
        raise AssertionError(f"not after {most} passes: {self.passes.learnt()}")

    def learnt(self) -> dict[str, Any]:
        body = learn.profile_of("one", self.passes.learnt(), "copy")
        assert isinstance(body, dict), body
        return body


async def test_a_pass_with_requests_of_the_phase_before_is_counted_apart() -> None:
    one = Local()
    (phase,) = one.record.phases
    for left_over in (3, 1, 0, 0, 0):
        phase.left_over = left_over
        await one.once()
    seconds = one.passes.settings.interval_seconds
    assert (phase.drain.seconds, phase.tally.seconds) == (2 * seconds, 3 * seconds)
    assert min(phase.drain.tokens, phase.tally.tokens, sum(phase.drain.steps_by_k.values())) > 0
    total = one.record.total()
    assert (total.seconds, total.tokens) == (5 * seconds, phase.drain.tokens + phase.tally.tokens)
    assert sum(total.steps_by_k.values()) == sum((phase.drain.steps_by_k + phase.tally.steps_by_k).values())


async def test_what_one_run_learnt_is_where_the_next_one_starts(tmp_path: Path) -> None:
    first = Local()
    await first.until_known()
    (tmp_path / "kept.yaml").write_text(document.written(first.learnt()))
    kept = document.profile(tmp_path / "kept.yaml")[1]

    alone = await Local(seed=1).until_known()
    second = Local(seed=1)
    second.passes.profile = kept.metadata.name, kept.spec
    assert await second.until_known() < alone
    assert [line for line in second.said if line.startswith("KeyMatches")] == [second.record.prior]
    assert f"SpeculationProfile one, measured at {kept.spec.measured_at}" in second.record.prior


async def test_a_profile_of_another_engine_is_named_and_not_used(tmp_path: Path) -> None:
    first = Local()
    await first.until_known()
    spec = ProfileSpec.model_validate(first.learnt()["spec"])
    other = Local(seed=1, gpu="NVIDIA B200")
    other.passes.profile = "one", spec
    await other.until_known()
    assert "KeyMismatch" in other.record.prior
    assert "gpu is NVIDIA H200 in the profile and NVIDIA B200 in the engines" in other.record.prior
    without = Local(seed=1, gpu="NVIDIA B200")
    await without.until_known()
    assert other.passes.learnt() == without.passes.learnt()


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--profile", "absent.yaml", "cannot be read"),
        ("--profile", str(EXAMPLES / "local.yaml"), "one document of kind SpeculationProfile is needed"),
        ("--save-profile", "/", "--save-profile /: cannot be written"),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    option: str, value: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    result = CliRunner().invoke(app, ["local", "-f", str(EXAMPLES / "local.yaml"), option, value])
    assert result.exit_code == 2
    assert said in result.output
