"""What all API types share: camelCase, server-side defaults, CEL beside the field."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """Base of API types. Stored objects may come from a newer CRD: unknown fields are ignored, never an error."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


def cel(*rules: tuple[str, str]) -> dict[str, Any]:
    """`json_schema_extra` for CEL rules given as (expression, message)."""
    return {"x-kubernetes-validations": [{"rule": rule, "message": message} for rule, message in rules]}
