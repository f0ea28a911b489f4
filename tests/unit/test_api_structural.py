"""The generator says what pydantic says, in the words a structural schema has, and refuses the rest by field."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.client import V1JSONSchemaProps
from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model

from paceline_operator.api.base import ApiModel, cel
from paceline_operator.api.structural import NotStructuralError, Schema, structural


class Colour(StrEnum):
    """Colours."""

    RED = "red"
    BLUE = "blue"


class Node(ApiModel):
    """A type that contains itself."""

    child: Node | None = None


class Cat(ApiModel):
    """A member of a union."""

    kind: Literal["cat"]


class Dog(ApiModel):
    """Another member."""

    kind: Literal["dog"]


class Leaf(ApiModel):
    """Something to nest."""

    size: int = 3
    names: list[str] = Field(default_factory=list)


def model(annotation: Any, default: Any = ...) -> type[BaseModel]:
    return create_model("Model", __base__=ApiModel, field_one=(annotation, default))


def field(annotation: Any, default: Any = ...) -> Schema:
    schema = structural(model(annotation, default), "spec")["properties"]["fieldOne"]
    assert isinstance(schema, dict)
    return schema


@pytest.mark.parametrize(
    ("annotation", "where", "why"),
    [
        (float, "spec.fieldOne", "number"),
        (Any, "spec.fieldOne", "several or any"),
        (None, "spec.fieldOne", "null"),
        (int | str, "spec.fieldOne", "union"),
        (int | str | None, "spec.fieldOne", "union"),
        (list, "spec.fieldOne[]", "several or any"),
        (list[float], "spec.fieldOne[]", "number"),
        (list[int | str], "spec.fieldOne[]", "union"),
        (dict[str, float], "spec.fieldOne.*", "number"),
        (dict[str, Any], "spec.fieldOne", "pruned"),
        (tuple[int, str], "spec.fieldOne", "prefixItems"),
        (set[int], "spec.fieldOne", "uniqueItems"),
        (Literal["a", 1], "spec.fieldOne", "several or any"),
        (timedelta, "spec.fieldOne", "duration"),
        (bytes, "spec.fieldOne", "binary"),
        (Node, "spec.fieldOne.child", "Node → Node is a cycle"),
        (Annotated[Cat | Dog, Field(discriminator="kind")], "spec.fieldOne", "several or any"),
        (Callable[[int], int], "spec", "JSON schema"),
        (Annotated[int, Field(gt=1, ge=1)], "spec.fieldOne", "exclusiveMinimum"),
        (Annotated[str, Field(json_schema_extra={"examples": ["a"]})], "spec.fieldOne", "examples"),
        (Annotated[str, Field(json_schema_extra={"contentEncoding": "x"})], "spec.fieldOne", "contentEncoding"),
        (Annotated[str, Field(deprecated=True)], "spec.fieldOne", "deprecated"),
        (create_model("Empty", __base__=ApiModel), "spec.fieldOne", "without fields"),
        (create_model("Strict", __config__=ConfigDict(extra="forbid"), a=(int, ...)), "spec.fieldOne", "pruned"),
        (create_model("Open", __config__=ConfigDict(extra="allow"), a=(int, ...)), "spec.fieldOne", "pruned"),
    ],
)
def test_what_cannot_be_said_is_refused_with_the_path_of_the_field(annotation: Any, where: str, why: str) -> None:
    with pytest.raises(NotStructuralError) as refusal:
        structural(model(annotation), "spec")
    path, _, message = str(refusal.value).partition(": ")
    assert path == where
    assert why in message


def test_a_recursive_root_is_refused() -> None:
    with pytest.raises(NotStructuralError, match=r"^spec\.child: Node → Node is a cycle"):
        structural(Node, "spec")


def test_properties_beside_additional_properties_are_refused() -> None:
    typed_extra = create_model(
        "TypedExtra",
        __config__=ConfigDict(json_schema_extra={"additionalProperties": {"type": "string"}}),
        a=(int, ...),
    )
    with pytest.raises(NotStructuralError, match=r"^spec: properties and additionalProperties exclude each other"):
        structural(typed_extra, "spec")


def test_a_default_made_from_other_fields_is_refused() -> None:
    with pytest.raises(NotStructuralError, match="other fields"):
        structural(model(int, Field(default_factory=lambda data: len(data))), "spec")


def test_a_default_that_is_no_json_is_refused() -> None:
    with pytest.raises(NotStructuralError, match="non-serializable-default"):
        structural(model(str, object()), "spec")


@pytest.mark.parametrize(
    ("annotation", "missing"),
    [
        (str, "maxLength"),
        (list[Annotated[int, Field(ge=0)]], "maxItems"),
        (dict[str, int], "maxProperties"),
        (Annotated[list[str], Field(max_length=3)], "maxLength"),
    ],
)
def test_a_value_that_a_rule_can_reach_needs_a_bound(annotation: Any, missing: str) -> None:
    ruled = create_model("Ruled", __base__=ApiModel, inner=(model(annotation), ...))
    structural(ruled, "spec")
    ruled.model_config["json_schema_extra"] = cel(("true", "always"))
    ruled.model_rebuild(force=True)
    with pytest.raises(NotStructuralError, match=rf"^spec\.inner\.fieldOne.*{missing}"):
        structural(ruled, "spec")


@pytest.mark.parametrize(
    ("annotation", "default", "expected"),
    [
        (int, 3, {"type": "integer", "default": 3}),
        (int | None, None, {"type": "integer"}),
        (Annotated[int, Field(gt=1, lt=9)], ..., {"type": "integer", "minimum": 2, "maximum": 8}),
        (Annotated[int, Field(ge=1)] | None, None, {"type": "integer", "minimum": 1}),
        (Literal["a"], ..., {"type": "string", "enum": ["a"]}),
        (Literal["a", "b"], "b", {"type": "string", "enum": ["a", "b"], "default": "b"}),
        (Colour, Colour.RED, {"type": "string", "enum": ["red", "blue"], "description": "Colours.", "default": "red"}),
        (Colour | None, None, {"type": "string", "enum": ["red", "blue"], "description": "Colours."}),
        (bool, False, {"type": "boolean", "default": False}),
        (list[int], Field(default_factory=list), {"type": "array", "items": {"type": "integer"}}),
        (list[int], [1], {"type": "array", "items": {"type": "integer"}, "default": [1]}),
        (tuple[int, ...], (), {"type": "array", "items": {"type": "integer"}}),
        (dict[str, int], ..., {"type": "object", "additionalProperties": {"type": "integer"}}),
        (
            dict[str, Any] | None,
            Field(default=None, json_schema_extra={"x-kubernetes-preserve-unknown-fields": True}),
            {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        ),
    ],
)
def test_spellings(annotation: Any, default: Any, expected: Schema) -> None:
    assert field(annotation, default) == expected


def test_a_field_description_wins_over_that_of_its_type() -> None:
    assert field(Colour, Field(description="Of the car."))["description"] == "Of the car."
    assert field(Leaf)["description"] == "Something to nest."


def test_a_factory_default_is_emitted_whole_without_nulls_and_empty_lists() -> None:
    outer = create_model("Outer", __base__=ApiModel, leaf=(Leaf, Field(default_factory=Leaf)), note=(str | None, None))
    schema = field(outer, Field(default_factory=outer))
    assert schema["default"] == {"leaf": {"size": 3}}
    assert schema["properties"]["leaf"]["default"] == {"size": 3}


def test_defaults_can_be_left_out_at_every_depth() -> None:
    assert '"default"' not in json.dumps(structural(model(Leaf, Field(default_factory=Leaf)), "status", defaults=False))


def test_rules_are_kept_with_the_field_they_blame() -> None:
    ruled = create_model("Ruled", __base__=ApiModel, a=(int, ...))
    ruled.model_config["json_schema_extra"] = cel(("self.a > 0", "a"), ("self.a < 9", "b", "a"))
    ruled.model_rebuild(force=True)
    assert structural(ruled, "spec")["x-kubernetes-validations"] == [
        {"rule": "self.a > 0", "message": "a"},
        {"rule": "self.a < 9", "message": "b", "fieldPath": ".a"},
    ]


integers = st.builds(
    lambda low, width: Annotated[int, Field(ge=low, lt=low + 1 + width)], st.integers(-5, 5), st.integers(0, 5)
)
strings = st.builds(
    lambda low, width: Annotated[str, Field(min_length=low, max_length=low + width)],
    st.integers(0, 2),
    st.integers(0, 3),
)
scalars = integers | strings | st.sampled_from([bool, Colour, Literal["x"], Literal["x", "y"]])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.builds(lambda item, most: Annotated[list[item], Field(max_length=most)], inner, st.integers(0, 2))  # type: ignore[valid-type]
        | st.builds(lambda value: dict[str, value], inner)  # type: ignore[valid-type]
        | st.builds(model, inner)
        | st.builds(lambda value: create_model("Optional", __base__=ApiModel, f=(value | None, None)), inner)
    )


annotations = st.recursive(scalars, containers, max_leaves=4)
values = st.recursive(
    st.booleans() | st.integers(-6, 12) | st.sampled_from(["", "x", "y", "red", "abcd"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["fieldOne", "f", "other"]), inner, max_size=2)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(annotation=annotations, value=values)
def test_the_schema_accepts_what_pydantic_accepts(annotation: Any, value: Any) -> None:
    subject = model(annotation)
    document = {"fieldOne": value}
    schema = structural(subject, "spec")
    try:
        subject.model_validate_json(json.dumps(document), strict=True)
        accepted = True
    except ValidationError:
        accepted = False
    assert jsonschema.Draft202012Validator(schema).is_valid(document) == accepted


@settings(deadline=None)
@given(annotation=annotations)
def test_the_client_library_knows_every_keyword(annotation: Any) -> None:
    V1JSONSchemaProps.model_validate(structural(model(annotation), "spec"))


def test_a_key_of_a_list_is_required_where_it_has_no_default() -> None:
    class Row(ApiModel):
        k: int = Field(default=0, description="Key.")
        steps: int = Field(default=0, description="Value.")

    class Table(ApiModel):
        rows: list[Row] = Field(
            description="Rows.",
            json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"]},
        )

    told = structural(Table, "status", defaults=False)["properties"]["rows"]["items"]
    asked = structural(Table, "spec")["properties"]["rows"]["items"]
    assert (told["required"], "required" in asked) == (["k"], False)
