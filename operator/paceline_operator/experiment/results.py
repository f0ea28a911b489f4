"""What an experiment measured: one file for each variant, JSON, facts alone; every judgement is made from them anew.

Lengths, counts and names of kernels are in it, and never the text of a prompt or an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from paceline_engine.protocol import MAX_K
from paceline_operator.api.experiment import BASELINE, VariantName

LARGEST_FILE = 64 * 1024 * 1024
"""Bytes. A variant measured for a day has less than one MB."""

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Amount = Annotated[float, Field(ge=0, le=1e12)]
Milliseconds = Annotated[Amount, AfterValidator(lambda value: round(value, 9))]
"""To the picosecond, so that nothing above 0 is too small to divide by."""
LEAST_SECONDS = 1e-3
"""Less measures nothing: an engine's step takes longer."""
Text = Annotated[str, Field(max_length=1024)]


class ResultError(ValueError):
    """A file or a folder that is no result of an experiment; the message says where and why."""


class Fact(BaseModel):
    """Base of what is in a file: frozen, no unknown field, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Quantiles(Fact):
    """Of one latency, in milliseconds."""

    mean: Milliseconds
    p50: Milliseconds
    p95: Milliseconds
    p99: Milliseconds


class Latency(Fact):
    """Latencies as one side saw them; None = that side did not tell.

    ITL is the time between two arrivals, TPOT the time of a request after its first token over its further tokens.
    """

    ttft: Quantiles | None = None
    tpot: Quantiles | None = None
    itl: Quantiles | None = None
    e2e: Quantiles | None = None


class Acceptance(Fact):
    """What became of the drafts of one window, by the engine's own counters."""

    drafts: Count
    drafted: Count
    accepted: Count
    by_position: tuple[Share, ...] = Field(default=(), max_length=MAX_K)
    """Share of drafts accepted up to each position."""


class Window(Fact):
    """One measurement: one load, one round, one closed loop."""

    load: int = Field(ge=1, le=65_536)
    round: int = Field(ge=0, le=10_000)
    seed: Count
    started_at: Amount
    """Unix seconds."""
    seconds: float = Field(ge=LEAST_SECONDS, le=1e9)
    warmed: bool
    """This engine process had served this load's shape before."""
    tokens: Count
    """That came out."""
    input_tokens: Count = 0
    requests: Count
    """Completed."""
    errors: dict[Text, Count] = Field(default_factory=dict)
    """Failed requests by kind."""
    client: Latency = Latency()
    server: Latency = Latency()
    acceptance: Acceptance | None = None
    prefix_cache_hit_rate: Share | None = None
    memory_bytes: Count | None = None
    """Of GPU memory, the most of all GPUs together."""
    fault_seconds: Amount | None = None
    """From the start to the fault that ended it; None = there was none."""

    @property
    def ended_at(self) -> float:
        """Unix seconds."""
        return self.started_at + self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Output tokens over wall time."""
        return self.tokens / self.seconds

    @property
    def decode_tokens_per_second(self) -> float | None:
        """Output tokens over the time that was not spent waiting for first tokens; None where TTFT is not known.

        In a closed loop each of `load` places spends requests x mean TTFT / load seconds on that.
        """
        if self.client.ttft is None:
            return None
        rest = self.seconds - self.requests * self.client.ttft.mean / 1000 / self.load
        return self.tokens / rest if rest >= LEAST_SECONDS else None

    @property
    def firing_rate(self) -> float | None:
        """Share of the requests' decode steps that had a draft.

        Every step of a request gives one token and those accepted; its first token comes from the prefill.
        """
        steps = self.tokens - self.requests - (self.acceptance.accepted if self.acceptance else 0)
        return min(1.0, self.acceptance.drafts / steps) if self.acceptance and steps > 0 else None


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
