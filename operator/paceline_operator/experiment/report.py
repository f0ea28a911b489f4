"""The report of an experiment, all from its result files: what is said of it, and as JSON and CSV. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from paceline_operator.experiment.consistency import Consistency, positions, ranked, survival
from paceline_operator.experiment.figures import Figures, figures
from paceline_operator.experiment.results import Latency, VariantResult
from paceline_operator.experiment.taint import Taint, clean, of_all
from paceline_operator.experiment.verdict import LARGE_PERCENT, Comparison, Judge, Word, compare

DIGITS = 6
JUDGES = {Judge.THROUGHPUT: "throughput", Judge.TPOT: "TPOT"}


@dataclass(frozen=True)
class Report:
    """Everything that is said of an experiment."""

    results: tuple[VariantResult, ...]
    """The baseline first."""
    comparisons: tuple[Comparison, ...]
    figures: tuple[Figures, ...]
    consistency: tuple[Consistency, ...]
    taints: Mapping[tuple[str, int, int], tuple[Taint, ...]]
    gpu_hour_price: float | None = None

    @property
    def conclusions(self) -> tuple[str, ...]:
        """A sentence for each variant."""
        return tuple(_conclusion(result.variant, self.comparisons) for result in self.results[1:])


def build(results: Sequence[VariantResult], gpu_hour_price: float | None = None) -> Report:
    """Judge what was measured."""
    found = tuple(results)
    return Report(found, compare(found), figures(found), ranked(found), of_all(found), gpu_hour_price)


def _conclusion(variant: str, comparisons: Iterable[Comparison]) -> str:
    """By both judges together, or by one of them alone where the other shows no difference."""
    by_load: dict[int, dict[Judge, Comparison]] = {}
    for one in comparisons:
        if one.variant == variant:
            by_load.setdefault(one.load, {})[one.judge] = one
    if not by_load:
        return f"{variant}: not compared, no load was measured with the baseline"
    places: dict[str, list[str]] = {}
    for load, found in sorted(by_load.items()):
        shown = [one for one in found.values() if one.word is not Word.NO_DIFFERENCE]
        alone = f" by {JUDGES[shown[0].judge]} alone" if len(shown) == 1 and len(found) > 1 else ""
        words = " and ".join(dict.fromkeys(one.word for one in shown)) or Word.NO_DIFFERENCE
        first = shown[0] if shown else next(iter(found.values()))
        seen = "" if shown else _visible(first)
        what = "" if first.judge is Judge.THROUGHPUT else f"{JUDGES[first.judge]} "
        places.setdefault(words + alone, []).append(f"{load} ({what}{first.ratio:.2f}×{seen})")
    judged = any(one.spread for found in by_load.values() for one in found.values())
    why = "" if judged else "; it takes two rounds with clean windows to show one"
    return f"{variant}: " + "; ".join(f"{words} at {', '.join(found)}" for words, found in places.items()) + why


def _visible(one: Comparison) -> str:
    """What would have been shown in 80 % of such experiments; nothing of what was not judged."""
    if one.smallest_percent is None:
        return ""
    if one.smallest_percent > LARGE_PERCENT:
        return "; only a multiple would be"
    return f"; one of {one.smallest_percent:.1f} % would be"


def as_json(report: Report) -> dict[str, Any]:
    """The report for programs; latencies in milliseconds, rates in tokens per second, intervals of 95 %."""
    return {
        "experiment": report.results[0].experiment,
        "conclusions": list(report.conclusions),
        "comparisons": [
            {**_plain(one), "interval": list(one.interval) if one.interval else None} for one in report.comparisons
        ],
        "figures": [
            {
                **_plain(one),
                "client": one.client.model_dump(exclude_none=True),
                "server": one.server.model_dump(exclude_none=True),
                "request_lengths": one.request_lengths.model_dump() if one.request_lengths else None,
                "cost_per_million_tokens": _cost(one, report),
            }
            for one in report.figures
        ],
        "consistency": [{**_plain(one), "efficiency": one.efficiency} for one in report.consistency],
        "positions": {one.variant: [_plain(row) for row in positions(survival(one))] for one in report.results},
        "taints": [
            {"variant": variant, "load": load, "round": round_, **_plain(taint)}
            for (variant, load, round_), taints in report.taints.items()
            for taint in taints
        ],
        "missing": {one.variant: list(one.missing) for one in report.results if one.missing},
        "methods": {one.variant: one.methods.model_dump() for one in report.results},
    }


def _plain(value: Any) -> dict[str, Any]:
    return asdict(value)


def _cost(one: Figures, report: Report) -> float | None:
    return None if report.gpu_hour_price is None else one.cost(report.gpu_hour_price)


def windows_csv(report: Report) -> str:
    """A row for each window."""
    rows: list[dict[str, Any]] = []
    for result in report.results:
        for one in sorted(result.windows, key=lambda window: window.started_at):
            taints = report.taints[result.variant, one.load, one.round]
            rows.append(
                {
                    "variant": result.variant,
                    "k": result.k,
                    "load": one.load,
                    "round": one.round,
                    "seed": one.seed,
                    "started_at": one.started_at,
                    "seconds": one.seconds,
                    "tokens": one.tokens,
                    "tokens_per_second": round(one.tokens_per_second, DIGITS),
                    "requests": one.requests,
                    "failed": sum(one.errors.values()),
                    **_columns("client", one.client),
                    **_columns("server", one.server),
                    **{
                        f"request_length_{name}": round(getattr(one.request_lengths, name), DIGITS)
                        if one.request_lengths
                        else ""
                        for name in ("p5", "p50", "p95")
                    },
                    "drafts": one.acceptance.drafts if one.acceptance else "",
                    "accepted": one.acceptance.accepted if one.acceptance else "",
                    "firing_rate": "" if one.firing_rate is None else round(one.firing_rate, DIGITS),
                    "prefix_cache_hit_rate": "" if one.prefix_cache_hit_rate is None else one.prefix_cache_hit_rate,
                    "memory_bytes": one.memory_bytes or "",
                    "clean": clean(taints),
                    "taints": "; ".join(taint.message for taint in taints),
                }
            )
    return _csv(rows)


def comparisons_csv(report: Report) -> str:
    """A row for each comparison."""
    rows: list[dict[str, Any]] = []
    for one in report.comparisons:
        low, high = one.interval or ("", "")
        rows.append(
            {
                "variant": one.variant,
                "load": one.load,
                "judge": one.judge,
                "word": one.word,
                "ratio": one.ratio,
                "low": low,
                "high": high,
                "basis": one.basis,
                "rounds": one.rounds,
                "raw_ratio": one.raw_ratio,
                "raw_rounds": one.raw_rounds,
                "p_value": "" if one.p_value is None else one.p_value,
                "smallest_percent": "" if one.smallest_percent is None else one.smallest_percent,
                "reason": one.reason,
            }
        )
    return _csv(rows)


def _columns(side: str, latency: Latency) -> dict[str, float | str]:
    return {
        f"{side}_{name}_{quantile}_ms": round(getattr(found, quantile), DIGITS) if found else ""
        for name in ("ttft", "tpot", "itl", "e2e")
        for found in (getattr(latency, name),)
        for quantile in ("p50", "p95", "p99")
    }


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()
