"""What was learnt under one engine configuration: its key, and the rows that a SpeculationProfile and status share."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, Timestamp, cel
from paceline_operator.api.speculation import DRAFT_METHODS, Method

Digest = Annotated[str, Field(max_length=71, pattern=r"^sha256:[0-9a-f]{64}$")]
Label = Annotated[str, Field(min_length=1, max_length=128)]
Count = Annotated[int, Field(ge=0)]


class ProfileKey(ApiModel):
    """All of it must equal the serving's, or the profile is refused and the differing field named."""

    gpu: Label = Field(description="Product name as the driver gives it; `CPU` with the processor's name on a CPU.")
    tensor_parallel_size: int = Field(default=1, ge=1, le=64, description="GPUs that share each layer.")
    model_digest: Digest = Field(description="Of the target's weights.")
    method: Method = Field(description="Drafting method.")
    draft_digest: Digest | None = Field(default=None, description="Of the draft's weights.")
    max_tokens: int = Field(ge=1, le=32, description="k at boot: drafting cost and graphs depend on it.")
    engine_version: Label = Field(description="vLLM's version, in full.")
    graph_mode: Label = Field(description="vLLM's cudagraph mode in force.")
    max_capture_size: int = Field(default=0, ge=0, le=65_536, description="Largest captured graph, tokens; 0 = none.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!(self.method in {list(DRAFT_METHODS)}) || has(self.draftDigest)",
                "this method has a draft model: its digest belongs to the key",
                "draftDigest",
            )
        )
    )


class CostRow(ApiModel):
    """Decode step time at one k and load bucket."""

    k: Annotated[int, Field(ge=0, le=32)] = Field(description="Tokens drafted.")
    from_requests: int = Field(ge=1, le=4096, description="Lower edge of the load bucket, sampling requests.")
    context_tokens: int = Field(default=0, ge=0, le=16_777_216, description="Lower edge of the context bucket.")
    step_microseconds: int = Field(ge=1, le=600_000_000, description="Mean step time.")
    deviation_microseconds: int = Field(ge=0, le=600_000_000, description="Standard error of that mean.")
    steps: int = Field(ge=1, description="Steps that this rests on.")


class NoDrafterRow(ApiModel):
    """Decode step time of engines without a drafter at one load bucket."""

    from_requests: int = Field(ge=1, le=4096, description="Lower edge of the load bucket, sampling requests.")
    step_microseconds: int = Field(ge=1, le=600_000_000, description="Mean step time.")
    steps: int = Field(ge=1, description="Steps that this rests on.")


class AcceptanceRow(ApiModel):
    """What became of drafts made under one k."""

    k: Annotated[int, Field(ge=1, le=32)] = Field(description="Tokens drafted.")
    request_steps: Count = Field(description="Requests x steps that sampled under this k.")
    drafts: Count = Field(description="Of these, those that had a draft.")
    drafted: Annotated[list[Count], Field(min_length=1, max_length=32)] = Field(
        description="Draft tokens verified at position 1..k."
    )
    accepted: Annotated[list[Count], Field(min_length=1, max_length=32)] = Field(
        description="Draft tokens accepted at position 1..k."
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("self.drafted.size() == self.k", "drafted needs one count for each position 1..k", "drafted"),
            ("self.accepted.size() == self.k", "accepted needs one count for each position 1..k", "accepted"),
            ("self.drafts <= self.requestSteps", "drafts must not exceed requestSteps", "drafts"),
        )
    )


Costs = Annotated[
    list[CostRow],
    Field(
        max_length=512,
        json_schema_extra={
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["k", "fromRequests", "contextTokens"],
        },
    ),
]
NoDrafters = Annotated[
    list[NoDrafterRow],
    Field(
        max_length=32,
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["fromRequests"]},
    ),
]
Acceptances = Annotated[
    list[AcceptanceRow],
    Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]}),
]
AdaptiveLoads = Annotated[
    list[Annotated[int, Field(ge=1, le=4096)]],
    Field(max_length=32, json_schema_extra={"x-kubernetes-list-type": "set"}),
]


class LearnedStatus(ApiModel):
    """What `paceline profile export` makes a SpeculationProfile of. It changes with the measured numbers of status."""

    key: ProfileKey | None = Field(default=None, description="Of the engines; absent where they do not tell all of it.")
    message: str = Field(default="", description="Why there is no key.")
    measured_at: Timestamp | None = Field(default=None, description="When the newest of it was measured.")
    cost: Costs = Field(default_factory=list, description="Step time by k and load, where it has its minimum count.")
    no_drafter: NoDrafters = Field(default_factory=list, description="Step time of engines without a drafter.")
    acceptance: Acceptances = Field(default_factory=list, description="Acceptance by k, in effective counts.")
    adaptive_loads: AdaptiveLoads = Field(
        default_factory=list, description="Load buckets where adaptive verification was measured to pay."
    )
