"""An experiment on a real engine: `vllm bench serve` against real speculation; its log and counters in the results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline_operator.experiment import results

pytestmark = [pytest.mark.engine, pytest.mark.long]

PACELINE = Path(sys.prefix) / "bin" / "paceline"
EXAMPLE = Path(__file__).parents[2] / "examples" / "experiments" / "four-variants.yaml"


def test_two_variants_of_the_example(tmp_path: Path) -> None:
    """Counters and text lengths are the same in every run; speeds are this machine's."""
    text = EXAMPLE.read_text()
    start, end = text.index("  variants:\n"), text.index("  load:\n")
    file = tmp_path / "experiment.yaml"
    file.write_text((text[:start] + text[end:]).replace("concurrency: [1, 8]", "concurrency: [2]"))
    found = subprocess.run(
        [PACELINE, "experiment", "run", "-f", file, "--local", "-o", tmp_path / "out", "--no-tty"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    baseline, serving = results.folder(tmp_path / "out")
    assert (baseline.k, serving.k) == (0, 6)
    assert [len(one.windows) for one in (baseline, serving)] == [2, 2]
    for plain, drafted in zip(
        *(sorted(one.windows, key=lambda w: w.round) for one in (baseline, serving)), strict=True
    ):
        assert plain.warmed
        assert drafted.warmed
        assert (plain.requests, plain.seed, plain.errors) == (drafted.requests, drafted.seed, drafted.errors)
        assert plain.tokens == drafted.tokens, "greedy answers are the same with drafts and without"
        assert plain.acceptance is None
        assert drafted.acceptance is not None
        assert 0 < drafted.acceptance.accepted <= drafted.acceptance.drafted
        for window in (plain, drafted):
            assert window.client.tpot is not None
            assert window.server.tpot is not None
            assert window.server.ttft is not None
            assert window.started_at > 1.7e9
    assert serving.lengths, "the log's acceptance lengths, within the windows' time"
    first = min(serving.windows, key=lambda window: window.started_at)
    assert any(point.at >= first.started_at for point in serving.lengths)
    assert baseline.methods.versions["vllm"].startswith("0.32")
    assert set(baseline.methods.digests) == {"experiment", "model", "prompts"}
    assert (tmp_path / "out" / "report" / "report.html").stat().st_size > 10_000
    assert list(tmp_path.glob("paceline-*")) == []
