"""Models as files, of facts in tests/data/preflight: configuration, tokenizer and headers; weights are holes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from paceline_engine.preflight import config, layout
from paceline_engine.preflight.headers import Tensor

DATA = Path(__file__).parents[1] / "data" / "preflight"
TOKENS = 24


def facts(name: str, change: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """config.json of a public model, with fields put in place of its own."""
    found: dict[str, Any] = json.loads((DATA / "models" / f"{name}.json").read_text())["config"]
    return found | dict(change or {})


def lay(root: Path, models: Mapping[str, Mapping[str, Any]]) -> Path:
    """Folders `owner/name` below `root`, of a case's `models`."""
    for name, model in models.items():
        folder = root / name
        folder.mkdir(parents=True)
        for file, text in model.get("files", {}).items():
            (folder / file).write_text(text)
        if "of" in model:
            _lay(folder, model)
    return root


def _lay(folder: Path, model: Mapping[str, Any]) -> None:
    settings = facts(model["of"], model.get("change"))
    (folder / "config.json").write_text(json.dumps(settings))
    if tokens := model.get("tokens"):
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer(tokens, model.get("control", 0))))
    kind, file = model.get("weights", ""), folder / "model.safetensors"
    whole = tensors(config.of(facts(model["of"])))
    if kind == "whole":
        write(file, whole)
    elif kind == "cut":
        write(file, whole, missing=4096)
    elif kind == "half":
        write(file, [one for one in whole if ".layers." not in one.name or int(one.name.split(".")[2]) % 2 == 0])
    elif kind == "pointer":
        file.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")
    elif kind == "page":
        file.write_bytes(b"<!doctype html><html><body>403 Forbidden</body></html>")
    elif kind == "shard-missing":
        write(folder / "model-00001-of-00002.safetensors", whole[:4])
        names = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))


def tokenizer(family: str, control: int = 0) -> dict[str, Any]:
    """tokenizer.json of a small vocabulary; `control` numbers its control tokens' generation."""
    vocabulary = {f"{family}-{number}": number for number in range(TOKENS)}
    added = [{"id": TOKENS + number, "content": f"<{control}-{number}>"} for number in range(3)]
    return {"model": {"type": "BPE", "vocab": vocabulary, "merges": []}, "added_tokens": added}


def tensors(settings: config.Config) -> list[Tensor]:
    """Each tensor of a model by its name in a checkpoint."""
    found = []
    for one in layout.tensors(settings):
        if layout.shared(one.name):
            found.append(one)
        else:
            names = (f"model.layers.{number}.{one.name}" for number in range(one.copies))
            found += [Tensor(name, one.dtype, one.shape) for name in names]
    return found


def header(found: Iterable[Tensor]) -> tuple[bytes, int]:
    """(the file's first bytes, bytes of data that follow)."""
    entries, at = {}, 0
    for one in found:
        entries[one.name] = {"dtype": one.dtype, "shape": list(one.shape), "data_offsets": [at, at + one.bytes]}
        at += one.bytes
    text = json.dumps(entries).encode()
    return struct.pack("<Q", len(text)) + text, at


def write(file: Path, found: Iterable[Tensor], missing: int = 0) -> None:
    """A safetensors file whose data is a hole, `missing` bytes short."""
    first, data = header(found)
    with file.open("wb") as out:
        out.write(first)
        out.truncate(len(first) + data - missing)
