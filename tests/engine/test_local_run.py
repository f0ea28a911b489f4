"""`paceline local` with a real engine: k follows the load as the table says, on the engine's own counters, and Ctrl-C
leaves nothing behind. (How it ends in all other ways: test_local_process.py, over a stand-in.)"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline_operator.local.guard import descendants
from tests.harness.processes import wait_until

pytestmark = pytest.mark.engine

PACELINE = Path(sys.prefix) / "bin" / "paceline"
FILE = """
apiVersion: paceline.dev/v1alpha1
kind: SpeculativeServing
metadata: {name: short}
spec:
  model: {source: /models/smollm2-135m-instruct}
  engine: {device: CPU, dtype: float32, enforceEager: true, maxModelLen: 1024, maxNumSeqs: 8}
  speculation: {method: ngram, maxTokens: 4, ngram: {promptLookupMin: 1, promptLookupMax: 4}}
  tuning:
    mode: Manual
    ladder: [4, 3, 1, 0]
    table: [{fromRequests: 1, k: 3}, {fromRequests: 3, k: 1}]
    intervalSeconds: 1
---
apiVersion: paceline.dev/v1alpha1
kind: LocalLoad
spec:
  maxTokens: 48
  phases:
    - {durationSeconds: 12, concurrency: 1, text: copy}
    - {durationSeconds: 600, concurrency: 6, text: numbers}
"""
READY_SECONDS, PASS_SECONDS = 240.0, 120.0
"""Far more than it takes, 25 and 20: a machine that is busy with other tests is no failure."""


@pytest.fixture(scope="module")
def port_8000() -> Iterator[int]:
    """The default port, in use (by somebody else already, or by this test)."""
    with socket.socket() as taken, contextlib.suppress(OSError):
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", 8000))
        taken.listen()
        yield 8000
        return
    yield 8000


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, port_8000: int) -> dict[str, Any]:
    """One run until the load has risen and k followed, ended by Ctrl-C: output, report, and what is left of it."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "local.yaml").write_text(FILE)
    output, report = folder / "output.txt", folder / "report.json"
    with output.open("w") as stream:
        process = subprocess.Popen(
            [PACELINE, "local", "-f", folder / "local.yaml", "--no-tty", "--report", report],
            env=os.environ | {"TMPDIR": str(folder)},
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until(lambda: "tok/s" in output.read_text(), f"a pass in {output}", timeout_seconds=READY_SECONDS)
        started = descendants(process.pid)
        wait_until(
            lambda: _served_after_the_decision(output.read_text()) >= 12,
            f"twelve answers after the decision in {output}",
            timeout_seconds=PASS_SECONDS,
        )
        process.send_signal(signal.SIGINT)
        status = process.wait(60)
    finally:
        if process.poll() is None:
            process.kill()
    return {
        "status": status,
        "output": output.read_text(),
        "report": json.loads(report.read_text()),
        "started": started,
        "left": [pid for pid in started if Path(f"/proc/{pid}").exists()],
        "files": list(folder.glob("paceline-*")),
    }


def _served_after_the_decision(text: str) -> int:
    """Requests completed in the passes since k followed the load."""
    _, decided, after = text.partition("DECISION")
    done = [int(found) for found in re.findall(r"\| (\d+) done", after)]
    return done[-1] - done[0] if decided and done else 0


def test_ctrl_c_ends_it_in_order_and_leaves_nothing(run: dict[str, Any]) -> None:
    assert run["status"] == 0, run["output"]
    assert run["report"]["ended_by"] == "signal SIGINT"
    assert len(run["started"]) >= 2
    assert run["left"] == []
    assert run["files"] == []


def test_a_port_in_use_is_told_and_replaced(run: dict[str, Any], port_8000: int) -> None:
    assert f"port {port_8000} is in use, so the serving port is" in run["output"]


def test_k_followed_the_load_by_the_engines_own_counters(run: dict[str, Any]) -> None:
    alone, many = run["report"]["phases"]
    assert (alone["concurrency"], many["concurrency"]) == (1, 6)
    assert max(alone["k_in_force"], key=alone["k_in_force"].get) == "3"
    assert max(many["k_in_force"], key=many["k_in_force"].get) == "1"
    assert many["table"] == [{"from_requests": 1, "k": 3}, {"from_requests": 3, "k": 1}]
    assert many["probe_steps"] == {}
    (decision,) = run["report"]["decisions"]
    assert (decision["from"], decision["to"], decision["reason"]) == (3, 1, "Load")


def test_copies_are_accepted_and_every_draft_is_accounted_for(run: dict[str, Any]) -> None:
    alone, many = run["report"]["phases"]
    assert alone["firing_rate"] > 0.5
    assert alone["acceptance_length"] > many["acceptance_length"] > 1
    first, second, third = alone["acceptance_by_position"][:3]
    assert first["drafts"] >= first["accepted"] >= second["accepted"] >= third["accepted"] > 0


def test_one_engine_process_served_it_all(run: dict[str, Any]) -> None:
    report = run["report"]
    (engine,) = report["engines"]
    assert len(engine["pids"]) == 1
    assert engine["pids"][0] in run["started"]
    assert (report["engine_restarts"], report["failed_requests"]) == (0, 0)
    assert report["completed_requests"] > 0
    assert report["versions"]["runner"] == ["V1"]
