"""The command line of whatever generates files of this repository: write them, or fail where one differs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main(about: str | None, files: Callable[[], Mapping[str, str]], source: str) -> int:
    """Write or check `files` (path in the repository -> text), made from `source`; answers the exit status."""
    parser = argparse.ArgumentParser(description=about)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--write", action="store_true", help="write the files")
    action.add_argument("--check", action="store_true", help="fail where a file differs")
    write = parser.parse_args().write
    stale = False
    for name, text in files().items():
        path = ROOT / name
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if write:
            path.write_text(text, encoding="utf-8")
        else:
            print(f"{name} is not what the {source} says: run `make generate`", file=sys.stderr)
            stale = True
    return int(stale)
