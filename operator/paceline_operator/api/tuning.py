"""How k is chosen, and the service levels that choosing respects."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, ObjectName, cel
from paceline_operator.api.status import K, TableRow


class TuningMode(StrEnum):
    """Auto decides and acts, Observe decides and tells, Manual does as the table says."""

    AUTO = "Auto"
    OBSERVE = "Observe"
    MANUAL = "Manual"


class ProbingMode(StrEnum):
    """Auto: in mode Auto yes, in mode Observe no."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Probing(ApiModel):
    """Short bursts of other ks that keep their estimates alive."""

    mode: ProbingMode = Field(default=ProbingMode.AUTO, description="Whether bursts are allowed.")
    max_share_percent: int = Field(
        default=5,
        ge=1,
        le=25,
        description="Share of steps that bursts may take, settling steps included, once observed.",
    )


class ProfileRef(ApiModel):
    """A SpeculationProfile of the same namespace."""

    name: ObjectName = Field(description="Its name.")


class Tuning(ApiModel):
    """How k is chosen."""

    mode: TuningMode = Field(default=TuningMode.AUTO, description="Auto, Observe (recommend only) or Manual (table).")
    table: Annotated[list[TableRow], Field(min_length=1, max_length=64)] | None = Field(
        default=None,
        description="The table of mode Manual: rows in ascending order, the first from 1 request.",
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
    )
    ladder: Annotated[list[K], Field(min_length=1, max_length=16)] | None = Field(
        default=None,
        description="The ks to choose from, 0 included; chosen from speculation.maxTokens if absent.",
        json_schema_extra={"x-kubernetes-list-type": "set"},
    )
    interval_seconds: int = Field(default=10, ge=1, le=3600, description="Between two decisions.")
    min_gain_percent: int = Field(default=1, ge=0, le=50, description="Smaller expected gains do not move k.")
    probing: Probing = Field(default_factory=Probing, description="Bursts of other ks.")
    profile_ref: ProfileRef | None = Field(
        default=None,
        description="A SpeculationProfile to start from, as a prior; refused where its key is not that of the engines.",
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.mode != 'Manual' || has(self.table)", "mode Manual needs tuning.table", "table"),
            ("!has(self.table) || self.mode == 'Manual'", "tuning.table is for mode Manual only", "table"),
            (
                "!has(self.table) || self.table[0].fromRequests == 1",
                "tuning.table must start with fromRequests 1",
                "table",
            ),
            (
                "!has(self.table) || (self.table.map(r, r.fromRequests).isSorted() && "
                "self.table.all(a, self.table.exists_one(b, b.fromRequests == a.fromRequests)))",
                "the rows of tuning.table must ascend by fromRequests, each number once",
                "table",
            ),
            (
                "!has(self.ladder) || 0 in self.ladder",
                "tuning.ladder must contain 0, the way to stop speculating",
                "ladder",
            ),
        )
    )


class Slo(ApiModel):
    """Service levels that tuning respects."""

    tpot_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=60_000,
        description="Time per output token; a k that exceeds it at a load is no candidate there.",
    )
    ttft_p95_milliseconds: int | None = Field(
        default=None,
        ge=1,
        le=600_000,
        description="95th percentile of the time to first token: observed, not predicted; exceeded in two windows, k "
        "is lowered at the present load and above, and where that does not help, replicas are proposed.",
    )
