"""The comparison as a picture: regret of each contestant, and one run over time. Text stays text in the SVG."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.tuner.page import GROUPS, is_constant, ordered

OWN, OTHER, CONSTANT = "#0b7a4b", "#6b7f99", "#c3cbd6"
LINES = {"paceline": OWN, "vllm_documented": "#c26a1b", "sglang_ema": "#7a4fa3"}
LARGEST_SHOWN_PCT = 30.0


def draw(path: Path, result: dict[str, Any]) -> None:
    """Write the SVG; the same result gives the same bytes."""
    mpl.use("svg")
    with mpl.rc_context(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "paceline",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    ):
        figure = plt.figure(figsize=(10.5, 8.2), layout="constrained")
        grid = figure.add_gridspec(2, 2, height_ratios=[1.25, 1])
        for column, (group, title) in enumerate(GROUPS.items()):
            _bars(figure.add_subplot(grid[0, column]), result, group, title)
        _over_time(figure.add_subplot(grid[1, :]), result)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
        plt.close(figure)


def _bars(axes: Axes, result: dict[str, Any], group: str, title: str) -> None:
    rows = list(reversed(ordered(result, group)))
    for place, row in enumerate(rows):
        mean, worst = row[group]["mean_regret_pct"], row[group]["worst_regret_pct"]
        constant = row["name"] == "hindsight" or is_constant(row["name"])
        color = OWN if row["name"] == "paceline" else CONSTANT if constant else OTHER
        axes.barh(place, min(mean, LARGEST_SHOWN_PCT), color=color, height=0.7)
        axes.annotate(
            f"{mean:.1f} (worst {worst:.0f})",
            (min(mean, LARGEST_SHOWN_PCT), place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=7.5,
        )
    axes.set_yticks(range(len(rows)), [_label(row, group, rows) for row in rows])
    axes.set_xlim(0, LARGEST_SHOWN_PCT * 1.15)
    axes.set_xlabel(f"tokens lost against the best k at every load, % (bars end at {LARGEST_SHOWN_PCT:.0f})")
    axes.set_title(title, loc="left", fontweight="bold")


def _label(row: dict[str, Any], group: str, rows: list[dict[str, Any]]) -> str:
    cases, most = row[group]["cases"], max(other[group]["cases"] for other in rows)
    name = str(row["label"]).replace(" of each course, with", ",\nwith")
    return name if cases == most else f"{name} ({cases} of {most} cases)"


def _over_time(axes: Axes, result: dict[str, Any]) -> None:
    told = result["over_time"]
    labels = {row["name"]: row["label"] for row in result["contestants"]}
    start, workload = 0.0, told["visits"][0]["workload"]
    lowest = 10 * (min(min(values) for values in told["lines"].values()) // 10) - 10
    for index, visit in enumerate(told["visits"]):
        end = start + visit["minutes"]
        if index % 2:
            axes.axvspan(start, end, color="#f3f5f8", zorder=0)
        axes.text(
            (start + end) / 2, 103.5, f"{visit['load']}\nk={visit['best_k']}", ha="center", va="bottom", fontsize=7.5
        )
        if visit["workload"] != workload:
            axes.axvline(start, color="#333333", linestyle=":", linewidth=1)
            axes.text(start, lowest + 1, f" {workload} | {visit['workload']}", ha="center", fontsize=8)
            workload = visit["workload"]
        start = end
    for name, values in told["lines"].items():
        axes.step(range(len(values)), values, where="post", color=LINES[name], label=labels[name], linewidth=1.3)
    axes.set_xlim(0, start)
    axes.set_ylim(lowest, 103)
    axes.set_ylabel("goodput, % of the oracle's")
    axes.set_xlabel(f"minutes ({told['course'][0]}; above: requests, and the best k there)")
    axes.legend(loc="lower right", frameon=False, fontsize=8)


def main() -> None:
    """Draw anew from a result file: python -m benchmarks.tuner.picture RESULT PICTURE."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("picture", type=Path)
    asked = parser.parse_args()
    draw(asked.picture, json.loads(asked.result.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
