"""The operator's HTTP port."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from paceline_operator import health


class Verdict:
    """What the checks say."""

    text = unready = ""


@pytest.fixture
def url() -> Iterator[str]:
    Verdict.text = Verdict.unready = ""
    server = health.serve("127.0.0.1", 0, lambda: Verdict.text, lambda: Verdict.unready or Verdict.text)
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def get(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_follows_the_check(url: str, path: str) -> None:
    assert get(url + path) == (200, "ok")
    Verdict.text = "a pass is 400 s late"
    assert get(url + path) == (503, "a pass is 400 s late")


def test_what_a_restart_would_not_mend_fails_readiness_alone(url: str) -> None:
    Verdict.unready = "the API server has not answered for 40 s"
    assert get(url + "/readyz") == (503, Verdict.unready)
    assert get(url + "/healthz") == (200, "ok")


def test_metrics_are_prometheus_text(url: str) -> None:
    status, text = get(url + "/metrics")
    assert status == 200
    assert 'paceline_held_seconds_total{reason="PodNotAnswering"}' in text
    assert "# HELP paceline_api_writes_total" in text


def test_anything_else_is_not_there(url: str) -> None:
    assert get(url + "/../etc/passwd")[0] == 404


def test_a_port_in_use_is_an_error_at_start(url: str) -> None:
    with pytest.raises(OSError, match="in use"):
        health.serve("127.0.0.1", int(url.rsplit(":", 1)[1]), lambda: "", lambda: "")
