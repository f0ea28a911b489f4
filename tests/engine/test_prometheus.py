"""History from a real Prometheus: what it scraped, and each reason for which it may tell nothing."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from paceline_operator.api.conditions import Reason
from paceline_operator.clients.prometheus import PrometheusClient
from paceline_operator.history import Absence, Load
from paceline_operator.history.question import Question, question
from tests.harness.prometheus import Prometheus
from tests.servings import serving

METRICS = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="demo"} 3.0
vllm:num_requests_running{engine="1",model_name="demo"} 4.0
vllm:num_requests_running{engine="0",model_name="odd"} NaN
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="demo"} 5.0
vllm:num_requests_waiting{engine="1",model_name="demo"} 0.0
vllm:num_requests_waiting{engine="0",model_name="odd"} NaN
"""


class Exporter(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.end_headers()
        self.wfile.write(METRICS.encode())

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 the base's name
        pass


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    exporter = ThreadingHTTPServer(("127.0.0.1", 0), Exporter)
    threading.Thread(target=exporter.serve_forever, args=(0.05,), daemon=True).start()
    target = f"127.0.0.1:{exporter.server_address[1]}"
    started = Prometheus(tmp_path_factory.mktemp("prometheus"), [target], {"namespace": "team-a", "pod": "demo-1"})
    started.wait_for("count_over_time(vllm:num_requests_waiting[1m]) > 2", "scrapes")
    yield started
    started.stop()
    exporter.shutdown()
    exporter.server_close()


@pytest.fixture
def client() -> Iterator[PrometheusClient]:
    made = PrometheusClient()
    yield made
    made.close()


def asked(prometheus: Prometheus, timeout: int = 5, **labels: str) -> Question:
    source = {"url": prometheus.url, "windowHours": 1, "timeoutSeconds": timeout, "labels": labels}
    found = question(serving(metrics={"prometheus": source}))
    assert found is not None
    return found


async def test_engines_of_a_pod_are_added_up(prometheus: Prometheus, client: PrometheusClient) -> None:
    found = await client.load(asked(prometheus), datetime.now(UTC))
    assert isinstance(found, Load), found
    assert (found.running.p50, found.running.p99, found.demand.p50) == (7, 7, 12)
    assert found.running.shares == {6: 1.0}


async def test_labels_choose_series(prometheus: Prometheus, client: PrometheusClient) -> None:
    found = await client.load(asked(prometheus, pod="demo-1", namespace="team-a"), datetime.now(UTC))
    assert isinstance(found, Load)
    found = await client.load(asked(prometheus, namespace=""), datetime.now(UTC))
    assert isinstance(found, Absence)


@pytest.mark.parametrize(
    ("reason", "labels", "later"),
    [
        (Reason.HISTORY_EMPTY, {"pod": "other"}, timedelta()),
        (Reason.HISTORY_NAN, {"model_name": "odd"}, timedelta()),
        (Reason.HISTORY_STALE, {}, timedelta(minutes=30)),
    ],
)
async def test_nothing_to_tell(
    prometheus: Prometheus, client: PrometheusClient, reason: Reason, labels: dict[str, str], later: timedelta
) -> None:
    found = await client.load(asked(prometheus, **labels), datetime.now(UTC) + later)
    assert isinstance(found, Absence), found
    assert found.reason is reason


async def test_a_query_that_it_refuses(prometheus: Prometheus, client: PrometheusClient) -> None:
    broken = dataclasses.replace(asked(prometheus), running="sum(")
    found = await client.load(broken, datetime.now(UTC))
    assert isinstance(found, Absence)
    assert (found.reason, found.message) == (Reason.HISTORY_ERROR, f"{prometheus.url}: HTTP Status Code 400")


async def test_one_that_hangs_holds_up_nothing_but_a_thread(prometheus: Prometheus, client: PrometheusClient) -> None:
    os.kill(prometheus.daemon.process.pid, signal.SIGSTOP)
    try:
        found = await client.load(asked(prometheus, timeout=1), datetime.now(UTC))
    finally:
        os.kill(prometheus.daemon.process.pid, signal.SIGCONT)
    assert isinstance(found, Absence)
    assert found.reason is Reason.HISTORY_TIMEOUT
    assert isinstance(await client.load(asked(prometheus), datetime.now(UTC)), Load)
