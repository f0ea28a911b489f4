"""Which windows do not show what they were run for, and why. Pure.

Raw figures keep every window; clean ones leave out those with a taint that excludes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from paceline_operator.experiment.load import TALKS
from paceline_operator.experiment.results import VariantResult, Window

LOG_SECONDS = 1.0
"""The log's times are whole seconds, and a kernel is told after it was compiled."""
HIT_RATE_POINTS = 0.05
"""A difference in prefix-cache hit rate that counts. Hits shorten prefill alone, and TTFT shows it first."""


class Kind(StrEnum):
    """What happened to a window."""

    JIT = "jit"
    COLD = "cold"
    PREFIX = "prefix"
    FAILED = "failed"


@dataclass(frozen=True)
class Taint:
    """One reason to doubt a window."""

    kind: Kind
    message: str
    excludes: bool = True
    """False: it happened, to the baseline's window of the same round and load as well."""


def clean(taints: Iterable[Taint]) -> bool:
    """Whether the window counts."""
    return not any(taint.excludes for taint in taints)


def of_all(results: Sequence[VariantResult]) -> Mapping[tuple[str, int, int], tuple[Taint, ...]]:
    """(variant, load, round) -> taints of that window; the baseline's result is the first."""
    bases = {(window.load, window.round): window for window in results[0].windows} if results else {}
    return {
        (result.variant, window.load, window.round): _of_window(result, window, bases.get((window.load, window.round)))
        for result in results
        for window in result.windows
    }


def _of_window(result: VariantResult, window: Window, base: Window | None) -> tuple[Taint, ...]:
    return (*_jit(result, window), *_cold(window), *_prefix(result, window, base), *_failed(window))


def _jit(result: VariantResult, window: Window) -> Iterable[Taint]:
    there = [one for one in result.warnings if window.started_at <= one.at <= window.ended_at + LOG_SECONDS]
    if there:
        kernels = ", ".join(sorted({one.kernel for one in there}))
        ttft = window.client.ttft
        shown = f"; its TTFT (p95 {ttft.p95 / 1000:.2f} s) is that of the compiler" if ttft else ""
        yield Taint(Kind.JIT, f"compiled while it served: {kernels}{shown}")


def _cold(window: Window) -> Iterable[Taint]:
    if not window.warmed:
        yield Taint(Kind.COLD, "the first of its shape in this engine: nothing was warmed up")


def _failed(window: Window) -> Iterable[Taint]:
    if window.fault_seconds is not None:
        yield Taint(Kind.FAILED, f"the engine failed after {window.fault_seconds:.0f} s")
    if failed := sum(window.errors.values()):
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(window.errors.items()))
        yield Taint(Kind.FAILED, f"{failed} of {failed + window.requests} requests failed: {kinds}")


def _prefix(result: VariantResult, window: Window, base: Window | None) -> Iterable[Taint]:
    """Against the first window of the same round: an engine that has seen the prompts answers from its cache. Talks
    have in them what is cached."""
    rate = window.prefix_cache_hit_rate
    if rate is None:
        return
    visit = [one for one in result.windows if one.round == window.round]
    first = min(visit, key=lambda one: one.started_at, default=window).prefix_cache_hit_rate or 0.0
    base_rate = base.prefix_cache_hit_rate if base else None
    apart = base_rate is not None and abs(rate - base_rate) > HIT_RATE_POINTS
    grew = rate - first > HIT_RATE_POINTS and TALKS not in result.methods.load
    if grew or apart:
        of_base = "" if base_rate is None else f", the baseline's is {base_rate:.1%}"
        yield Taint(Kind.PREFIX, f"prefix cache hit rate {rate:.1%}, the visit began with {first:.1%}{of_base}", apart)
