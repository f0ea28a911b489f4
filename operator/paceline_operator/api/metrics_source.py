"""Where hours of history come from."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, cel

LabelValue = Annotated[str, Field(max_length=253)]


class PrometheusSource(ApiModel):
    """A server of the Prometheus HTTP API that scrapes the engines' /metrics."""

    url: str | None = Field(
        default=None,
        max_length=512,
        pattern=r"^https?://[^\s/?#]+(/[^\s?#]*)?$",
        description="Its address, as http://prometheus.monitoring:9090; the operator's own if absent.",
    )
    window_hours: int = Field(default=24, ge=1, le=336, description="Hours before now that count.")
    timeout_seconds: int = Field(default=10, ge=1, le=60, description="For one question.")
    labels: Annotated[dict[str, LabelValue], Field(max_length=16)] = Field(
        default_factory=dict,
        description="Labels that tell the serving's series apart, over ours (namespace and model_name); an empty value "
        "asks for series without the label.",
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.labels.all(name, name.matches('^[a-zA-Z_][a-zA-Z0-9_]*$') && name.size() <= 64)",
                "a label's name is of letters, digits and _",
                "labels",
            )
        )
    )


class Metrics(ApiModel):
    """Sources of metrics beside the engines themselves."""

    prometheus: PrometheusSource | None = Field(
        default=None,
        description="History of the load. Absent: what the operator saw itself since it looks after the object.",
    )
