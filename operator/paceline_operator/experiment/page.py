"""The report as one HTML page that needs nothing beside it: text in, text out, everything from outside escaped."""

from __future__ import annotations

import html as markup
from collections.abc import Iterable, Iterator, Mapping, Sequence

from paceline_operator.experiment.cells import Head, cell, items, note, number, table
from paceline_operator.experiment.consistency import Consistency, positions, survival
from paceline_operator.experiment.figures import Figures
from paceline_operator.experiment.report import JUDGES, Report
from paceline_operator.experiment.results import Latency, Quantiles, VariantResult
from paceline_operator.experiment.taint import Taint
from paceline_operator.experiment.verdict import Basis, Comparison, Judge, Word

CLASSES = {Word.BETTER: "better", Word.WORSE: "worse", Word.NO_DIFFERENCE: "none"}
PICTURES = {
    "by-load": "Throughput and TPOT by load",
    "pareto": "What a user gets against what a device gives",
    "positions": "Acceptance by position",
    "lengths": "Acceptance length over time; where a window begins is its load, in requests in flight",
}
GIB = 2**30
SYNTHETIC, DUMMY = '"rejection_sample_method":"synthetic"', "--load-format dummy"
"""Arguments of vLLM by which drafts are accepted at given rates, and weights made up."""
CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#111827;max-width:1040px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0 0 .2rem}h2{font-size:1.15rem;margin:2.2rem 0 .5rem}
p.note,figcaption{color:#4b5563;font-size:.88rem}
ul.conclusions{background:#f3f4f6;border-left:4px solid #0072b2;padding:.8rem 1rem .8rem 2rem}
div.wide{overflow-x:auto}table{border-collapse:collapse;font-size:.86rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.28rem .55rem;border-bottom:1px solid #e5e7eb;text-align:right;vertical-align:top;white-space:nowrap}
th{color:#374151;border-bottom:2px solid #9ca3af}td:first-child,th:first-child,td.text,th.text{text-align:left}
td.text{white-space:normal;min-width:9rem}
h3{font-size:.95rem;margin:1rem 0 .2rem}.better{color:#00694c;font-weight:600}.worse{color:#b03a00;font-weight:600}
.none{color:#4b5563}figure{margin:1rem 0;overflow-x:auto}figure svg{width:100%;min-width:38rem;height:auto}
dl.methods{background:#f9fafb;
border:1px solid #e5e7eb;padding:.8rem 1rem;font-size:.86rem;overflow-wrap:anywhere}dt{font-weight:600;margin-top:.5rem}
dd{margin:0}code{font-size:.95em}
"""


def html(report: Report, pictures: Mapping[str, str]) -> str:
    """The page. `pictures` are SVG elements by name."""
    results = report.results
    name = markup.escape(results[0].experiment)
    parts = [
        f"<h1>{name}</h1>",
        note(_setting(results)),
        note(
            "Each variant against the baseline, by throughput and TPOT, at so many requests in flight. In brackets: "
            "the ratio, of throughput where nothing else is said, and what would have been shown in 80 % of such "
            "experiments."
        ),
        *map(note, _made_up(results)),
        f"<ul class=conclusions>{items(report.conclusions)}</ul>",
        "<h2>Against the baseline</h2>",
        _verdicts(report.comparisons),
        *(
            f"<figure>{pictures[one]}<figcaption>{title}</figcaption></figure>"
            for one, title in PICTURES.items()
            if one in pictures
        ),
        "<h2>Figures</h2>",
        _throughputs(report.figures, report.gpu_hour_price),
        "<h2>Latency, ms</h2>",
        _latencies(report.figures),
        *_drafts(results, report.consistency),
        *_between(report),
        *_doubts(results, report.taints),
        "<h2>Methods</h2>",
        _methods(results),
    ]
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{name}</title>"
        f"<meta name=viewport content='width=device-width'><style>{CSS}</style><body>{''.join(parts)}</body></html>\n"
    )


def _made_up(results: Sequence[VariantResult]) -> Iterator[str]:
    """What was not measured of a draft and a text."""
    arguments = " ".join(word for one in results for word in one.methods.arguments)
    if SYNTHETIC in arguments:
        yield "Acceptance is synthetic: which drafts are accepted was drawn, and tells nothing of the draft."
    if DUMMY in arguments:
        yield "Weights are dummies: what is written is no text."


def _setting(results: Sequence[VariantResult]) -> str:
    measured = [one for one in results if one.windows] or results
    gpus = ", ".join(sorted({one.methods.gpu for one in measured}))
    rounds = len({window.round for one in results for window in one.windows})
    loads = ", ".join(str(load) for load in sorted({window.load for one in results for window in one.windows}))
    return f"{gpus}; {len(results)} variants, {rounds} round{'s'[: rounds != 1]}; requests in flight: {loads or 'none'}"


def _verdicts(comparisons: Sequence[Comparison]) -> str:
    head: Head = ["variant", "load", ("text", "word"), "ratio", "95 %", "smallest effect", "rounds"]
    head = [*head, "raw ratio", "raw rounds"]
    tables = [
        f"<h3>{JUDGES[judge]}</h3>" + table(head, [_verdict(one) for one in sorted(found, key=_place)])
        for judge in Judge
        if (found := [one for one in comparisons if one.judge is judge])
    ]
    told: dict[str, dict[str, None]] = {}
    for one in comparisons:
        if not one.spread:
            told.setdefault(one.reason, {})[f"{one.variant} at {one.load}"] = None
    return "".join(
        [
            *tables,
            note(
                "Ratios to the baseline, geometric means over rounds: above 1 is better for throughput, below 1 for "
                "TPOT. “Better” and “worse” hold for all comparisons of this report together: without any true "
                "difference, at most 5 % of such experiments say either (Holm). The intervals are of each ratio alone. "
                "Smallest effect: what would have been shown in 80 % of such experiments; less may have gone unseen. "
                "Ratios marked * have no round with clean windows of both, and are never called better or worse."
            ),
            *(note(f"{', '.join(places)}: {reason}.") for reason, places in told.items()),
        ]
    )


def _place(one: Comparison) -> tuple[str, int]:
    return one.variant, one.load


def _verdict(one: Comparison) -> list[str]:
    return [
        cell(one.variant),
        cell(one.load),
        f"<td class='text {CLASSES[one.word]}'>{one.word}</td>",
        cell(f"{one.ratio:.3f}{'' if one.basis is Basis.CLEAN else '*'}"),
        cell(f"{one.interval[0]:.3f} to {_ratio(one.interval[1])}" if one.interval else "-"),
        cell("-" if one.smallest_percent is None else _percent(one.smallest_percent)),
        cell(one.rounds),
        cell(f"{one.raw_ratio:.3f}"),
        cell(one.raw_rounds),
    ]


def _ratio(value: float) -> str:
    return f"{value:.3f}" if value < 100 else "> 100"


def _percent(value: float) -> str:
    return f"{value:.1f} %" if value < 1000 else "> 1000 %"


def _throughputs(figures: Sequence[Figures], price: float | None) -> str:
    head: Head = [
        "variant",
        "load",
        "clean",
        "tok/s",
        "raw tok/s",
        "of a device",
        "failed",
        "no fault, s",
        "prefix hits",
    ]
    head = [*head, "GPU GiB", *([] if price is None else ["cost of 10⁶"])]
    rows = [
        [
            cell(one.variant),
            cell(one.load),
            cell(f"{one.clean_windows} of {one.windows}"),
            number(one.tokens_per_second, 1),
            number(one.raw_tokens_per_second, 1),
            number(one.tokens_per_second / one.gpus if one.tokens_per_second else None, 1),
            cell(f"{one.failed} of {one.failed + one.requests}"),
            cell(f"{one.seconds_without_fault:.0f}" + (f", {one.faults} faults" if one.faults else "")),
            cell("-" if one.prefix_cache_hit_rate is None else f"{one.prefix_cache_hit_rate:.1%}"),
            number(None if one.memory_bytes is None else one.memory_bytes / GIB, 1),
            *([] if price is None else [number(one.cost(price), 3)]),
        ]
        for one in figures
    ]
    said = (
        "Tokens per second over the clean windows, raw: over all; where none is clean, both are over all. "
        "Failed: requests. No fault: seconds measured before a fault, or without one."
    )
    priced = "" if price is None else f" Cost of a million output tokens, at {price:g} for a GPU-hour."
    return table(head, rows) + note(said + priced)


def _latencies(figures: Sequence[Figures]) -> str:
    names = {"ttft": "TTFT", "tpot": "TPOT", "itl": "ITL", "e2e": "whole request"}
    sides: list[tuple[str, Figures, Latency]] = [
        (side, one, latency)
        for one in figures
        for side, latency in (("client", one.client), ("server", one.server))
        if latency != Latency()
    ]
    rows = [
        [cell(one.variant), cell(one.load), cell(side), *(_quantiles(getattr(latency, name)) for name in names)]
        for side, one, latency in sides
    ]
    head = ["variant", "load", "side", *(f"{title} p50 / p95 / p99" for title in names.values())]
    return table(head, rows) + note(
        "Medians over windows. ITL does not judge speculation: accepted tokens arrive together, so the time between "
        "two arrivals stays that of a step while the time per token falls. TPOT and throughput judge. "
        "The server's are read off vLLM's histograms, within whose buckets they are guessed: the first of TPOT is 0 to "
        "10 ms."
    )


def _quantiles(found: Quantiles | None) -> str:
    return cell("-" if found is None else f"{found.p50:.1f} / {found.p95:.1f} / {found.p99:.1f}")


def _drafts(results: Sequence[VariantResult], consistency: Sequence[Consistency]) -> Iterable[str]:
    if consistency:
        yield "<h2>Drafts, by consistency</h2>"
        yield table(
            ["variant", "k", "efficiency", "length: median", "lowest", "highest", "readings", "firing rate"],
            [
                [
                    cell(one.variant),
                    cell(one.k),
                    cell(f"{one.efficiency:.0%}"),
                    *(number(value, 2) for value in (one.median_length, one.min_length, one.max_length)),
                    cell(one.points),
                    cell("-" if one.firing_rate is None else f"{one.firing_rate:.0%}"),
                ]
                for one in consistency
            ],
        )
        yield note(
            "Efficiency: median acceptance length over the k + 1 positions that a step computes. "
            "Firing rate: share of a request's decode steps that had a draft."
        )
    for result in results:
        if rows := positions(survival(result)):
            yield f"<h2>{markup.escape(result.variant)} by position</h2>"
            yield table(
                [
                    "position",
                    "accepted up to here",
                    "of those before",
                    "adds tokens",
                    "length",
                    "per computed position",
                ],
                [
                    [
                        cell(row.position),
                        *(
                            number(value, 3)
                            for value in (row.survival, row.conditional, row.marginal, row.length, row.per_computed)
                        ),
                    ]
                    for row in rows
                ],
            )


def _between(report: Report) -> Iterable[str]:
    """Of those that drafted: verification that adapts gains from requests that are not alike."""
    drafting = {one.variant for one in report.results if one.k}
    found = [(one, one.request_lengths) for one in report.figures if one.variant in drafting and one.request_lengths]
    if found:
        yield "<h2>Between requests</h2>"
        yield table(
            ["variant", "load", "tokens a step: 5 %", "median", "95 %"],
            [
                [cell(one.variant), cell(one.load), *(number(value, 2) for value in (of.p5, of.p50, of.p95))]
                for one, of in found
            ],
        )
        yield note(
            "So many tokens a step had 5, 50 and 95 % of the requests at most, as the client saw them arrive: steps "
            "without a draft count, and two that arrive together are one. Adaptive verification gains from requests "
            "that are not alike; where these are near each other, there is nothing to trim."
        )


def _doubts(results: Sequence[VariantResult], taints: Mapping[tuple[str, int, int], Sequence[Taint]]) -> Iterable[str]:
    rows = [
        [
            cell(variant),
            cell(load),
            cell(round_ + 1),
            cell("left out" if taint.excludes else "kept"),
            f"<td class=text>{markup.escape(taint.message)}</td>",
        ]
        for (variant, load, round_), found in taints.items()
        for taint in found
    ]
    if rows:
        yield "<h2>Tainted windows</h2>"
        yield table(["variant", "load", "round", "clean figures", ("text", "why")], rows)
    missing = [f"{one.variant}: {text}" for one in results for text in one.missing]
    if missing:
        yield "<h2>Missing</h2>"
        yield f"<ul>{items(missing)}</ul>"


def _methods(results: Sequence[VariantResult]) -> str:
    return f"<dl class=methods>{''.join(_method(one) for one in results)}</dl>"


def _method(one: VariantResult) -> str:
    seeds = sorted({window.seed for window in one.windows})
    lines = {
        "change": f"{one.parent or '-'} with {_pairs(one.change)}" if one.change else "",
        "k": str(one.k),
        "devices": f"{one.gpus} × {one.methods.gpu}",
        "versions": _pairs(one.methods.versions),
        "digests": _pairs(one.methods.digests),
        "arguments": " ".join(one.methods.arguments),
        "load": _pairs(one.methods.load),
        "seeds": ", ".join(str(seed) for seed in seeds),
    }
    told = "".join(f"<dd>{title}: <code>{markup.escape(text)}</code></dd>" for title, text in lines.items() if text)
    return f"<dt>{markup.escape(one.variant)}</dt>{told}"


def _pairs(found: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in found.items())
