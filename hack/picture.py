"""Draw the README's picture of the demo: a captured terminal (text with ANSI colours) → SVG.

With `make demo` in a tmux window of 120 x 48:
`tmux capture-pane -pe | .venv/bin/python -m hack.picture docs/images/demo.svg`.
"""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

TITLE = "make demo"


def draw(captured: str) -> str:
    """SVG of `captured`, without blank lines at its end and without fonts from elsewhere."""
    screen = Text.from_ansi(captured.rstrip())
    width = max((line.cell_len for line in screen.split()), default=1)
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(screen, no_wrap=True, crop=False)
    return re.sub(r"@font-face\s*\{[^}]*\}", "", console.export_svg(title=TITLE))


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(draw(sys.stdin.read()), encoding="utf-8")
