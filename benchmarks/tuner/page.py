"""The comparison as a table: on a terminal, and on docs/tuner.md between two marks, from the result file alone."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.table import Table

BEGIN, END = "<!-- comparison: written by `make bench-tuner` -->", "<!-- end of comparison -->"
OWN = "paceline"
COLUMNS = {
    "cases": "cases",
    "mean_regret_pct": "regret, mean %",
    "worst_regret_pct": "worst %",
    "own_mean_regret_pct": "paceline's there, mean %",
    "steady_mean_regret_pct": "steady, mean %",
    "within_2pct": "within 2 %",
    "gain_kept_pct": "gain kept %",
    "time_below_off_pct": "time below k=0 %",
    "changes_per_hour": "changes / h",
    "elsewhere_pct": "elsewhere %",
    "elsewhere_cost_pct": "its cost %",
}
GROUPS = {"tables": "Published tables", "grids": "H200 grids"}
DIGITS = {"cases": 0, "within_2pct": 0, "changes_per_hour": 0, "time_below_off_pct": 1, "elsewhere_pct": 1}
ONLY_GRIDS = frozenset({"gain_kept_pct"})


def is_constant(name: str) -> bool:
    """Whether a contestant is one k for ever."""
    return name[0] == "k" and name[1:].isdigit()


def cells(row: dict[str, Any], group: str) -> list[str]:
    """The figures of one contestant in one group."""
    values = {name: None if name in ONLY_GRIDS and group != "grids" else row[group][name] for name in COLUMNS}
    return ["–" if value is None else f"{value:.{DIGITS.get(name, 2)}f}" for name, value in values.items()]


def ordered(result: dict[str, Any], group: str) -> list[dict[str, Any]]:
    """Contestants that ran in `group`, the least mean regret first."""
    there = [row for row in result["contestants"] if row[group]["cases"]]
    return sorted(there, key=lambda row: row[group]["mean_regret_pct"])


def markdown(result: dict[str, Any]) -> str:
    """Both groups."""
    lines = [f"Means over the seeds 0 to {result['seeds'] - 1}. Written by `make bench-tuner`."]
    for group, title in GROUPS.items():
        names = [name for name in COLUMNS if group == "grids" or name not in ONLY_GRIDS]
        lines += ["", f"**{title}**", "", "| | " + " | ".join(COLUMNS[name] for name in names) + " |"]
        lines.append("|---|" + "---:|" * len(names))
        for row in ordered(result, group):
            label = f"[{row['label']}]({row['source']})" if row["source"] else row["label"]
            shown = dict(zip(COLUMNS, cells(row, group), strict=True))
            name = f"**{label}**" if row["name"] == OWN else label
            lines.append("| " + " | ".join([name, *(shown[column] for column in names)]) + " |")
    lines += ["", f"**{OWN}, table by table**", "", "| | cases | regret, mean % | worst % | all others, mean % |"]
    lines.append("|---|---:|---:|---:|---:|")
    for row in result["by_table"]:
        figures = (f"{row[name]:.2f}" for name in ("mean_regret_pct", "worst_regret_pct", "others_mean_regret_pct"))
        lines.append("| " + " | ".join([row["table"], str(row["cases"]), *figures]) + " |")
    return "\n".join(lines)


def write(path: Path, result: dict[str, Any]) -> None:
    """Put the table between the marks of the page. Raises ValueError where it has none."""
    text = path.read_text(encoding="utf-8")
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"{path}: no place for the table: it goes between '{BEGIN}' and '{END}', once each")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    path.write_text(f"{before}{BEGIN}\n{markdown(result)}\n{END}{after}", encoding="utf-8")


def table(result: dict[str, Any]) -> Table:
    """For a terminal."""
    shown = Table(title=f"{result['seeds']} seeds", show_lines=False)
    shown.add_column("")
    for name in COLUMNS.values():
        shown.add_column(name, justify="right")
    for group, title in GROUPS.items():
        shown.add_section()
        shown.add_row(f"[bold]{title}[/bold]")
        for row in ordered(result, group):
            style = "bold green" if row["name"] == OWN else ""
            shown.add_row(row["label"], *cells(row, group), style=style)
    return shown


def main() -> None:
    """Write the page anew from a result file: python -m benchmarks.tuner.page RESULT PAGE."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("result", type=Path)
    parser.add_argument("page", type=Path)
    asked = parser.parse_args()
    write(asked.page, json.loads(asked.result.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
