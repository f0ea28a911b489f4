"""One model as preflight knows it: what was read, and what could not be."""

from __future__ import annotations

from dataclasses import dataclass, field

from paceline_engine.preflight.config import Config
from paceline_engine.preflight.headers import Tensor
from paceline_engine.preflight.vocabulary import Vocabulary


@dataclass(frozen=True)
class Model:
    """Target or draft."""

    name: str
    """target or draft."""
    source: str
    config: Config | None = None
    vocabulary: Vocabulary | None = None
    tensors: tuple[Tensor, ...] = field(default=(), repr=False)
    """Of all its safetensors files; empty: none were there to read."""
    weight_bytes: int = 0
    """As the files have them; 0: not known."""
    problems: tuple[str, ...] = ()
    """Files that are there and are not what they should be."""
    doubt: str = ""
    """What may be wrong with its files, although vLLM can load such ones."""
    gone: str = ""
    """Why it cannot be had at all: no such repository, no token."""
    remedy: str = "correct the source, its revision or spec.model.tokenSecretName"
    """What to do where it is gone."""
    unread: str = ""
    """Why it could not be looked at: the hub does not answer, or this kind of source is not read ahead."""
