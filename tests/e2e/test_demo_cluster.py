"""What `make demo-cluster` plays, on the tests' node: images, chart, an example, a load, k retuned."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.demo_cluster import Tale, play
from hack.setup import images
from tests.harness.node import Node

pytestmark = [pytest.mark.node, pytest.mark.engine, pytest.mark.long]


def test_k_is_retuned_and_every_query_of_the_dashboards_is_answered(
    node: Node, node_namespace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if reason := images.unavailable():
        pytest.skip(reason)
    assert play(Tale(), node, node_namespace, tmp_path) == []
    told = capsys.readouterr().out
    assert "Decision: k" in told
    assert "failed: 0" in told
    kept = {log.parent.name for log in (tmp_path / "pods").glob("*/*/*.log") if log.stat().st_size}
    assert {"operator", "engine"} <= kept
