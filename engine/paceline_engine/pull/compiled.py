"""Where an engine keeps what it compiles: on the volume, apart for each engine version and kind of GPU.

Links in the pod's own home lead there. Which version and GPU it is, is known only here, in the engine's image and on
its node. Below them vLLM, inductor and Triton have keys of their own. What is about one node (which GPUs reach each
other) stays in the pod.
"""

from __future__ import annotations

import importlib.metadata
import re
from pathlib import Path

from paceline_engine.pull.layout import COMPILED

FOLDERS = ("vllm/torch_compile_cache", "vllm/deep_gemm", "torchinductor", "triton", ".cache/flashinfer")
"""Of an engine's home (resources/environment.py of the operator sets the variables), those that hold compiled code."""
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


def link(root: Path, home: Path, proc: Path = PROC) -> Path:
    """Let FOLDERS of `home` lead to this engine's below `root`; where they are."""
    kept = root / COMPILED / key(proc)
    for name in FOLDERS:
        target, at = kept / name, home / name
        target.mkdir(parents=True, exist_ok=True)
        at.parent.mkdir(parents=True, exist_ok=True)
        if not at.exists() or at.is_symlink():  # a folder that an engine filled already is its own
            at.unlink(missing_ok=True)
            at.symlink_to(target)
    return kept
