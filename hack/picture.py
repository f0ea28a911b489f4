"""Draw the README's picture of the demo: text with ANSI colours, as a terminal shows it → SVG.

The report that a run prints last, in a file: `.venv/bin/python -m rich.markdown --width 120 --force-color FILE |
.venv/bin/python -m hack.picture docs/images/demo.svg`; the live screen: `tmux capture-pane -pe` in place of the first.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console, RenderableType
from rich.text import Text

TITLE = "make demo"


def draw(captured: str) -> str:
    """SVG of `captured`, without blank lines at its end and without fonts from elsewhere."""
    screen = Text.from_ansi(captured.rstrip())
    return svg(screen, max((line.cell_len for line in screen.split()), default=1), TITLE)


def svg(shown: RenderableType, width: int, title: str) -> str:
    """SVG of what a terminal of this width shows, without fonts from elsewhere."""
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(shown, crop=False)
    return re.sub(r"@font-face\s*\{[^}]*\}", "", console.export_svg(title=title))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(sys.stdin.read()), encoding="utf-8")
