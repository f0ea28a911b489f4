"""Changing frozen values fast: a pass changes dozens of fields, and `dataclasses.replace` costs more than algebra."""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T")


def amended(value: T, **fields: Any) -> T:
    """`value`, a frozen dataclass without slots or __post_init__, with `fields` in place of its own."""
    new: T = object.__new__(type(value))
    object.__setattr__(new, "__dict__", value.__dict__ | fields)
    return new
