"""What an experiment measured: one file for each variant, JSON, facts alone; every judgement is made from them anew.

Lengths, counts and names of kernels are in it, and never the text of a prompt or an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError, model_validator

from paceline_engine.protocol import MAX_K
from paceline_engine.trial.facts import Acceptance as Acceptance
from paceline_engine.trial.facts import Amount as Amount
from paceline_engine.trial.facts import Count as Count
from paceline_engine.trial.facts import Fact as Fact
from paceline_engine.trial.facts import Latency as Latency
from paceline_engine.trial.facts import Quantiles as Quantiles
from paceline_engine.trial.facts import ResultError as ResultError
from paceline_engine.trial.facts import Spread as Spread
from paceline_engine.trial.facts import Text as Text
from paceline_engine.trial.facts import Window as Window
from paceline_operator.api.experiment import BASELINE, VariantName

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes. A variant measured for a day has less than one MB."""


class LogWarning(Fact):
    """A kernel that was compiled or tuned while requests were served, as the engine's log told."""

    at: Amount
    """Unix seconds; the log has whole ones."""
    event: Text
    kernel: Text


class LengthPoint(Fact):
    """Mean acceptance length of the drafts since the point before."""

    at: Amount
    length: float = Field(ge=1, le=MAX_K + 1)


class Methods(Fact):
    """What somebody needs to do it again."""

    gpu: Text
    versions: dict[Text, Text] = Field(default_factory=dict)
    digests: dict[Text, Text] = Field(default_factory=dict)
    """Of model, draft, image and dataset."""
    arguments: tuple[Text, ...] = ()
    """Of the engine."""
    load: dict[Text, Text] = Field(default_factory=dict)
    """Of the closed loop: prompt lengths, output length, temperature."""


class VariantResult(Fact):
    """Everything that was measured of one variant."""

    format: Literal[1] = 1
    """Another number is another layout."""
    experiment: Text
    variant: VariantName
    parent: VariantName | None = None
    change: dict[Text, Text] = Field(default_factory=dict)
    """Every field of the one group in which it differs from its parent."""
    k: int = Field(ge=0, le=MAX_K)
    """Tokens drafted at boot; 0 = no speculation."""
    gpus: int = Field(default=1, ge=1, le=4096)
    methods: Methods
    windows: tuple[Window, ...] = ()
    warnings: tuple[LogWarning, ...] = ()
    lengths: tuple[LengthPoint, ...] = ()
    missing: tuple[Text, ...] = ()
    """What was planned and not measured, and why."""

    @model_validator(mode="after")
    def _one_window_a_place(self) -> VariantResult:
        places = Counter((window.load, window.round) for window in self.windows)
        if twice := next((place for place, count in places.items() if count > 1), None):
            raise ValueError(f"load {twice[0]} is there twice in round {twice[1]}")
        return self


def read(content: bytes, name: str) -> VariantResult:
    """One result file. Raises ResultError."""
    try:
        return VariantResult.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultError(f"{name}: {where + ': ' if where else ''}{first['msg']}") from None


def folder(path: Path) -> tuple[VariantResult, ...]:
    """The variants of one experiment, the baseline first. Raises ResultError."""
    try:
        files = sorted(path.glob("*.json"))
        large = next((file for file in files if file.stat().st_size > LARGEST_FILE), None)
        if large:
            raise ResultError(f"{large}: larger than {LARGEST_FILE // 1024 // 1024} MB")
        found = [read(file.read_bytes(), str(file)) for file in files]
    except OSError as error:
        raise ResultError(f"{path}: cannot be read: {error.strerror or error}") from None
    if not found:
        raise ResultError(f"{path}: no result file (*.json) is in it")
    if len(names := {one.experiment for one in found}) > 1:
        raise ResultError(f"{path}: files of several experiments: {', '.join(sorted(names))}")
    by_name: Mapping[str, VariantResult] = {one.variant: one for one in found}
    if len(by_name) < len(found):
        raise ResultError(f"{path}: several files of one variant: each has one")
    if BASELINE not in by_name:
        raise ResultError(f"{path}: no file of the variant {BASELINE}: without it nothing can be compared")
    return tuple(sorted(found, key=lambda one: (one.variant != BASELINE, one.variant)))
