"""Status of the model cache: what is on the claim, what is on its way, and why something is not."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from paceline_operator.api.base import ApiModel


class CachePhase(StrEnum):
    """Of one artefact."""

    PENDING = "Pending"
    """Nobody has begun with it."""
    DOWNLOADING = "Downloading"
    READY = "Ready"
    FAILED = "Failed"


class ArtefactStatus(ApiModel):
    """The target's or the draft's weights."""

    name: str = Field(description="model or draft.")
    source: str = Field(description="As in spec.")
    asked: str = Field(default="", description="The revision as in spec; empty: the default branch.")
    phase: CachePhase = Field(description="Pending, Downloading, Ready or Failed.")
    revision: str = Field(
        default="", description="The commit that a branch or tag was resolved to; of s3:// a digest of the listing."
    )
    bytes: int | None = Field(default=None, description="Size of all its files. Absent: not known yet.")
    progress_percent: int | None = Field(default=None, description="Of its bytes, in tens, while Downloading.")
    reason: str = Field(default="", description="Of a failure: TokenMissing, DiskFull, ...")
    message: str = Field(default="", max_length=1024, description="Of a failure, for people.")


class ModelCacheStatus(ApiModel):
    """What is on the claim."""

    claim_name: str = Field(description="The PersistentVolumeClaim.")
    artefacts: list[ArtefactStatus] = Field(default_factory=list, max_length=2, description="Target and draft.")
