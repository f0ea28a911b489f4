"""What is asked of Prometheus about one serving: query texts, range and resolution. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline_operator.api.serving import SpeculativeServing

POINTS = 360
"""Of one series at most: a point for each four minutes of a day."""
LEAST_STEP_SECONDS = 60
RUNNING, WAITING = "vllm:num_requests_running", "vllm:num_requests_waiting"
"""vLLM's own names (0.32 and 0.33: vllm/v1/metrics/loggers.py), one series for each engine."""


@dataclass(frozen=True)
class Question:
    """Of one serving."""

    url: str
    """Empty: the operator's own."""
    running: str
    """PromQL: requests running, a series for each pod."""
    demand: str
    """PromQL: requests running and waiting, of all pods together."""
    window_seconds: int
    step_seconds: int
    timeout_seconds: float
    matchers: str = field(compare=False)
    """What tells the serving's series apart, for people."""


def question(serving: SpeculativeServing) -> Question | None:
    """None where the spec names no Prometheus."""
    source = serving.spec.metrics.prometheus
    if source is None:
        return None
    model = serving.spec.model.served_name or serving.metadata.name
    labels = {"namespace": serving.metadata.namespace, "model_name": model} | source.labels
    matching = matchers(labels)
    window = source.window_hours * 3600
    return Question(
        url=source.url or "",
        running=f"sum without (engine, model_name) ({RUNNING}{matching})",
        demand=f"sum({RUNNING}{matching}) + sum({WAITING}{matching})",
        window_seconds=window,
        step_seconds=max(LEAST_STEP_SECONDS, -(-window // POINTS)),
        timeout_seconds=float(source.timeout_seconds),
        matchers=matching,
    )


def matchers(labels: Mapping[str, str]) -> str:
    """`{name="value",...}` with values quoted as PromQL reads them."""
    return "{" + ",".join(f'{name}="{_quoted(value)}"' for name, value in labels.items()) + "}"


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
