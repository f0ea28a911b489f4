"""What all API types share: camelCase, server-side defaults, CEL beside the field."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel
from pydantic_core import PydanticSerializationError

Timestamp = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""RFC 3339, as Kubernetes writes times; kept as text because status is compared as written."""


class ApiModel(BaseModel):
    """Base of API types. Stored objects may come from a newer CRD: unknown fields are ignored, never an error."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


M = TypeVar("M", bound=ApiModel)
MAX_SHARED = 4096
"""Characters of a part: larger ones are nobody else's, and would only be kept for longer."""


def shared(model: M) -> M:
    """`model`, whose parts are one object with the same parts of all others: sections of specs are alike in most."""
    same: dict[str, ApiModel] = {}
    for name, value in model:
        if isinstance(value, ApiModel) and 0 < len(text := _text(value)) <= MAX_SHARED:
            one = _one(type(value), text)
            same |= {name: one} if one == value else {}
    return model.model_copy(update=same)


def _text(model: ApiModel) -> str:
    """As JSON; empty where there is text in it that JSON cannot carry (half a surrogate pair)."""
    try:
        return model.model_dump_json(exclude_unset=True)
    except PydanticSerializationError:
        return ""


@lru_cache(maxsize=1024)
def _one(kind: type[ApiModel], text: str) -> ApiModel:
    return kind.model_validate_json(text)


class ObjectMeta(ApiModel):
    """The parts of Kubernetes' metadata that are read."""

    name: str
    namespace: str = "default"
    uid: str = ""
    generation: int = 0
    deletion_timestamp: str | None = None


def cel(*rules: tuple[str, str] | tuple[str, str, str]) -> dict[str, Any]:
    """`json_schema_extra` for CEL rules given as (expression, message) or (expression, message, field).

    The field is relative to the type that carries the rule (`tuning.ladder`); errors name it instead of the type.
    """
    return {
        "x-kubernetes-validations": [
            {"rule": rule, "message": message, **({"fieldPath": f".{field[0]}"} if field else {})}
            for rule, message, *field in rules
        ]
    }


NAME_PATTERN = "^[a-z]([-a-z0-9]*[a-z0-9])?$"
NAME_LENGTH = 40
"""Leaves room for the suffixes of children in a DNS label (63). A Service's name begins with a letter."""
NAME_RULE = (
    f"self.metadata.name.size() <= {NAME_LENGTH} && self.metadata.name.matches('{NAME_PATTERN}')",
    "the name must be at most 40 characters of a-z, 0-9 and '-', and begin with a letter: children are named after it",
    "metadata.name",
)


Name = Annotated[str, Field(min_length=1, max_length=253)]
ObjectName = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Image = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^\S+$")]
VllmName = Annotated[str, Field(min_length=1, max_length=64, pattern=r"^[a-z0-9][a-z0-9_-]*$")]
"""A value as vLLM names it. Which there are differs between versions: preflight/matrix.yaml."""
