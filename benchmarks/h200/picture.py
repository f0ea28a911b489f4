"""Draw the closed loop: tokens per second by load of the tuner, each fixed k and no drafter, over the best fixed k.

Usage: python benchmarks/h200/picture.py (needs the `bench` extra).
"""

from __future__ import annotations

import json
from typing import Any

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "paceline"
import matplotlib.pyplot as plt  # noqa: E402
from page import PAGE, PICTURE, RESULTS  # noqa: E402


def draw(found: dict[str, Any]) -> None:
    """One line each, as a share of the best fixed k of that load; tokens per second under the axis."""
    by_load = found["by_load"]
    loads = list(by_load)
    best = {load: max(at["fixed_tok_s"].values()) for load, at in by_load.items()}
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    for i, k in enumerate(by_load[loads[0]]["fixed_tok_s"]):
        shares = [by_load[load]["fixed_tok_s"][k] / best[load] for load in loads]
        axes.plot(loads, shares, color=mpl.colormaps["viridis"](i / 7), lw=1, marker=".", label=f"k = {k} pinned")
    for name, color, style in (("off_tok_s", "black", ":"), ("down", "crimson", "-")):
        there = [load for load in loads if by_load[load].get(name)]
        values = [by_load[load][name]["tok_s"] if name == "down" else by_load[load][name] for load in there]
        shares = [value / best[load] for value, load in zip(values, there, strict=True)]
        label = "the tuner" if name == "down" else "no drafter"
        axes.plot(there, shares, color=color, ls=style, lw=2.5, marker="o", label=label)
    axes.set_xticks(range(len(loads)), [f"{load}\n{best[load]:,.0f}/s" for load in loads])
    axes.set_xlabel("requests at once; below, tokens per second of the best fixed k")
    axes.set_ylabel("tokens per second over the best fixed k")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(ncols=2, fontsize=8)
    figure.savefig(PAGE.parent / PICTURE, metadata={"Date": None})


if __name__ == "__main__":
    draw(json.loads((RESULTS / "closed_loop.json").read_text()))
