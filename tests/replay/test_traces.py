"""Traces: what was written is read again, the same tuner decides the same, and broken lines are named."""

from __future__ import annotations

import asyncio
import io
import json
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from paceline_engine.protocol import Policy, Samples, State
from paceline_operator.api.conditions import Reason
from paceline_operator.api.serving import ServingSpec
from paceline_operator.cli.app import app
from paceline_operator.cli.record import Live, follow
from paceline_operator.clients.keys import KeyFile
from paceline_operator.local.mistake import UserError
from paceline_operator.replay.contest import ENGINE, Setup, Tuner
from paceline_operator.replay.courses import geometric
from paceline_operator.replay.engine import run
from paceline_operator.replay.traces import Writer, read, retrace
from paceline_operator.replay.world import Arm, Scenario, Visit
from paceline_operator.tuning.decide import settings_of
from paceline_operator.tuning.model import Engine
from tests.world import World

SPEC = ServingSpec.model_validate(
    {
        "model": {"source": "hf://a/b"},
        "speculation": {"method": "eagle", "draft": {"source": "hf://a/c"}, "maxTokens": 3},
        "engine": {"maxNumSeqs": 64, "env": [{"name": "SECRET", "value": "hidden"}]},
    }
)
LENGTHS = {0: 1.0, 1: 1.7, 2: 2.1, 3: 2.3}


@dataclass
class Recorded:
    """The tuner with a recorder beside it."""

    tuner: Tuner
    write: Writer
    boot: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        self.boot = self.tuner.boot

    def pass_(self, state: State, samples: Samples, now: float) -> Policy | None:
        self.write(now, self.tuner.generation, (Engine(ENGINE, state, samples),))
        return self.tuner.pass_(state, samples, now)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuner]:
    """Twenty minutes of the tuner at 4 and 48 requests of a simulated engine."""
    settings = settings_of(SPEC)
    setup = Setup(settings.ladder, settings.max_num_seqs)
    tuner = Tuner(settings, settings.boot_table)
    out = io.StringIO()
    pacer = Recorded(tuner, Writer(out, "chat", SPEC))
    visits = tuple(
        Visit(
            load,
            600.0,
            {
                k: Arm(0.01 * (1 + load * (k + 1) / 40), LENGTHS[k], geometric(LENGTHS[k], k) if k else ())
                for k in setup.ladder
            },
        )
        for load in (4, 48)
    )
    run(Scenario(setup, visits, 0.05), pacer, np.random.default_rng(0))
    path = tmp_path_factory.mktemp("traces") / "chat.jsonl"
    path.write_text(out.getvalue())
    return path, tuner


def test_the_same_tuner_decides_the_same(recorded: tuple[Path, Tuner]) -> None:
    path, tuner = recorded
    trace, notes = read(path)
    assert trace is not None
    assert not notes
    assert trace.settings == tuner.settings
    again = retrace(trace)
    assert (again.passes, again.seconds, again.compared) == (120, 1190.0, 119)
    assert (again.same_k_pct, again.first_difference_seconds) == (100.0, None)
    assert [one["message"] for one in again.decisions] == [one.message for _, one in tuner.decisions]
    assert again.decisions, "a trace without a decision would prove nothing"


def test_a_tuner_that_decides_otherwise_is_told_with_the_first_time(recorded: tuple[Path, Tuner]) -> None:
    path, _ = recorded
    head, *passes = path.read_text().splitlines()
    changed = json.loads(head)
    changed["spec"]["tuning"]["mode"] = "Manual"
    changed["spec"]["tuning"]["table"] = [{"fromRequests": 1, "k": 3}]
    other = path.with_name("other.jsonl")
    other.write_text("\n".join([json.dumps(changed), *passes]))
    trace, _ = read(other)
    assert trace is not None
    again = retrace(trace)
    assert again.same_k_pct is not None
    assert again.same_k_pct < 70
    assert again.first_difference_seconds is not None


def test_a_trace_holds_nothing_of_the_spec_that_the_tuner_does_not_read(recorded: tuple[Path, Tuner]) -> None:
    assert "hidden" not in recorded[0].read_text()


def test_a_failure_is_kept_with_its_reason(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with path.open("w") as file:
        Writer(file, "x", SPEC)(1.5, 3, (Engine("pod", failure=Reason.POD_NOT_ANSWERING, failure_message="no route"),))
    trace, notes = read(path)
    assert not notes
    assert trace is not None
    (one,) = trace.passes
    assert (one.at, one.known_generation) == (1.5, 3)
    assert one.engines[0].failure is Reason.POD_NOT_ANSWERING
    assert one.engines[0].failure_message == "no route"
    assert retrace(trace).same_k_pct is None


def test_broken_lines_are_named_and_the_rest_goes_on(recorded: tuple[Path, Tuner], tmp_path: Path) -> None:
    head, first, second, *_ = recorded[0].read_text().splitlines()
    path = tmp_path / "t.jsonl"
    path.write_text(
        "\n".join(
            [
                head,
                first[:50],
                "[]",
                '{"at": 1}',
                first.replace('"at": 10.0', '"at": "soon"'),
                '{"at": 1, "knownGeneration": 1e400, "engines": []}',
                second,
            ]
        )
    )
    trace, notes = read(path)
    assert trace is not None
    assert len(trace.passes) == 1
    assert [note.line for note in notes] == [2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    "content", ["", "{}", "[]", "x", '{"pacelineTrace": 2}', '{"pacelineTrace": 1, "spec": {}}', "1"]
)
def test_what_is_no_trace_is_named(tmp_path: Path, content: str) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(content)
    trace, (note,) = read(path)
    assert trace is None
    assert note.line == 1


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    lines=st.lists(values, max_size=4), part=st.sampled_from(["at", "knownGeneration", "engines", "state", "samples"])
)
def test_no_lines_raise(
    recorded: tuple[Path, Tuner], tmp_path_factory: pytest.TempPathFactory, lines: list[object], part: str
) -> None:
    head, first, *_ = recorded[0].read_text().splitlines()
    broken = [json.loads(first) for _ in lines]
    for one, value in zip(broken, lines, strict=True):
        place = one if part in one else one["engines"][0]
        place[part] = value
    path = tmp_path_factory.mktemp("t") / "t.jsonl"
    path.write_text("\n".join([head, *map(json.dumps, [*lines, *broken])]))
    trace, _ = read(path)
    assert trace is not None
    retrace(trace)


def test_the_command_replays_a_trace_beside_tables(recorded: tuple[Path, Tuner], tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    result = CliRunner().invoke(
        app, ["replay", str(recorded[0].parent / "chat.jsonl"), "--json", str(out), "--decisions"]
    )
    assert result.exit_code == 0, result.output
    assert "the k of the recorded table in 100.0 % of 119 passes" in result.output
    body = json.loads(out.read_text())
    assert (body["cases"], body["overall"]["cases"]) == ([], 0)
    assert body["traces"][0]["same_k_pct"] == 100.0
    assert body["traces"][0]["decisions"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "name a serving of the cluster, or a file"),
        (["chat", "--file", "x.yaml"], "name a serving of the cluster, or a file"),
        (["--file", "absent.yaml"], "absent.yaml"),
        (["chat"], "PACELINE_MASTER_KEY_FILE is not set"),
        (["team-a/chat"], "PACELINE_MASTER_KEY_FILE is not set"),
    ],
)
def test_a_recording_that_cannot_start_says_why(
    words: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    monkeypatch.delenv("PACELINE_MASTER_KEY_FILE", raising=False)
    result = CliRunner().invoke(app, ["record", "--out", str(tmp_path / "t.jsonl"), *words])
    assert result.exit_code == 2
    assert said in result.output


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def followed(world: World, out: Path, passes: int, **live: object) -> tuple[int, list[str]]:
    """`passes` looks at the world, written to `out`; the clock moves by the duration with each."""
    said = list[str]()
    client, looks = world.engines, count()

    class Watched:
        async def observe_engine(self, *words: object) -> Engine:
            if next(looks) + 1 == passes:
                world.clock.advance(1.0)
            return await client.observe_engine(*words)  # type: ignore[arg-type]

    named = Live(str(live.get("name", "demo")), "team", duration=0.01)
    keys = KeyFile(world.keys)
    arguments = (named, out, world.kube, Watched(), keys, world.clock, asyncio.Event(), said.append)
    return await follow(*arguments), said  # type: ignore[arg-type]


async def test_a_serving_of_the_cluster_is_read_with_cursors_of_its_own(world: World, tmp_path: Path) -> None:
    world.pod("demo-1")
    world.kube.find("SpeculativeServing", "demo")["status"] = {"policyGeneration": 7}
    path = tmp_path / "t.jsonl"
    assert await followed(world, path, 2) == (2, [])
    trace, notes = read(path)
    assert trace is not None
    assert not notes
    assert trace.name == "team/demo"
    assert [one.known_generation for one in trace.passes] == [7, 7]
    assert [[engine.name for engine in one.engines] for one in trace.passes] == [["demo-1"], ["demo-1"]]
    assert [bool(one.engines[0].samples and one.engines[0].samples.reset) for one in trace.passes] == [True, False]
    assert not [verb for verb in world.writes() if verb]


async def test_a_serving_that_is_not_there_is_told_and_an_older_trace_stays(world: World, tmp_path: Path) -> None:
    (tmp_path / "t.jsonl").write_text("kept")
    with pytest.raises(UserError, match="no SpeculativeServing other in namespace team"):
        await followed(world, tmp_path / "t.jsonl", 1, name="other")
    assert (tmp_path / "t.jsonl").read_text() == "kept"


def test_a_trace_of_a_real_engine_is_read_and_replayed() -> None:
    trace, notes = read(Path(__file__).parents[1] / "data" / "traces" / "local_ngram.jsonl")
    assert trace is not None
    assert not notes
    assert trace.settings.ladder == (5, 2, 1, 0)
    assert {engine.name for one in trace.passes for engine in one.engines} == {"demo-0"}
    again = retrace(trace)
    assert (again.passes, again.compared) == (64, 54)
    assert again.same_k_pct == 100.0
