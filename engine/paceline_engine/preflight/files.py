"""Checks of what was read: is it there, is it whole, have the weights the shape that the configuration says. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count

from paceline_engine.preflight.check import Check, failed, passed, skipped, warned
from paceline_engine.preflight.model import Model

_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


def checks(target: Model, draft: Model | None) -> Iterator[Check]:
    """`config` and `weights` of each."""
    for model in (target, draft):
        if model is not None:
            yield _config(model)
            if model.config is not None:
                yield _weights(model)


def _config(model: Model) -> Check:
    name, where = f"{model.name}-config", f"{model.name} {model.source}"
    if model.gone:
        return failed(name, f"{where}: {model.gone}", model.remedy)
    if model.unread:
        return skipped(name, f"{where}: {model.unread}")
    broken = [problem for problem in model.problems if problem.startswith("config.json")]
    if broken or model.config is None:
        text = broken[0] if broken else "there is no config.json"
        return failed(
            name, f"{where}: {text}", "name a folder or repository that holds a model in transformers' format"
        )
    config = model.config
    kind = config.architecture or config.type or "no architecture"
    if not (config.architectures and config.hidden and config.vocabulary):
        reason = f"{where}: config.json has no architectures, hidden_size or vocab_size"
        return warned(name, reason, "look whether this is the repository of the model itself, not of an adapter")
    return passed(name, f"{where}: {kind}, {config.layers} layers of {config.hidden}, {config.vocabulary} tokens")


def _weights(model: Model) -> Check:
    name, where = f"{model.name}-weights", f"{model.name} {model.source}"
    broken = [problem for problem in model.problems if not problem.startswith(("config.json", "tokenizer"))]
    if broken:
        return failed(name, f"{where}: {'; '.join(broken)}"[:2000], "bring the files anew, whole")
    if not model.tensors:
        return skipped(
            name, f"{where}: no headers of safetensors files to look at; sizes are computed from config.json"
        )
    if wrong := _shape(model):
        return failed(name, f"{where}: {wrong}", "the weights are of another model than config.json: bring both anew")
    if model.doubt:
        return warned(name, f"{where}: {model.doubt}", "look whether the files are whole and of one revision")
    return passed(name, f"{where}: {len(model.tensors)} tensors, {model.weight_bytes / 2**30:.2f} GiB")


def _shape(model: Model) -> str:
    """What headers and config.json disagree about; empty: nothing."""
    config = model.config
    assert config is not None
    embeddings = [one for one in model.tensors if one.name.endswith("embed_tokens.weight") and len(one.shape) == 2]
    for one in embeddings[:1]:
        if one.shape[0] < config.vocabulary:
            return f"{one.name} has {one.shape[0]} rows, vocab_size is {config.vocabulary}"
        if config.hidden and one.shape[1] != config.hidden and "eagle" not in config.architecture.lower():
            return f"{one.name} has {one.shape[1]} columns, hidden_size is {config.hidden}"
    seen = {int(found[1]) for one in model.tensors if (found := _LAYER.search(one.name)) and len(found[1]) < 6}
    missing = config.layers - sum(layer < config.layers for layer in seen) if seen and embeddings else 0
    if missing:
        first = next(layer for layer in count() if layer not in seen)
        return f"{missing} of {config.layers} layers have no weights, the first is layer {first}"
    return ""
