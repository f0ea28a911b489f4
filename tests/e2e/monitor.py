"""What dashboards, rules and pages ask for, against a real Prometheus that scrapes a real operator and real engines."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from hack.dashboards import queries
from paceline_operator.naming import SERVING_PORT
from tests.e2e.scene import Scene
from tests.harness.chart import CHART
from tests.harness.prometheus import Prometheus, job

RULES = CHART / "monitoring" / "rules.yaml"
DOCS = CHART.parents[1] / "docs"
SERIES = Path(__file__).parents[1] / "monitoring" / "series.txt"
"""Names that are asked for and were seen in a scrape: written by the whole loop's test, with PACELINE_UPDATE_GOLDEN."""
NAME = re.compile(r"\b(?:(?:vllm|paceline)[:_][a-z0-9_:]*[a-z0-9]|http_requests_total)\b(?!\*)")
OURS = ("paceline_operator", "paceline_engine")
"""Names of packages, which pages also name."""
HISTOGRAMS = ("paceline_reconcile_duration_seconds", "paceline_push_duration_seconds")
"""Named by pages without the suffix that each of their series has."""
OPERATOR_PORT = 8080
TIMES = {"scrape_interval": "2s", "scrape_timeout": "2s"}
"""An engine that has every core answers late."""
ABSENT = {
    "paceline_serving_accepted_share": "known while a k above 0 is in force, which the load decides",
    "paceline_tuner_errors_total": "begins with the first defect",
    "paceline_serving_ratio_to_no_drafter": "known beside engines without a drafter, by an experiment or a profile",
    "paceline:spec_refused_requests:rate5m": "recorded where requests were refused",
    "paceline:plain_refused_requests:rate5m": "recorded where requests were refused",
}
"""Asked for, and not surely there in the whole loop, with the reason."""


def monitor(scene: Scene, folder: Path, operator_address: str = "127.0.0.1") -> Prometheus:
    """A Prometheus in the node's network, with the chart's rules. Labels are those that its PodMonitors give."""
    pods = {pod["metadata"]["name"]: pod["status"]["podIP"] for pod in scene.pods()}
    engines = [
        job(f"engine-{name}", [f"{address}:{SERVING_PORT}"], {"namespace": scene.namespace, "pod": name}, **TIMES)
        for name, address in pods.items()
    ]
    operator = job("operator", [f"{operator_address}:{OPERATOR_PORT}"], {}, honor_labels=True, **TIMES)
    return Prometheus(folder, [], {}, more=[operator, *engines], rules=RULES, prefix=scene.node.prefix)


def asked() -> set[str]:
    """Every series that a dashboard, a rule or a page names."""
    rules = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    pages = [path.read_text() for path in DOCS.glob("*.md")]
    return {
        name
        for text in (*queries(), *(rule["expr"] for rule in rules), *pages)
        for name in NAME.findall(text)
        if not name.startswith(OURS) and name not in HISTOGRAMS
    }


def scraped(prometheus: Prometheus) -> set[str]:
    """Every series of ours and of vLLM's that it has, and of the HTTP server beside vLLM."""
    found = prometheus.query('count by (__name__) ({__name__=~"(vllm|paceline|http_requests).+"})')
    return {entry["metric"]["__name__"] for entry in found}
