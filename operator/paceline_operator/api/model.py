"""The target model, where models come from, and where they are kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, Name, ObjectName, cel

SOURCE_PATTERN = (
    r"^(hf://[A-Za-z0-9][\w.-]*/[\w.-]+|s3://[a-z0-9][a-z0-9.-]+/\S+|pvc://[a-z0-9][a-z0-9.-]*/\S*|oci://\S+|/\S+)$"
)
Source = Annotated[str, Field(max_length=512, pattern=SOURCE_PATTERN)]
Revision = Annotated[str, Field(min_length=1, max_length=128)]
REVISION_RULE = (
    "!has(self.revision) || self.source.startsWith('hf://')",
    "revision is for hf:// sources: the other kinds name their content in the source",
    "revision",
)


class AccessMode(StrEnum):
    """Who may mount a claim at once, by Kubernetes' names."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    READ_WRITE_MANY = "ReadWriteMany"


class CacheClaim(ApiModel):
    """A PersistentVolumeClaim that the operator makes; it goes with the serving, or when the cache is unset."""

    size: str = Field(
        max_length=32,
        pattern=r"^[1-9][0-9]*(Mi|Gi|Ti|Pi|M|G|T|P)$",
        description="Bytes asked for, as Kubernetes writes quantities: 200Gi. It can grow where the class allows.",
    )
    storage_class_name: ObjectName | None = Field(default=None, description="The cluster's default class if absent.")
    access_mode: AccessMode = Field(
        default=AccessMode.READ_WRITE_MANY,
        description="ReadWriteMany serves pods on any node; ReadWriteOnce binds all of them to one.",
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.accessMode != oldSelf.accessMode || "
                "(has(self.storageClassName) ? self.storageClassName : '') != "
                "(has(oldSelf.storageClassName) ? oldSelf.storageClassName : '') || "
                "!quantity(self.size).isLessThan(quantity(oldSelf.size))",
                "a claim cannot shrink: keep its size, or give it another class or access mode, which is a new claim",
                "size",
            )
        )
    )


class Download(StrEnum):
    """When weights come onto the claim."""

    INIT_CONTAINER = "InitContainer"
    """As an engine pod starts: its GPU waits."""
    JOB = "Job"
    """Before engine pods are made or changed; those that run serve on."""


class ModelCache(ApiModel):
    """A volume that keeps downloaded weights, and what the engine compiles, for all pods and all restarts."""

    claim_name: ObjectName | None = Field(default=None, description="A PersistentVolumeClaim that is there already.")
    claim: CacheClaim | None = Field(default=None, description="A PersistentVolumeClaim to make.")
    download: Download = Field(
        default=Download.INIT_CONTAINER,
        description="InitContainer: as a pod starts. Job: before pods are made or changed, without a GPU.",
    )
    compiled: bool = Field(default=True, description="Keep what the engine compiles there too, by version and GPU.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.claimName) != has(self.claim)",
                "set one of claimName (a claim that is there) and claim (one to make)",
                "claimName",
            )
        )
    )


class Model(ApiModel):
    """The target model."""

    source: Source = Field(
        description="Where the weights are: hf://owner/name, s3://bucket/key, pvc://claim/path, oci://image or an "
        "absolute path inside the engine container."
    )
    revision: Revision | None = Field(default=None, description="Branch, tag or commit of a hf:// source.")
    served_name: Name | None = Field(
        default=None, description="Model name that clients send; the object's name if absent."
    )
    token_secret_name: ObjectName | None = Field(
        default=None, description="Secret with key `token` (HF_TOKEN) for a gated model."
    )
    cache: ModelCache | None = Field(
        default=None,
        description="Where weights of hf:// and s3:// sources, target and draft alike, are kept. Absent: each pod "
        "downloads them into a volume of its own.",
    )

    model_config = ConfigDict(json_schema_extra=cel(REVISION_RULE))
