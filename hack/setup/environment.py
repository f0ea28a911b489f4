"""Make this clone's .venv: paceline, editable, with its development tools; nothing to do while its inputs stay."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

from hack.setup.common import COMPLETE, ROOT, cache_folder, lock, run, say

VENV = ROOT / ".venv"
CONSTRAINTS = ROOT / "hack" / "setup" / "constraints.txt"
OLDEST = (3, 11)


def digest(*parts: bytes) -> str:
    """Short hash of everything that decides what is installed."""
    return hashlib.sha256(b"|".join(parts)).hexdigest()[:16]


def usable() -> bool:
    """Is there an environment of the interpreter that runs this?"""
    python = VENV / "bin" / "python"
    if not python.exists():
        return False
    asked = subprocess.run([python, "-c", "import sys, pip; print(sys.version)"], capture_output=True, text=True)
    return asked.returncode == 0 and asked.stdout.strip() == sys.version


def main() -> None:
    """Install where something changed."""
    if sys.version_info < OLDEST:
        sys.exit(
            f"paceline needs Python 3.11 or later, and {sys.executable} is {sys.version.split()[0]}: make PYTHON=..."
        )
    wanted = digest((ROOT / "pyproject.toml").read_bytes(), CONSTRAINTS.read_bytes(), sys.version.encode())
    marker = VENV / COMPLETE
    if marker.exists() and marker.read_text() == wanted:
        return
    with lock(cache_folder() / f"clone-{digest(bytes(ROOT))}.lock"):
        if marker.exists() and marker.read_text() == wanted:
            return
        if not usable():
            run("environment: virtual environment", [sys.executable, "-m", "venv", "--clear", VENV])
        pip: list[str | Path] = [
            VENV / "bin" / "python",
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-input",
        ]
        named: list[str | Path] = ["--constraint", CONSTRAINTS, "--editable", f"{ROOT}[dev]"]
        run("environment: packages", [*pip, *named], count="^Collecting ")
        marker.write_text(wanted)
        say(f"environment: {VENV}")


if __name__ == "__main__":
    main()
