"""What one engine of an experiment is asked for, and the lines in which the load beside it says what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, ValidationError

from paceline_engine.protocol import Wire
from paceline_engine.trial.facts import Text, Window
from paceline_engine.trial.making import Making

Load = Annotated[int, Field(ge=1, le=65_536)]
Requests = Annotated[int, Field(ge=1, le=10**7)]
LONGEST_LINE = 65_536


class Measurement(Wire):
    """One window to measure."""

    load: Load
    """Requests in flight."""
    seed: Annotated[int, Field(ge=0, lt=2**32)]


class Visit(Wire):
    """One engine from its start to its end."""

    url: Annotated[str, Field(max_length=256)]
    """Of the engine."""
    round: Annotated[int, Field(ge=0, le=10_000)]
    arguments: list[str]
    """Of `vllm`, those that every run of `bench serve` shares."""
    dataset: str = ""
    """File of prompts or of their lengths; empty: none."""
    making: Making | None = None
    """How each run's prompts are made; None: vllm bench serve has them by `arguments`."""
    seconds: Annotated[float, Field(gt=0, le=1e9)]
    """About so long is each window."""
    start_seconds: Annotated[float, Field(gt=0, le=1e9)]
    """Until the engine answers /health."""
    warm_up: list[Load]
    measurements: list[Measurement]
    requests: dict[Load, Requests] = Field(default_factory=dict)
    """Load -> requests of its windows, where an earlier engine has told."""


class Ready(Wire):
    """The engine serves."""

    version: Annotated[str, Field(max_length=64)] = ""
    """Of vLLM."""
    prompts: Annotated[str, Field(max_length=128)] = ""
    """Digest of `Visit.dataset`."""


class Warm(Wire):
    """The engine has served this load's shape."""

    load: Load
    requests: Requests
    """Of each window at it."""


class Line(Wire):
    """One of these."""

    ready: Ready | None = None
    warm: Warm | None = None
    window: Window | None = None
    failed: Text | None = None
    """Why there is no more."""
    done: bool = False


def read(log: str) -> Iterator[Line]:
    """The lines of a log. What is no line of ours, or is cut, is passed over."""
    for text in log.splitlines():
        if text.startswith("{") and len(text) <= LONGEST_LINE:
            try:
                yield Line.model_validate_json(text)
            except ValidationError:
                continue
