"""Status of the history: what hours of load come to, whose word it is, or why there is none."""

from __future__ import annotations

from pydantic import Field

from paceline_operator.api.base import ApiModel


class LoadShare(ApiModel):
    """How much of the time a pod had so many requests."""

    from_requests: int = Field(description="Lower edge of the load bucket; 0 is idle.")
    permille: int = Field(description="Share of the time, x1000.")


class HistoryStatus(ApiModel):
    """Requests running in one pod, over hours. Refreshed by changes above 5 %."""

    source: str = Field(description="Prometheus, or OwnSamples: the operator's own readings since it began.")
    reason: str = Field(
        default="",
        description="Why none: HistoryEmpty, HistoryNan, HistoryStale, HistoryError or HistoryTimeout.",
    )
    message: str = Field(default="", max_length=1024, description="The same for people.")
    hours: int | None = Field(default=None, description="Observed, all pods together, rounded down.")
    p50_requests: int | None = Field(default=None, description="Half of the time there were at most so many.")
    p90_requests: int | None = Field(default=None, description="Nine tenths of the time.")
    p99_requests: int | None = Field(default=None, description="All but a hundredth of the time.")
    demand_p90_requests: int | None = Field(
        default=None, description="As p90Requests, running and waiting in all pods together."
    )
    shares: list[LoadShare] = Field(default_factory=list, max_length=24, description="By load bucket.")
