"""The programs of the test cluster: what is missing is built first."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hack.kubernetes.build import missing

SCRIPT = Path(__file__).resolve().parents[2] / "hack" / "kubernetes" / "build.py"


def ensure_built(*, node: bool = False) -> None:
    """Build what is missing: minutes the first time, nothing after. Raises RuntimeError where that fails."""
    if not missing(node=node):
        return
    command = [sys.executable, str(SCRIPT), *([] if node else ["--control-plane-only"])]
    if subprocess.run(command).returncode:
        raise RuntimeError(f"building the test cluster failed; to see why, run: {' '.join(command)}")
