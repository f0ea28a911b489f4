"""What each variant gave at each load, over its windows: raw over all, the rest over the clean ones. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import geometric_mean, median

from paceline_operator.experiment.results import Latency, Quantiles, Spread, VariantResult, Window
from paceline_operator.experiment.taint import Taint, clean, of_all

SECONDS_PER_HOUR = 3600
MILLION = 1_000_000


@dataclass(frozen=True)
class Figures:
    """One variant at one load. Where no window is clean, everything is over all windows, and `clean_windows` is 0."""

    variant: str
    load: int
    gpus: int
    windows: int
    clean_windows: int
    raw_tokens_per_second: float | None
    tokens_per_second: float | None
    """Geometric mean over windows, as the ratios are."""
    client: Latency
    """Each quantile is the median of that of the windows."""
    server: Latency
    request_lengths: Spread | None
    """As the latencies."""
    prefix_cache_hit_rate: float | None
    memory_bytes: int | None
    requests: int
    failed: int
    """Requests, over all windows."""
    seconds_without_fault: float
    """Over all windows."""
    faults: int

    def cost(self, gpu_hour_price: float) -> float | None:
        """Of a million output tokens at this load, in the price's currency."""
        if not self.tokens_per_second:
            return None
        return MILLION / self.tokens_per_second * self.gpus * gpu_hour_price / SECONDS_PER_HOUR


def figures(results: Sequence[VariantResult]) -> tuple[Figures, ...]:
    """Every variant at every load that it was measured at."""
    taints = of_all(results)
    return tuple(
        _figures(result, load, [window for window in result.windows if window.load == load], taints)
        for result in results
        for load in sorted({window.load for window in result.windows})
    )


def _figures(
    result: VariantResult, load: int, windows: Sequence[Window], taints: Mapping[tuple[str, int, int], Iterable[Taint]]
) -> Figures:
    good = [window for window in windows if clean(taints[result.variant, load, window.round])]
    used = good or windows
    rates = [window.prefix_cache_hit_rate for window in used if window.prefix_cache_hit_rate is not None]
    return Figures(
        result.variant,
        load,
        result.gpus,
        len(windows),
        len(good),
        _rate(windows),
        _rate(used),
        _latency([window.client for window in used]),
        _latency([window.server for window in used]),
        _spread([window.request_lengths for window in used if window.request_lengths is not None]),
        median(rates) if rates else None,
        max((window.memory_bytes for window in windows if window.memory_bytes is not None), default=None),
        sum(window.requests for window in windows),
        sum(sum(window.errors.values()) for window in windows),
        sum(window.seconds if window.fault_seconds is None else window.fault_seconds for window in windows),
        sum(window.fault_seconds is not None for window in windows),
    )


def _rate(windows: Sequence[Window]) -> float | None:
    rates = [window.tokens_per_second for window in windows if window.tokens]
    return geometric_mean(rates) if rates else None


def _latency(sides: Sequence[Latency]) -> Latency:
    of: Mapping[str, Callable[[Latency], Quantiles | None]] = {
        "ttft": lambda side: side.ttft,
        "tpot": lambda side: side.tpot,
        "itl": lambda side: side.itl,
        "e2e": lambda side: side.e2e,
    }
    return Latency(
        **{name: _quantiles([one for side in sides if (one := get(side)) is not None]) for name, get in of.items()}
    )


def _spread(found: Sequence[Spread]) -> Spread | None:
    if not found:
        return None
    return Spread(
        p5=median(one.p5 for one in found), p50=median(one.p50 for one in found), p95=median(one.p95 for one in found)
    )


def _quantiles(found: Sequence[Quantiles]) -> Quantiles | None:
    if not found:
        return None
    return Quantiles(
        mean=median(one.mean for one in found),
        p50=median(one.p50 for one in found),
        p95=median(one.p95 for one in found),
        p99=median(one.p99 for one in found),
    )
