"""`paceline local` as a process, over a stand-in for vLLM: however it ends, nothing of it is left, and it reports."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.engine.stand_in import Handler
from tests.harness.ports import free_ports
from tests.harness.processes import wait_until

PACELINE = Path(sys.prefix) / "bin" / "paceline"
STAND_IN = Path(__file__).with_name("stand_in.py")
SERVING = """
apiVersion: paceline.dev/v1alpha1
kind: SpeculativeServing
metadata: {{name: standing-in}}
spec:
  replicas: {replicas}
  model: {{source: /models/some-model}}
  engine: {{device: CPU, maxNumSeqs: 8, startupTimeoutSeconds: 60}}
  speculation: {{method: ngram}}
  tuning: {{intervalSeconds: 1}}
"""
LOAD = """---
apiVersion: paceline.dev/v1alpha1
kind: LocalLoad
spec: {phases: [{durationSeconds: 1, concurrency: 2, text: copy}, {durationSeconds: 1, concurrency: 4, text: numbers}]}
"""
SECONDS = 60


class Run:
    """One `paceline local`, its output in a file, and every process it started by way of the stand-in."""

    def __init__(self, folder: Path, *arguments: str, load: str = LOAD, replicas: int = 1, **environment: str) -> None:
        (folder / "pids").mkdir()
        vllm = folder / "vllm"
        vllm.write_text(f'#!/bin/sh\nexec {sys.executable} {STAND_IN} "$@"\n')
        vllm.chmod(0o755)
        file = folder / "local.yaml"
        file.write_text(SERVING.format(replicas=replicas) + load)
        self.folder = folder
        self.report = folder / "report.json"
        self.output = folder / "output.txt"
        variables = {
            "PACELINE_ENGINE": str(vllm),
            "PACELINE_CACHE": str(folder / "cache"),
            "STAND_IN_PIDS": str(folder / "pids"),
            "TMPDIR": str(folder),
        }
        with self.output.open("w") as output:
            self.process = subprocess.Popen(
                [PACELINE, "local", "-f", file, "--no-tty", "--report", self.report, *arguments],
                env=os.environ | variables | environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pids(self) -> list[int]:
        return [int(file.name) for file in (self.folder / "pids").iterdir()]

    def alive(self) -> list[int]:
        return [pid for pid in self.pids if Path(f"/proc/{pid}").exists()]

    def text(self) -> str:
        return self.output.read_text()

    def driving(self, lines: int = 1) -> None:
        wait_until(lambda: self.text().count("tok/s") >= lines, f"passes in {self.output}", timeout_seconds=SECONDS)

    def end(self) -> int:
        return self.process.wait(SECONDS)

    def told(self) -> dict:
        return json.loads(self.report.read_text())


@pytest.fixture
def runs() -> Iterator[list[Run]]:
    started: list[Run] = []
    yield started
    for run in started:
        if run.process.poll() is None:
            run.process.kill()
        for pid in run.alive():
            os.kill(pid, signal.SIGKILL)


def test_it_ends_with_the_last_phase_and_reports(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path)
    runs.append(run)
    assert run.end() == 0, run.text()
    report = run.told()
    assert report["ended_by"] == "the last phase"
    assert [(phase["concurrency"], phase["text"]) for phase in report["phases"]] == [(2, "copy"), (4, "numbers")]
    assert (report["engine_restarts"], report["failed_requests"]) == (0, 0)
    assert report["completed_requests"] > 0
    assert report["engines"][0]["pids"][0] in run.pids
    assert len(run.pids) == 2
    assert run.alive() == []
    assert list(tmp_path.glob("paceline-*")) == []
    # The stand-in has no control port, and the run says so as the cluster would.
    assert "PluginAbsent" in run.text()
    assert f"{tmp_path}/cache/models/some-model" in (tmp_path / "cache/logs").glob("*.log").__next__().read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_it_in_order(tmp_path: Path, runs: list[Run], number: signal.Signals) -> None:
    run = Run(tmp_path, load="")
    runs.append(run)
    run.driving()
    run.process.send_signal(number)
    assert run.end() == 0, run.text()
    assert run.told()["ended_by"] == f"signal {number.name}"
    assert len(run.pids) == 2
    assert run.alive() == []
    assert list(tmp_path.glob("paceline-*")) == []


def test_a_signal_during_the_start_still_reports(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path)
    runs.append(run)
    wait_until(lambda: "serves at" in run.text(), "the announcement", timeout_seconds=SECONDS)
    run.process.terminate()
    assert run.end() == 0, run.text()
    assert run.told()["ended_by"] == "signal SIGTERM"
    assert run.alive() == []


def test_a_second_signal_does_not_wait_for_a_stubborn_engine(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, load="", STAND_IN_STUBBORN="1")
    runs.append(run)
    run.driving()
    run.process.send_signal(signal.SIGINT)
    wait_until(run.report.exists, "the report", timeout_seconds=SECONDS)
    assert run.process.poll() is None
    assert len(run.alive()) == 2
    run.process.send_signal(signal.SIGINT)
    assert run.process.wait(10) == 0
    assert run.alive() == []


def test_killed_it_leaves_no_process_and_no_token(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path)
    runs.append(run)
    run.driving()
    assert len(run.alive()) == 2
    assert len(list(tmp_path.glob("paceline-*/token/current"))) == 1
    run.process.kill()
    run.end()
    wait_until(lambda: not run.alive(), "the end of every process", timeout_seconds=SECONDS)
    wait_until(lambda: not list(tmp_path.glob("paceline-*")), "the end of the private folder", timeout_seconds=SECONDS)


def test_an_engine_that_dies_is_restarted_and_counted(tmp_path: Path, runs: list[Run]) -> None:
    port, _ = free_ports(2)
    run = Run(tmp_path, "--port", str(port), load="")
    runs.append(run)
    run.driving()
    first = run.alive()
    with pytest.raises(OSError):  # noqa: PT011 the connection breaks off, in one way or another
        urllib.request.urlopen(f"http://127.0.0.1:{port}/die", b"", timeout=10)
    wait_until(lambda: len(run.pids) == 4, "a second engine", timeout_seconds=SECONDS)
    wait_until(lambda: not set(first) & set(run.alive()), "the end of the first", timeout_seconds=SECONDS)
    run.process.terminate()
    assert run.end() == 0, run.text()
    report = run.told()
    assert report["engine_restarts"] == 1
    assert len(report["engines"][0]["pids"]) == 2
    assert run.alive() == []


def test_an_engine_that_cannot_start_is_told_with_the_end_of_its_log(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, STAND_IN_BROKEN="1")
    runs.append(run)
    assert run.end() == 1
    assert "ended with status 1 before it was ready" in run.text()
    assert "no such model" in run.text()
    assert "Traceback" not in run.text()
    assert run.told()["ended_by"] == "engine failure"


def test_duration_ends_it_before_the_last_phase(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "--duration", "1")
    runs.append(run)
    assert run.end() == 0, run.text()
    report = run.told()
    assert report["ended_by"] == "--duration 1"
    assert len(report["phases"]) == 1


def test_a_longer_duration_draws_out_the_last_phase(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, "--duration", "4")
    runs.append(run)
    assert run.end() == 0, run.text()
    report = run.told()
    assert report["ended_by"] == "--duration 4"
    assert [phase["text"] for phase in report["phases"]] == ["copy", "numbers"]
    assert report["seconds"] >= 4


def test_replicas_get_ports_of_their_own_and_share_the_load(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, replicas=2)
    runs.append(run)
    assert run.end() == 0, run.text()
    report = run.told()
    assert len(report["engines"]) == 2
    assert report["failed_requests"] == 0
    assert len(run.pids) == 4
    assert run.alive() == []


def test_a_wanted_port_in_use_is_a_mistake_of_the_user(tmp_path: Path, runs: list[Run]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = Run(tmp_path, "--port", str(port))
        runs.append(run)
        assert run.end() == 2
    assert f"port {port} is in use" in run.text()
    assert "Traceback" not in run.text()
    assert run.pids == []


def test_a_run_beside_one_that_loads_its_model_gets_ports_of_its_own(tmp_path: Path, runs: list[Run]) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, load="", STAND_IN_WAITS=str(tmp_path / "go"))
        runs.append(run)
        wait_until(lambda run=run: "serves at" in run.text(), "the announcement", timeout_seconds=SECONDS)
    ports = [set(re.findall(r"(?:127.0.0.1:|control port )(\d+)", run.text())) for run in runs]
    assert not ports[0] & ports[1]
    (tmp_path / "go").touch()
    for run in runs:
        run.driving()
        run.process.terminate()
        assert run.end() == 0, run.text()


def test_another_programs_answer_is_not_taken_for_the_engines(tmp_path: Path, runs: list[Run]) -> None:
    (port,) = free_ports(1)
    run = Run(tmp_path, "--port", str(port), load="", STAND_IN_WAITS=str(tmp_path / "never"))
    runs.append(run)
    wait_until(lambda: "serves at" in run.text(), "the announcement", timeout_seconds=SECONDS)
    other = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    thread = threading.Thread(target=other.serve_forever, args=(0.05,))
    thread.start()
    try:
        assert run.end() == 1
    finally:
        other.shutdown()
        other.server_close()
        thread.join()
    assert "another program took the port" in run.text()
    assert run.told()["ended_by"] == "engine failure"
    assert run.alive() == []
