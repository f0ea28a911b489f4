"""The target model and where models come from."""

from __future__ import annotations

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

    model_config = ConfigDict(json_schema_extra=cel(REVISION_RULE))
