"""What one measurement of an engine is: facts alone, checked whole, the same on both sides of the log it travels in.

Lengths and counts are in it, and never the text of a prompt or an answer.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from paceline_engine.protocol import MAX_K

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


class Spread(Fact):
    """Of one thing over requests: what 5, 50 and 95 % of them stay below."""

    p5: Amount
    p50: Amount
    p95: Amount


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
    request_lengths: Spread | None = None
    """Tokens of a request after its first, over the steps that gave them as the client saw them arrive."""
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
