"""What numbers of this engine hold for: its GPU, its graphs and the digests of the weights it serves.

A digest is of what tells weights apart without reading all of them: of each weight file its size and three samples.
Two checkpoints of one size differ nearly everywhere, so the samples differ too; it is a name, not a proof.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline_engine.protocol import Identity
from paceline_engine.worker import Findings

SAMPLE_BYTES = 64 * 1024
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
"""By preference: the first pattern that matches anything is what an engine loads."""
MOST_FILES = 2048


def identity(config: Any, found: Findings) -> Identity:
    """Of the engine with vLLM's `config`, whose workers told `found`. Each part by itself, empty where not known."""
    target, draft = config.model_config, getattr(config.speculative_config, "draft_model_config", None)
    own_draft = draft is not None and getattr(draft, "model", None) != target.model
    return Identity(
        gpu=found.device,
        tensor_parallel_size=int(getattr(config.parallel_config, "tensor_parallel_size", 1)),
        graph_mode=found.graph_mode,
        max_capture_size=found.max_capture_size,
        model_digest=_or_empty(lambda: digest(folder(target))),
        draft_digest=_or_empty(lambda: digest(folder(draft))) if own_draft else "",
    )


def folder(model: Any) -> Path:
    """Where the files of a vLLM model configuration lie. Raises where they are nowhere on this machine."""
    name = str(model.model)
    if (path := Path(name)).exists():
        return path
    from huggingface_hub import try_to_load_from_cache

    file = try_to_load_from_cache(name, "config.json", revision=getattr(model, "revision", None))
    if not isinstance(file, str):
        raise FileNotFoundError(f"{name} is no folder, and in no cache")
    return Path(file).parent


def digest(path: Path) -> str:
    """`sha256:...` of the weights in a folder, or of one file. Raises OSError, or ValueError where there are none."""
    files = [path] if path.is_file() else _weights(path)
    if not 0 < len(files) <= MOST_FILES:
        raise ValueError(f"{path} has {len(files)} weight files")
    whole = hashlib.sha256()
    for file in files:
        with file.open("rb") as opened:
            size = opened.seek(0, 2)
            whole.update(size.to_bytes(8, "big"))
            for start in (0, max(0, size // 2 - SAMPLE_BYTES // 2), max(0, size - SAMPLE_BYTES)):
                opened.seek(start)
                whole.update(opened.read(SAMPLE_BYTES))
    return f"sha256:{whole.hexdigest()}"


def _weights(path: Path) -> list[Path]:
    found = (sorted(path.glob(pattern)) for pattern in WEIGHTS)
    return next((files for files in found if files), [])


def _or_empty(look: Callable[[], str]) -> str:
    try:
        return look()
    except Exception:  # weights that are read from a bucket, or a layout of another version: not known
        return ""
