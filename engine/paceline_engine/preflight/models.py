"""All checks of models and memory, in order: what was read, tokens, family, limits, memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_engine.preflight import family, files, limits, memory, room, tokens
from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import Check
from paceline_engine.preflight.model import Model


def checks(asked: Asked, target: Model, draft: Model | None, gpu_bytes: int | None = None) -> Iterator[Check]:
    """`draft`: None where the method has none. `gpu_bytes`: of one GPU; None: not known here."""
    yield from files.checks(target, draft)
    yield from tokens.checks(asked, target, draft)
    yield from family.checks(asked, target, draft)
    yield from limits.checks(asked, target, draft)
    yield from room.checks(asked, memory.budget(asked, target, draft), gpu_bytes)
