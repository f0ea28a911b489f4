"""Write a report: the page, its pictures as files, JSON and CSV."""

from __future__ import annotations

import json
from pathlib import Path

from paceline_operator.experiment import page, pictures
from paceline_operator.experiment.report import Report, as_json, comparisons_csv, windows_csv


def write(report: Report, folder: Path) -> tuple[Path, ...]:
    """All files of the report, each whole or not at all, the page first. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = pictures.draw(report)
    contents = {
        "report.html": page.html(report, {name: pictures.svg(figure) for name, figure in drawn.items()}).encode(),
        "report.json": (json.dumps(as_json(report), indent=1, allow_nan=False) + "\n").encode(),
        "windows.csv": windows_csv(report).encode(),
        "comparisons.csv": comparisons_csv(report).encode(),
        **{f"{name}.png": pictures.png(figure) for name, figure in drawn.items()},
    }
    for name, content in contents.items():
        part = folder / f".{name}.part"
        part.write_bytes(content)
        part.replace(folder / name)
    return tuple(folder / name for name in contents)
