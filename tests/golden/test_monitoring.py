"""Rules, alerts and dashboards: they parse, they fire for what they are about, and ask for series that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from hack.dashboards import DASHBOARDS, FOLDER, dashboard, queries
from hack.reference import operator_metrics
from paceline_engine import exporter
from paceline_operator import gauges
from tests.harness.binaries import ensure_built
from tests.harness.chart import CHART, rendered

RULES = CHART / "monitoring" / "rules.yaml"
TESTS = Path(__file__).parents[1] / "monitoring" / "rules_test.yaml"
RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks.md"
SERIES = Path(__file__).parents[1] / "monitoring" / "series.txt"
"""Those that were asked for, and seen in a scrape of a real engine and operator (tests/e2e/test_whole_loop.py)."""
OF_ENGINES = {name for name in SERIES.read_text().split() if name.startswith(("vllm:", "http_"))}
NAME = re.compile(r"\b(?:(?:vllm|paceline)[:_][a-z0-9_:]+|http_requests_total)")


def promtool(*arguments: str | Path) -> str:
    program = shutil.which("promtool")
    assert program, "promtool is not here: `make packages` installs Debian's prometheus"
    result = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def rules() -> list[dict[str, str]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def ours() -> set[str]:
    """Every series that operator, plugin and recording rules bring."""
    found = {gauges.PREFIX + name for name, _, _ in gauges.SERIES}
    found |= {f"paceline_{name}" for name, _, _ in exporter.SERIES}
    for metric in operator_metrics():
        (family,) = metric.describe()
        suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + suffix for suffix in suffixes}
    return found | {rule["record"] for rule in rules() if "record" in rule}


def test_every_alert_fires_for_what_it_is_about_and_stays_silent_beside_it(tmp_path: Path) -> None:
    for file in (RULES, TESTS):
        shutil.copy(file, tmp_path)
    promtool("check", "rules", tmp_path / RULES.name)
    promtool("test", "rules", tmp_path / TESTS.name)
    tested = {
        entry["alertname"]
        for test in yaml.safe_load(TESTS.read_text())["tests"]
        for entry in test.get("alert_rule_test", ())
        if entry["exp_alerts"]
    }
    assert tested == {rule["alert"] for rule in rules() if "alert" in rule}


def test_every_query_of_a_dashboard_parses(tmp_path: Path) -> None:
    found = [{"record": f"dashboards:query:{number}", "expr": query} for number, query in enumerate(queries())]
    file = tmp_path / "queries.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "dashboards", "rules": found}]}))
    assert f"{len(found)} rules found" in promtool("check", "rules", file)


@pytest.mark.parametrize("query", [*(rule["expr"] for rule in rules()), *queries()])
def test_a_query_asks_for_series_that_exist(query: str) -> None:
    names = {name for name in NAME.findall(query) if not name.endswith(":")}
    assert names
    assert names <= ours() | OF_ENGINES


def test_every_alert_has_a_runbook_and_words() -> None:
    sections = set(re.findall(r"^## (\w+)$", RUNBOOKS.read_text(), re.MULTILINE))
    alerts = {rule["alert"] for rule in rules() if "alert" in rule}
    assert alerts == sections
    for rule in rules():
        if "alert" in rule:
            assert {"summary", "description"} <= set(rule["annotations"])
            assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_dashboards_are_what_the_code_says_and_overlap_nowhere() -> None:
    for name, (title, panels) in DASHBOARDS.items():
        stored = json.loads((FOLDER / f"{name}.json").read_text())
        assert stored == dashboard(name, title, panels), "run `make generate`"
        taken: set[tuple[int, int]] = set()
        for panel in stored["panels"]:
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not cells & taken
            assert max(x for x, _ in cells) < 24
            taken |= cells


def test_the_chart_brings_them_when_asked() -> None:
    ensure_built()
    kinds = ("podMonitor", "enginePodMonitor", "prometheusRule", "dashboards")
    documents = rendered(*(word for kind in kinds for word in ("--set", f"monitoring.{kind}.enabled=true")))
    found = [(document["kind"], document["metadata"]["name"]) for document in documents]
    assert sorted(found) == sorted(set(found))
    by_kind = {kind: [body for body in documents if body["kind"] == kind] for kind, _ in found}
    assert len(by_kind["PodMonitor"]) == 2
    assert by_kind["PrometheusRule"][0]["spec"] == yaml.safe_load(RULES.read_text())
    boards = {name: json.loads(text) for body in by_kind["ConfigMap"] for name, text in body["data"].items()}
    assert {name.removesuffix(".json") for name in boards} == set(DASHBOARDS)
    assert all(body["metadata"]["labels"]["grafana_dashboard"] == "1" for body in by_kind["ConfigMap"])
    engines = next(body for body in by_kind["PodMonitor"] if body["metadata"]["name"].endswith("-engines"))
    assert engines["spec"]["namespaceSelector"] == {"any": True}
