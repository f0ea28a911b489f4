"""pydantic models → the structural schema of a CustomResourceDefinition, or a refusal that names the field.

A structural schema is much smaller than JSON Schema: the API server rejects some keywords, ignores others without a
word and prunes what is not declared. So nothing passes that is not on the lists below; what cannot be said is an error
here, not a surprise in a cluster. Rules: kubernetes.io, "Specifying a structural schema".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaWarningKind, NoDefault
from pydantic_core import core_schema

Schema = dict[str, Any]

_ANYWHERE = {"type", "description", "default", "enum", "x-kubernetes-validations"}
KEYWORDS: dict[str, set[str]] = {
    "object": {"properties", "required", "additionalProperties", "maxProperties", "minProperties"}
    | {"x-kubernetes-preserve-unknown-fields", "x-kubernetes-map-type"},
    "array": {"items", "minItems", "maxItems", "x-kubernetes-list-type", "x-kubernetes-list-map-keys"},
    "string": {"minLength", "maxLength", "pattern", "format"},
    "integer": {"minimum", "maximum", "multipleOf"},
    "boolean": set(),
}
"""What may stand at a node, by its type. No `number`: floats do not survive a round trip through every client."""
FORMATS = {"date-time"}
"""The API server ignores a format it does not know, and reads some (duration) differently from pydantic."""
_BOUND = {"string": ("maxLength", "enum", "format"), "array": ("maxItems",), "object": ("properties", "maxProperties")}
"""Under a CEL rule each value needs one of these, or its estimated cost exceeds the budget of the API server."""


class NotStructuralError(ValueError):
    """A type that a structural schema cannot express; the message starts with the path of the field."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")


def structural(model: type[BaseModel], path: str, *, defaults: bool = True) -> Schema:
    """Structural schema of `model`; `path` (as `spec`) begins the field paths of errors.

    `defaults=False` leaves defaults out: in status an absent field means that nobody wrote it, and must stay absent.
    Raises NotStructuralError.
    """
    try:
        schema = model.model_json_schema(by_alias=True, schema_generator=_WithFactories)
    except PydanticInvalidForJsonSchema as error:
        raise NotStructuralError(path, f"{model.__name__} has a type without a JSON schema: {error}") from error
    return _Rewriter(schema.pop("$defs", {}), defaults).node(schema, path, seen=(), ruled=False)


class _WithFactories(GenerateJsonSchema):
    """Emits the defaults that factories make too, whole: CEL judges a default before those further down fill it up."""

    def get_default_value(self, schema: core_schema.WithDefaultSchema) -> Any:
        if "default_factory" not in schema:
            return schema.get("default", NoDefault)
        if schema.get("default_factory_takes_data"):
            raise NotStructuralError("default_factory", "a default made from other fields cannot be a server default")
        value = schema["default_factory"]()  # type: ignore[call-arg]  # takes no data, as asked above
        return _said(value.model_dump(mode="json", by_alias=True)) if isinstance(value, BaseModel) else value

    def emit_warning(self, kind: JsonSchemaWarningKind, detail: str) -> None:
        raise NotStructuralError(kind, detail)


def _said(default: Schema) -> Schema:
    """Without null and empty lists, which are what an absent field means anyway."""
    return {
        key: _said(value) if isinstance(value, dict) else value
        for key, value in default.items()
        if value is not None and value != []
    }


class _Rewriter:
    """One pass from root to leaves. `seen`: references being inlined; `ruled`: a CEL rule can reach this node."""

    def __init__(self, definitions: Mapping[str, Schema], defaults: bool) -> None:
        self._definitions = definitions
        self._defaults = defaults

    def node(self, raw: Schema, path: str, seen: tuple[str, ...], ruled: bool) -> Schema:
        schema, seen = self._inline(raw, path, seen)
        schema = _plain(schema, path)
        kind = schema.get("type")
        if kind not in KEYWORDS:
            raise NotStructuralError(
                path, f"it needs one type of {', '.join(KEYWORDS)}, not {kind or 'several or any'}"
            )
        if unknown := sorted(set(schema) - _ANYWHERE - KEYWORDS[kind]):
            raise NotStructuralError(path, f"a structural schema of type {kind} cannot say {', '.join(unknown)}")
        if schema.get("format", "date-time") not in FORMATS:
            raise NotStructuralError(path, f"format {schema['format']!r} is none of {', '.join(FORMATS)}")
        if not self._defaults or schema.get("default") in (None, []):
            schema.pop("default", None)
        ruled = ruled or "x-kubernetes-validations" in schema
        opaque = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        if ruled and not opaque and kind in _BOUND and not any(bound in schema for bound in _BOUND[kind]):
            raise NotStructuralError(path, f"a CEL rule can reach it, so it needs one of {', '.join(_BOUND[kind])}")
        if kind == "array":
            schema["items"] = items = self.node(schema.get("items", {}), f"{path}[]", seen, ruled)
            # A key of a map is there in every row, by a default where there are any.
            keys = {key: items["properties"][key] for key in schema.get("x-kubernetes-list-map-keys", ())}
            always = items.get("required", [])
            if bare := [key for key, field in keys.items() if "default" not in field and key not in always]:
                items["required"] = [*always, *bare]
        if kind == "object":
            self._members(schema, path, seen, ruled, opaque)
        return schema

    def _inline(self, raw: Schema, path: str, seen: tuple[str, ...]) -> tuple[Schema, tuple[str, ...]]:
        """Follow `$ref` and unwrap `anyOf[T, null]`; what stands beside either overrides what it leads to."""
        schema = dict(raw)
        while "$ref" in schema or "anyOf" in schema:
            if "$ref" in schema:
                name = schema.pop("$ref").removeprefix("#/$defs/")
                if name in seen:
                    raise NotStructuralError(path, f"{' → '.join((*seen, name))} is a cycle, which cannot be inlined")
                seen = (*seen, name)
                schema = {**self._definitions[name], **schema}
            else:
                members = [member for member in schema.pop("anyOf") if member != {"type": "null"}]
                if len(members) != 1:
                    raise NotStructuralError(path, "a union of several types; only `T | None` can be said")
                schema = {**members[0], **schema}
        return schema, seen

    def _members(self, schema: Schema, path: str, seen: tuple[str, ...], ruled: bool, opaque: bool) -> None:
        values = schema.get("additionalProperties")
        if opaque and values is True:
            del schema["additionalProperties"]
        elif isinstance(values, bool):
            raise NotStructuralError(path, "unknown fields are pruned, not judged: name the type of the values")
        elif values is not None and "properties" in schema:
            raise NotStructuralError(path, "properties and additionalProperties exclude each other")
        elif values is not None:
            schema["additionalProperties"] = self.node(values, f"{path}.*", seen, ruled)
        elif not schema.get("properties") and not opaque:
            raise NotStructuralError(path, "an object without fields would be pruned to nothing")
        if "properties" in schema:
            schema["properties"] = {
                name: self.node(member, f"{path}.{name}", seen, ruled) for name, member in schema["properties"].items()
            }


def _plain(schema: Schema, path: str) -> Schema:
    """Without what has another spelling in a structural schema: titles, const, exclusive bounds."""
    plain = {key: value for key, value in schema.items() if key != "title"}
    if "const" in plain:
        plain["enum"] = [plain.pop("const")]
    for exclusive, inclusive, step in (("exclusiveMinimum", "minimum", 1), ("exclusiveMaximum", "maximum", -1)):
        if exclusive in plain and plain.get("type") == "integer":
            if inclusive in plain:
                raise NotStructuralError(path, f"both {exclusive} and {inclusive}: state one")
            plain[inclusive] = plain.pop(exclusive) + step
    return plain
