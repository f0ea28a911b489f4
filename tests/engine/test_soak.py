"""Half a minute of what `make soak` does for ten: policies that change all the time, nothing fails or is lost.

After that, /metrics of the API server, a process apart from the engine core, shows what the state says.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from paceline_engine.protocol import State
from tests.engine.engines import RealEngine
from tests.engine.soaking import CLIENTS, lost, soak
from tests.harness.processes import wait_until

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def engine(start_engine: Callable[..., RealEngine]) -> RealEngine:
    """An engine whose core is a process of its own, as in service."""
    return start_engine(multiprocessing=True).wait_ready()


def test_changes_under_load_fail_no_request_and_lose_no_sample(engine: RealEngine) -> None:
    result = soak(engine, seconds=30, seed=7, every=0.5)
    assert result["failed_requests"] == 0, result["failures"]
    assert lost(result) == []
    assert (result["refused"], result["policy_errors"]) == (0, 0)
    assert result["changes"] > 20
    assert result["requests"] > CLIENTS


def shown(engine: RealEngine) -> dict[str, float]:
    """Our series on the serving port, with their labels as written there."""
    lines = engine.http.get("/metrics").text.splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if _ours(line))}


def _ours(line: str) -> bool:
    return line.startswith("paceline_")


def told(state: State) -> dict[str, float]:
    """The series that a state of an engine without adaptive verification makes."""
    assert state.k_in_force is not None
    steps = [("table", state.steps_by_k), ("probe", state.probe_steps_by_k)]
    return {
        "paceline_up": 1,
        "paceline_k_in_force": state.k_in_force,
        "paceline_table_generation": state.generation,
        "paceline_policy_errors_total": state.policy_errors,
        "paceline_samples_lost_windows_total": state.lost_windows,
        **{f'paceline_steps_total{{k="{k}",kind="{kind}"}}': n for kind, by_k in steps for k, n in by_k.items()},
    }


def test_the_serving_port_shows_what_the_state_says(engine: RealEngine) -> None:
    engine.push_k(3)
    engine.complete(["1, 2, 3, 1, 2, 3,"], tokens=8)
    state = engine.state()
    assert state.capabilities.metrics.supported, state.capabilities.metrics.reason
    wait_until(lambda: shown(engine) == told(state) or None, f"{told(state)}", timeout_seconds=10)
    text = engine.http.get("/metrics").text
    assert "# HELP paceline_k_in_force " in text
    assert "# TYPE paceline_steps_total counter" in text
    assert "vllm:num_requests_running" in text
