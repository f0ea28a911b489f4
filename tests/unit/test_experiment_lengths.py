"""A length profile from two readings of /metrics: the mean that was counted stays, and whatever is read is told."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from typer.testing import CliRunner

from paceline_engine.trial import making
from paceline_engine.trial.facts import ResultError
from paceline_engine.trial.making import Row
from paceline_operator.cli.app import app
from paceline_operator.experiment import lengths

EDGES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class Engine:
    """Counts as vLLM does."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._counted = [
            Histogram(name, "-", ["engine"], buckets=EDGES, registry=self._registry)
            for name in (lengths.PROMPTS, lengths.ANSWERS)
        ]
        for one in self._counted:
            one.labels("0")

    def serves(self, prompt: int, answer: int) -> None:
        for one, tokens in zip(self._counted, (prompt, answer), strict=True):
            one.labels("0").observe(tokens)

    @property
    def text(self) -> str:
        return generate_latest(self._registry).decode()


def test_lengths_between_two_readings() -> None:
    engine, other = Engine(), Engine()
    engine.serves(3, 3)
    before = engine.text, other.text
    for _ in range(3):
        engine.serves(150, 30)
    other.serves(150, 30)
    found = lengths.between(zip(before, (engine.text, other.text), strict=True))
    assert found == (Row(150, 30, 16),), "what was served before does not count; the mean is exact"
    assert making.rows(lengths.written(found).encode()) == found
    with pytest.raises(ResultError, match="no request ended"):
        lengths.between([(engine.text, engine.text)])
    with pytest.raises(ResultError, match="a counter fell"):
        lengths.between([(engine.text, before[0])])
    with pytest.raises(ResultError, match="is it an engine's"):
        lengths.between([("", "")])


@given(st.lists(st.tuples(st.integers(1, 4000), st.integers(0, 4000)), min_size=1, max_size=30))
def test_the_means_are_those_that_were_counted(served: list[tuple[int, int]]) -> None:
    engine = Engine()
    before = engine.text
    for prompt, answer in served:
        engine.serves(prompt, answer)
    found = lengths.between([(before, engine.text)])
    assert making.rows(lengths.written(found).encode()) == found
    weight = sum(row.requests for row in found)
    for at in (0, 1):
        mean = sum(row[at] * row.requests for row in found) / weight
        assert mean == pytest.approx(sum(max(1, pair[at]) for pair in served) / len(served), abs=1.0)


def test_pairs_that_no_request_can_be_are_left_out() -> None:
    engine = Engine()
    before = engine.text
    engine.serves(1900, 10)
    engine.serves(10, 1900)
    readings = [(before, engine.text)]
    assert max(row.input_tokens + row.output_tokens for row in lengths.between(readings)) > 2100
    found = lengths.between(readings, 2100)
    assert len(found) == 3
    assert making.rows(lengths.written(found).encode(), 2100) == found
    with pytest.raises(ResultError, match="no pair"):
        lengths.between(readings, 9)


@pytest.mark.parametrize("answer", [b"nonsense\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\nvllm", b""])
def test_an_answer_that_is_none_is_one_line(answer: bytes, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"

        def serve() -> None:
            for _ in range(2):
                peer, _ = server.accept()
                with peer:
                    peer.recv(4096)
                    peer.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        told = CliRunner().invoke(app, ["experiment", "lengths", url, "-o", str(tmp_path / "x.csv")])
        thread.join()
    assert told.exit_code == 2
    assert isinstance(told.exception, SystemExit)
    assert "/metrics: " in told.output


@given(st.text(max_size=200), st.text(max_size=80))
def test_any_text_is_a_reading_or_a_mistake(noise: str, more: str) -> None:
    for text in (noise, Engine().text + noise, f"{lengths.PROMPTS}_bucket{{le={more!r}}} {noise}"):
        try:
            lengths.between([(Engine().text, text)])
        except ResultError:
            continue


@pytest.fixture
def url() -> Iterator[str]:
    """Of an engine that serves a request between any two readings."""
    engine = Engine()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps({"data": [{"max_model_len": 4096}]}).encode())
                return
            self.send_response(200 if self.path == "/metrics" else 404)
            self.end_headers()
            self.wfile.write(engine.text.encode())
            engine.serves(150, 30)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base class's name
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_command_writes_what_an_experiment_takes(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("paceline_operator.cli.lengths.time.sleep", waited.append)
    out = tmp_path / "lengths.csv"
    told = CliRunner().invoke(app, ["experiment", "lengths", url, f"{url}/", "-o", str(out), "--seconds", "5"])
    assert (told.exit_code, told.output) == (0, f"1 length in {out}\n")
    assert waited == [5]
    assert making.rows(out.read_bytes()) == (Row(150, 30, 16),)
    wrong = ("http://127.0.0.1:1", "http://127.0.0.1:abc", "http://a b", f"{url}/nothing/there")
    for argument, said in (("ftp://x", "begins with http"), *((one, "/metrics: ") for one in wrong)):
        told = CliRunner().invoke(app, ["experiment", "lengths", argument, "-o", str(out)])
        assert told.exit_code == 2
        assert said in told.output
