"""SpeculationProfile: what one engine configuration was seen to cost and to accept, for a warm start elsewhere.

A prior, never the truth: a profile whose key differs in one field is refused, and a matching one counts for at most
half of what an observation needs. (Not `profile.py`: that is a module of the standard library.)
"""

from __future__ import annotations

from pydantic import ConfigDict, Field

from paceline_operator.api.base import NAME_RULE, ApiModel, ObjectMeta, Timestamp, cel
from paceline_operator.api.conditions import AcceptanceStatus
from paceline_operator.api.learned import Acceptances, AdaptiveLoads, Costs, Label, NoDrafters, ProfileKey


class ProfileSpec(ApiModel):
    """Key, provenance and counts."""

    key: ProfileKey = Field(description="What it holds for.")
    measured_at: Timestamp = Field(description="When the newest of it was measured.")
    workload: Label = Field(default="unknown", description="Kind of text, in words: acceptance depends on it.")
    cost: Costs = Field(min_length=1, description="Step time by k, load and context.")
    no_drafter: NoDrafters = Field(default_factory=list, description="Step time of engines without a drafter, by load.")
    acceptance: Acceptances = Field(default_factory=list, description="Acceptance by k.")
    adaptive_loads: AdaptiveLoads = Field(
        default_factory=list, description="Load buckets where adaptive verification was measured to pay."
    )


class SpeculationProfile(ApiModel):
    """Learned cost and acceptance of one engine configuration: a prior for servings with the same key."""

    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: ProfileSpec
    status: AcceptanceStatus = Field(default_factory=AcceptanceStatus)

    model_config = ConfigDict(json_schema_extra=cel(NAME_RULE))
