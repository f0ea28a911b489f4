"""The Grafana dashboards, from what they ask: fleet, one serving, tuning. The chart holds what is made here.

hack.reference writes and checks them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "charts/paceline/monitoring/dashboards"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
OF_ONE = 'namespace="$namespace", serving="$serving"'
PODS_OF_ONE = 'namespace="$namespace", pod=~"$serving-.+"'
WIDTH = 24


@dataclass(frozen=True)
class Panel:
    """One picture: what it asks, and how it is drawn."""

    title: str
    queries: tuple[tuple[str, str], ...]
    """(PromQL, legend)."""
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    height: int = 8
    text: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    custom: dict[str, Any] = field(default_factory=dict)


STEPS = {"lineInterpolation": "stepAfter"}
FLEET = (
    Panel("Servings", (("count(paceline_serving_replicas)", ""),), kind="stat", width=4, height=4),
    Panel(
        "Not ready", (('count(paceline_serving_condition{type="Ready"} == 0) or vector(0)', ""),), kind="stat", width=4,
        height=4,
    ),
    Panel(
        "Observing or holding",
        (('count(paceline_serving_condition{type="Tuned", reason=~"Observing|Holding"}) or vector(0)', ""),),
        kind="stat", width=4, height=4, text="k is not decided from full measurements there.",
    ),
    Panel(
        "Gain over k=0, mean of servings", (("avg(paceline_serving_ratio_to_k0)", ""),), "percentunit", "stat", 4, 4,
        "k=0 still pays for a loaded drafter: this is not the gain over engines without one.",
    ),
    Panel("Operator acts", (("max(paceline_leader)", ""),), kind="stat", width=4, height=4),
    Panel("Late with a pass", (("max(paceline_reconcile_overdue_seconds)", ""),), "s", "stat", 4, 4),
    Panel("k in force", (("paceline_serving_k", "{{namespace}}/{{serving}}"),), custom=STEPS),
    Panel(
        "Goodput over that of k=0", (("paceline_serving_ratio_to_k0", "{{namespace}}/{{serving}}"),), "percentunit",
        text="Below 100 % speculation costs more than it brings.",
    ),
    Panel("Load, sampling requests an engine", (("paceline_serving_load_requests", "{{namespace}}/{{serving}}"),)),
    Panel(
        "Changes of k", (("sum by (reason) (increase(paceline_decisions_total[$__rate_interval]))", "{{reason}}"),),
        custom={"drawStyle": "bars", "stacking": {"mode": "normal"}},
    ),
    Panel(
        "Servings whose k holds, by what is missing",
        (("sum by (reason) (rate(paceline_held_seconds_total[$__rate_interval]))", "{{reason}}"),),
    ),
    Panel(
        "Writes to the API",
        (("sum by (kind, verb) (rate(paceline_api_writes_total[$__rate_interval]))", "{{verb}} {{kind}}"),), "ops",
    ),
    Panel(
        "Time of a pass",
        (
            (
                "histogram_quantile(0.99, sum by (le) (rate(paceline_reconcile_duration_seconds_bucket"
                "[$__rate_interval])))", "p99",
            ),
            (
                "histogram_quantile(0.5, sum by (le) (rate(paceline_reconcile_duration_seconds_bucket"
                "[$__rate_interval])))", "p50",
            ),
        ),
        "s",
    ),
    Panel(
        "Pushes of tables",
        (("sum by (result) (rate(paceline_push_duration_seconds_count[$__rate_interval]))", "{{result}}"),), "ops",
    ),
    Panel(
        "Time of a push",
        (
            (
                "histogram_quantile(0.99, sum by (le) (rate(paceline_push_duration_seconds_bucket"
                "[$__rate_interval])))", "p99",
            ),
        ),
        "s",
    ),
)  # fmt: skip
SERVING = (
    Panel("Ready pods", ((f"paceline_serving_ready_replicas{{{OF_ONE}}}", ""),), kind="stat", width=4, height=4),
    Panel("k", ((f"paceline_serving_k{{{OF_ONE}}}", ""),), kind="stat", width=4, height=4),
    Panel("Load", ((f"paceline_serving_load_requests{{{OF_ONE}}}", ""),), kind="stat", width=4, height=4),
    Panel(
        "Over k=0", ((f"paceline_serving_ratio_to_k0{{{OF_ONE}}}", ""),), "percentunit", "stat", 4, 4,
        "Goodput in force over that of k=0 in the same engines.",
    ),
    Panel(
        "Over no drafter", ((f"paceline_serving_ratio_to_no_drafter{{{OF_ONE}}}", ""),), "percentunit", "stat", 4, 4,
        "Known only with a hold-out pod, an experiment or a profile.",
    ),
    Panel(
        "Exploring", ((f"paceline_serving_exploration_step_share{{{OF_ONE}}}", ""),), "percentunit", "stat", 4, 4,
    ),
    Panel(
        "Conditions", ((f"paceline_serving_condition{{{OF_ONE}}}", "{{type}}: {{reason}}"),), width=24,
        text="1 True, 0 False, -1 Unknown.", custom=STEPS,
    ),
    Panel("Tokens a second", ((f"sum by (pod) (paceline:generation_tokens:rate5m{{{PODS_OF_ONE}}})", "{{pod}}"),)),
    Panel(
        "Requests",
        (
            (f"sum by (pod) (vllm:num_requests_running{{{PODS_OF_ONE}}})", "{{pod}} running"),
            (f"sum by (pod) (vllm:num_requests_waiting{{{PODS_OF_ONE}}})", "{{pod}} waiting"),
        ),
    ),
    Panel(
        "Time per output token",
        (
            (
                "histogram_quantile(0.95, sum by (le) (rate(vllm:request_time_per_output_token_seconds_bucket"
                f"{{{PODS_OF_ONE}}}[$__rate_interval])))", "p95",
            ),
            (
                "histogram_quantile(0.5, sum by (le) (rate(vllm:request_time_per_output_token_seconds_bucket"
                f"{{{PODS_OF_ONE}}}[$__rate_interval])))", "p50",
            ),
        ),
        "s",
        text="Judge speculation by this and by tokens a second, not by inter-token latency: tokens come in bursts.",
    ),
    Panel(
        "Time to first token",
        (
            (
                "histogram_quantile(0.95, sum by (le) (rate(vllm:time_to_first_token_seconds_bucket"
                f"{{{PODS_OF_ONE}}}[$__rate_interval])))", "p95",
            ),
        ),
        "s",
    ),
    Panel(
        "Tables: pushed, and confirmed by pods",
        (
            (f"paceline_serving_policy_generation{{{OF_ONE}}}", "generation"),
            (f"paceline_serving_acknowledged_pods{{{OF_ONE}}}", "pods that confirmed"),
        ),
        custom=STEPS,
    ),
    Panel("KV cache in use", ((f"vllm:kv_cache_usage_perc{{{PODS_OF_ONE}}}", "{{pod}}"),), "percentunit"),
)  # fmt: skip
TUNING = (
    Panel("k in force", ((f"paceline_serving_k{{{OF_ONE}}}", "k"),), custom=STEPS),
    Panel(
        "The table: k by load", ((f"paceline_serving_table_k{{{OF_ONE}}}", "from {{from_requests}} requests"),),
        custom=STEPS,
    ),
    Panel(
        "Goodput by k at the present load", ((f"paceline_serving_goodput_tokens_per_second{{{OF_ONE}}}", "k={{k}}"),),
        text="Accepted and bonus tokens per second of step time of one engine: the tuner takes the largest.",
    ),
    Panel(
        "Cost of a step by k at the present load", ((f"paceline_serving_step_seconds{{{OF_ONE}}}", "k={{k}}"),), "s",
        text="A staircase: it rises where a larger batch needs a larger graph.",
    ),
    Panel(
        "Accepted up to each position", ((f"paceline_serving_accepted_share{{{OF_ONE}}}", "{{position}}"),),
        "percentunit", "heatmap", text="Also what each position adds: tokens a step.",
        options={"calculate": False, "yAxis": {"unit": "short"}, "color": {"mode": "scheme", "scheme": "Blues"}},
    ),
    Panel(
        "Accepted up to each position, by vLLM's own counters",
        ((f"avg by (position) (paceline:spec_accepted_share:rate5m{{{PODS_OF_ONE}}})", "{{position}}"),), "percentunit",
        text="Biased low where k varies: the counters do not say at which k a position was drafted.",
    ),
    Panel("Acceptance length by k", ((f"paceline_serving_acceptance_length{{{OF_ONE}}}", "k={{k}}"),)),
    Panel(
        "Tokens per computed position, by k", ((f"paceline_serving_tokens_per_position{{{OF_ONE}}}", "k={{k}}"),),
        text="What to read on a saturated GPU; on an idle one read acceptance length.",
    ),
    Panel(
        "Steps by k and kind",
        ((f"sum by (k, kind) (rate(paceline_steps_total{{{PODS_OF_ONE}}}[$__rate_interval]))", "k={{k}} {{kind}}"),),
        "ops", custom={"stacking": {"mode": "normal"}, "fillOpacity": 40},
    ),
    Panel(
        "Against k=0, and against no drafter",
        (
            (f"paceline_serving_ratio_to_k0{{{OF_ONE}}}", "over k=0"),
            (f"paceline_serving_ratio_to_no_drafter{{{OF_ONE}}}", "over no drafter"),
        ),
        "percentunit",
    ),
)  # fmt: skip
DASHBOARDS = {"fleet": ("Fleet", FLEET), "serving": ("Serving", SERVING), "tuning": ("Tuning", TUNING)}


def dashboard(name: str, title: str, panels: tuple[Panel, ...]) -> dict[str, Any]:
    """The JSON that Grafana 10 and later imports."""
    return {
        "title": f"paceline / {title}", "uid": f"paceline-{name}", "tags": ["paceline"], "schemaVersion": 39,
        "editable": True, "graphTooltip": 1, "time": {"from": "now-3h", "to": "now"}, "refresh": "30s",
        "annotations": {"list": [] if name == "fleet" else [_decisions()]},
        "templating": {"list": list(_variables(name))},
        "panels": list(_laid_out(panels)),
    }  # fmt: skip


def files() -> dict[str, str]:
    """Path in the repository -> text, of each."""
    folder = FOLDER.relative_to(ROOT)
    return {
        f"{folder}/{name}.json": json.dumps(dashboard(name, title, panels), indent=1) + "\n"
        for name, (title, panels) in DASHBOARDS.items()
    }


def queries(namespace: str = "ai", serving: str = "chat") -> Iterator[str]:
    """Every PromQL expression, variables of Grafana filled in."""
    for _, panels in DASHBOARDS.values():
        for panel in panels:
            for query, _ in panel.queries:
                yield _plain(query, namespace, serving)
    yield _plain(_decisions()["expr"], namespace, serving)


def _plain(query: str, namespace: str, serving: str) -> str:
    return query.replace("$__rate_interval", "5m").replace("$namespace", namespace).replace("$serving", serving)


def _decisions() -> dict[str, Any]:
    return {
        "name": "Decisions", "enable": True, "datasource": SOURCE, "iconColor": "orange",
        "expr": f"time() - paceline_serving_decision_timestamp_seconds{{{OF_ONE}}} < 60", "step": "60s",
        "titleFormat": "k changed", "textFormat": "{{reason}}",
    }  # fmt: skip


def _variables(name: str) -> Iterator[dict[str, Any]]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Data source"}
    if name != "fleet":
        for variable, of in (("namespace", ""), ("serving", '{namespace="$namespace"}')):
            query = f"label_values(paceline_serving_replicas{of}, {variable})"
            yield {
                "name": variable, "type": "query", "datasource": SOURCE, "query": query, "refresh": 2,
                "label": variable.capitalize(),
            }  # fmt: skip


def _laid_out(panels: tuple[Panel, ...]) -> Iterator[dict[str, Any]]:
    """From left to right, a new row where the width is used up."""
    x = y = row = 0
    for number, panel in enumerate(panels, start=1):
        if x + panel.width > WIDTH:
            x, y, row = 0, y + row, 0
        yield {
            "id": number, "title": panel.title, "type": panel.kind, "description": panel.text, "datasource": SOURCE,
            "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
            "fieldConfig": {"defaults": {"unit": panel.unit, "custom": panel.custom}, "overrides": []},
            "options": panel.options,
            "targets": [
                {"refId": chr(ord("A") + index), "expr": query, "legendFormat": legend, "datasource": SOURCE}
                for index, (query, legend) in enumerate(panel.queries)
            ],
        }  # fmt: skip
        x, row = x + panel.width, max(row, panel.height)
