"""The report's pictures: each a matplotlib figure, drawn without any global state; and as SVG text or PNG bytes."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from paceline_operator.experiment.consistency import positions, survival
from paceline_operator.experiment.report import Report
from paceline_operator.experiment.results import VariantResult
from paceline_operator.experiment.taint import Kind, Taint
from paceline_operator.experiment.verdict import Judge

COLOURS = ("#6b7280", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's palette, which colour-blind readers can tell apart; the baseline is grey."""
MARKS = ("o", "s", "^", "D", "v", "P", "X")
WIDTH, HEIGHT = 9.0, 3.6
"""Inches; 100 dots each in the page, 160 in a PNG."""
DOTS = 160
SHADE = "#f59e0b"
PALE_TEXT = "#4b5563"
SIDE = 1.07
"""Factor between the loads at which two variants' ratios are drawn, so that their intervals do not cover each other."""
LONGEST_BAR = 3.0
"""Factor beyond which an interval is cut off, with an arrow: it says nothing any more, and would press the others flat.
From ratio and 1, so that whether it crosses 1 is always seen."""
MOST_TOLD = 40
"""Windows of a variant beyond which their loads would run into each other; then only tainted ones are told."""
THOUSANDS = FuncFormatter(lambda value, _: f"{value:,.0f}")
STYLE: Any = {
    "font.size": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.8,
    "axes.edgecolor": "#9ca3af",
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "svg.hashsalt": "paceline",
}
"""The salt makes the same figures the same SVG."""


def draw(report: Report) -> dict[str, Figure]:
    """Name -> figure; a picture that has nothing to show is left out."""
    results = report.results
    with matplotlib.rc_context(STYLE):
        found = {
            "by-load": _by_load(report),
            "pareto": _pareto(report),
            "positions": _positions(results),
            "lengths": _lengths(results, report.taints),
        }
    return {name: figure for name, figure in found.items() if figure is not None}


def svg(figure: Figure) -> str:
    """As an element to put into a page."""
    with matplotlib.rc_context(STYLE):
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]


def png(figure: Figure) -> bytes:
    """As a file."""
    with matplotlib.rc_context(STYLE):
        content = io.BytesIO()
        figure.savefig(content, format="png", dpi=DOTS)
    return content.getvalue()


def _figure(height: float = HEIGHT) -> Figure:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def _looks(results: Sequence[VariantResult]) -> dict[str, tuple[str, str]]:
    return {result.variant: (COLOURS[at % len(COLOURS)], MARKS[at % len(MARKS)]) for at, result in enumerate(results)}


def _lines(axes: Axes, results: Sequence[VariantResult], points: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    for name, (colour, mark) in _looks(results).items():
        if points.get(name):
            x, y = zip(*points[name], strict=True)
            axes.plot(x, y, color=colour, marker=mark, markersize=5, linewidth=1.6, label=name, clip_on=False)


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=min(len(labels), 6))


def _by_load(report: Report) -> Figure | None:
    figures = report.figures
    rates = _points((one.variant, one.load, one.tokens_per_second) for one in figures)
    tpots = _points((one.variant, one.load, one.client.tpot.p50 if one.client.tpot else None) for one in figures)
    if not rates:
        return None
    figure = _figure()
    panels = figure.subplots(1, 3 if tpots else 2)
    loads = sorted({one.load for one in figures})
    _lines(panels[0], report.results, rates)
    panels[0].set(title="Throughput, tokens/s", yscale="log")
    panels[0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panels[0].yaxis.set_major_formatter(THOUSANDS)
    panels[0].yaxis.set_minor_locator(NullLocator())
    _ratios(panels[1], report)
    if tpots:
        _lines(panels[2], report.results, tpots)
        panels[2].set(title="TPOT p50, ms", ylim=(0, None))
    for axes in panels:
        axes.set(xlabel="requests in flight", xscale="log")
        axes.set_xticks(loads, [str(load) for load in loads])
        axes.xaxis.set_minor_locator(NullLocator())
    _legend(figure, panels[0])
    return figure


def _ratios(axes: Axes, report: Report) -> None:
    """Throughput over the baseline's with 95 % intervals, side by side; hollow = not judged."""
    axes.axhline(1, color=COLOURS[0], linewidth=1.6)
    variants = report.results[1:]
    looks = _looks(report.results)
    for one in report.comparisons:
        if one.judge is not Judge.THROUGHPUT:
            continue
        colour, mark = looks[one.variant]
        at = one.load * SIDE ** (
            next(at for at, result in enumerate(variants) if result.variant == one.variant) - (len(variants) - 1) / 2
        )
        low, high = one.interval or (one.ratio, one.ratio)
        least, most = min(one.ratio, 1) / LONGEST_BAR, max(one.ratio, 1) * LONGEST_BAR
        axes.vlines(at, max(low, least), min(high, most), color=colour, linewidth=1.4)
        for end, beyond, arrow in ((least, low < least, "v"), (most, high > most, "^")):
            if beyond:
                axes.plot(at, end, arrow, color=colour, markersize=4)
        axes.plot(at, one.ratio, mark, color=colour, markersize=5, markerfacecolor=colour if one.spread else "white")
    axes.set_title("Throughput × baseline, 95 %")


def _points(values: Iterable[tuple[str, float, float | None]]) -> dict[str, list[tuple[float, float]]]:
    """By variant, without what is not known."""
    found: dict[str, list[tuple[float, float]]] = {}
    for variant, x, y in values:
        if y is not None:
            found.setdefault(variant, []).append((x, y))
    return found


def _pareto(report: Report) -> Figure | None:
    """What a user gets against what a device gives: up and to the right is better at both."""
    places = {
        (one.variant, one.load): (1000 / one.client.tpot.p50, one.tokens_per_second / one.gpus)
        for one in report.figures
        if one.client.tpot and one.client.tpot.p50 and one.tokens_per_second
    }
    if not places:
        return None
    figure = _figure()
    axes = figure.subplots()
    _lines(axes, report.results, _points((variant, *at) for (variant, _), at in places.items()))
    for (_, load), at in places.items():
        axes.annotate(str(load), at, xytext=(5, 4), textcoords="offset points", fontsize=8, color=PALE_TEXT)
    axes.set(
        xlabel="tokens/s of one request (1 / TPOT p50)", ylabel="tokens/s of one device", xlim=(0, None), ylim=(0, None)
    )
    axes.yaxis.set_major_formatter(THOUSANDS)
    axes.set_title("Each point is a load, by its requests in flight; up and right is better")
    _legend(figure, axes)
    return figure


def _positions(results: Sequence[VariantResult]) -> Figure | None:
    tables = {result.variant: positions(survival(result)) for result in results}
    if not any(tables.values()):
        return None
    figure = _figure()
    left, right = figure.subplots(1, 2)
    _lines(left, results, {name: [(one.position, one.survival) for one in table] for name, table in tables.items()})
    left.set(title="Accepted up to the position", xlabel="position of the draft", ylim=(0, 1.05))
    _lines(
        right,
        results,
        {
            name: [(0.0, 1.0), *((float(one.position), one.per_computed) for one in table)]
            for name, table in tables.items()
            if table
        },
    )
    right.set(title="Tokens per computed position", xlabel="positions drafted", ylim=(0, 1.05))
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
    _legend(figure, left)
    return figure


def _lengths(results: Sequence[VariantResult], taints: Mapping[tuple[str, int, int], Sequence[Taint]]) -> Figure | None:
    """A row a variant: they did not run at the same time. Time is that of its own measurements, one after the other."""
    drafting = [result for result in results if result.lengths and result.windows]
    if not drafting:
        return None
    figure = _figure(1.0 + 1.5 * len(drafting))
    rows = figure.subplots(len(drafting), 1, squeeze=False, sharey=True)[:, 0]
    looks = _looks(results)
    highest = max(point.length for result in drafting for point in result.lengths)
    rows[0].set_ylim(1, 1 + 1.3 * max(highest - 1, 0.1))
    for axes, result in zip(rows, drafting, strict=True):
        colour, mark = looks[result.variant]
        begun = 0.0
        for window in sorted(result.windows, key=lambda one: one.started_at):
            points = [
                (begun + point.at - window.started_at, point.length)
                for point in result.lengths
                if window.started_at <= point.at <= window.ended_at
            ]
            if points:
                x, y = zip(*points, strict=True)
                axes.plot(x, y, color=colour, marker=mark, markersize=3, linewidth=1.3)
            kinds = {taint.kind for taint in taints[result.variant, window.load, window.round] if taint.excludes}
            if kinds:
                axes.axvspan(begun, begun + window.seconds, color=SHADE, alpha=0.25, linewidth=0)
            axes.axvline(begun, color="#d1d5db", linewidth=0.8)
            if kinds or len(result.windows) <= MOST_TOLD:
                _tell(axes, begun, window.load, kinds)
            begun += window.seconds
        axes.set_title(f"{result.variant}, k={result.k}")
        axes.set_xlim(0, begun)
    figure.supylabel("acceptance length", fontsize=9.5)
    rows[-1].set_xlabel("seconds of measurement; tainted windows are shaded")
    return figure


def _tell(axes: Axes, at: float, load: int, kinds: set[Kind]) -> None:
    text = "\n".join([f"{load}", *sorted(kinds)])
    axes.annotate(
        text, (at, 1), xycoords=("data", "axes fraction"), xytext=(3, -3), textcoords="offset points",
        fontsize=7.5, color=PALE_TEXT, va="top",
    )  # fmt: skip
