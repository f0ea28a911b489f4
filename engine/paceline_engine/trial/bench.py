"""The JSON of `vllm bench serve --save-result --save-detailed` -> one window. Texts of answers are not taken over."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from paceline_engine.trial.facts import Acceptance, Amount, Count, Latency, Quantiles, ResultError, Spread, Window

MILLISECONDS = 1000.0
KIND = re.compile(r"\b([A-Z][A-Za-z]{2,40}(?:Error|Exception|Timeout))\b")
"""Name of an exception. Nothing else of an error's text is kept: it may quote a request."""
OTHER = "other"

Seconds = Annotated[float, Field(ge=0, le=1e9)]


class _Bench(BaseModel):
    """The fields that are read (vllm/benchmarks/serve.py, 0.32 and 0.33)."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    max_concurrency: int = Field(ge=1, le=65_536)
    duration: float = Field(gt=0, le=1e9)
    completed: Count
    failed: Count = 0
    total_input_tokens: Count
    total_output_tokens: Count
    output_lens: list[Count]
    ttfts: list[Seconds]
    itls: list[list[Seconds]]
    latencies: list[Seconds]
    errors: list[str]
    spec_decode_num_drafts: Count | None = None
    spec_decode_draft_tokens: Count = 0
    spec_decode_accepted_tokens: Count = 0
    spec_decode_per_position_acceptance_rates: list[Annotated[float, Field(ge=0, le=1)]] = Field(default_factory=list)


DETAILS = ("output_lens", "ttfts", "itls", "latencies", "errors")
"""One entry a request, in the same order."""


def window(content: bytes, *, round_: int, seed: int, started_at: float, warmed: bool) -> Window:
    """One run of `vllm bench serve` as a window of `round_`. Raises ResultError."""
    try:
        bench = _Bench.model_validate_json(content)
        if len({len(getattr(bench, name)) for name in DETAILS}) != 1:
            raise ResultError(f"vllm bench serve: {', '.join(DETAILS)} differ in length")
        return _window(bench, round_=round_, seed=seed, started_at=started_at, warmed=warmed)
    except ValidationError as error:
        raise ResultError(_said(error)) from None


class _Times(BaseModel):
    """When requests began, by the clock of time.perf_counter, and how long they took."""

    model_config = ConfigDict(extra="ignore", allow_inf_nan=False)

    start_times: list[float] = Field(min_length=1)
    latencies: list[Seconds]


def times(content: bytes) -> tuple[float, list[float]]:
    """When the first request began (time.perf_counter, on Linux the same for all processes of a machine), and the
    seconds of each. Raises ResultError."""
    try:
        found = _Times.model_validate_json(content)
    except ValidationError as error:
        raise ResultError(_said(error)) from None
    return min(found.start_times), found.latencies


def _said(error: ValidationError) -> str:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    hint = "; run it with --save-result --save-detailed" if where in DETAILS and first["type"] == "missing" else ""
    hint = "; run it with --max-concurrency" if where == "max_concurrency" else hint
    return f"vllm bench serve: {where + ': ' if where else ''}{first['msg']}{hint}"


def _window(bench: _Bench, *, round_: int, seed: int, started_at: float, warmed: bool) -> Window:
    answered = [
        (length, ttft, gaps, latency)
        for length, ttft, gaps, latency, error in zip(*(getattr(bench, name) for name in DETAILS), strict=True)
        if not error and length
    ]
    kinds = Counter(found[1] if (found := KIND.search(text)) else OTHER for text in bench.errors if text)
    if bench.failed > kinds.total():
        kinds[OTHER] += bench.failed - kinds.total()
    drafts = bench.spec_decode_num_drafts
    return Window(
        load=bench.max_concurrency,
        round=round_,
        seed=seed,
        started_at=started_at,
        seconds=bench.duration,
        warmed=warmed,
        tokens=bench.total_output_tokens,
        input_tokens=bench.total_input_tokens,
        requests=bench.completed,
        errors=dict(kinds),
        client=Latency(
            ttft=quantiles([ttft for _, ttft, _, _ in answered]),
            tpot=quantiles(
                [max(0.0, latency - ttft) / (length - 1) for length, ttft, _, latency in answered if length > 1]
            ),
            itl=quantiles([gap for _, _, gaps, _ in answered for gap in gaps]),
            e2e=quantiles([latency for _, _, _, latency in answered]),
        ),
        request_lengths=spread([(length - 1) / len(gaps) for length, _, gaps, _ in answered if length > 1 and gaps]),
        acceptance=None
        if drafts is None
        else Acceptance(
            drafts=drafts,
            drafted=bench.spec_decode_draft_tokens,
            accepted=bench.spec_decode_accepted_tokens,
            by_position=tuple(bench.spec_decode_per_position_acceptance_rates),
        ),
    )


def spread(values: Sequence[float]) -> Spread | None:
    """Of requests, linear between two; None of nothing."""
    if not values:
        return None
    p5, p50, p95 = np.percentile(values, (5, 50, 95))
    return Spread(p5=float(p5), p50=float(p50), p95=float(p95))


def quantiles(seconds: Sequence[Amount]) -> Quantiles | None:
    """Mean and quantiles in milliseconds, linear between two values; None of nothing."""
    if not seconds:
        return None
    p50, p95, p99 = np.percentile(seconds, (50, 95, 99)) * MILLISECONDS
    return Quantiles(mean=float(np.mean(seconds)) * MILLISECONDS, p50=float(p50), p95=float(p95), p99=float(p99))
