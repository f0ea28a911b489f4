"""Where an engine keeps what it compiles: on the volume, apart for each engine version and kind of GPU.

The pod's variables name a link in a folder of its own; where it leads is known only here, in the engine's image and on
its node. vLLM, inductor and Triton have keys of their own below it, which also tell GPUs apart.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from paceline_engine.pull.layout import COMPILED

PROC = Path("/proc/driver/nvidia/gpus")
"""Of the node's driver: also a container without a GPU sees it."""


def key(proc: Path = PROC) -> str:
    """`<vllm version>-<GPU>`; `unknown` where one cannot be told."""
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = "unknown"
    return re.sub(r"[^A-Za-z0-9.+]+", "-", f"{version}-{_gpu(proc)}").strip("-")


def _gpu(proc: Path) -> str:
    """Model of the node's GPUs."""
    try:
        texts = [path.read_text() for path in sorted(proc.glob("*/information"))]
    except OSError:
        texts = []
    models = {match[1].strip() for text in texts if (match := re.search(r"^Model:(.*)$", text, re.MULTILINE))}
    return "-".join(sorted(models)) or "unknown"


def link(root: Path, at: Path, proc: Path = PROC) -> Path:
    """Let `at` lead to this engine's folder below `root`; that folder."""
    target = root / COMPILED / key(proc)
    target.mkdir(parents=True, exist_ok=True)
    at.unlink(missing_ok=True)
    at.symlink_to(target)
    return target
