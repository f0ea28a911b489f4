"""An engine over several nodes."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from paceline_operator.api.base import ApiModel

LabelKey = Annotated[
    str, Field(max_length=316, pattern=r"^([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$")
]


class MultiNode(ApiModel):
    """Each replica is a group of pods, one a node, that a LeaderWorkerSet keeps together."""

    nodes: int = Field(ge=2, le=64, description="Pods of a group. Each has an equal share of the engine's GPUs.")
    exclusive_topology_key: LabelKey | None = Field(
        default=None,
        description="Node label: the pods of a group are placed where it has one value, and no other group there.",
    )
