"""A tiny model through the same path: the same architectures, method, graphs and quantization with few layers and dummy
weights, in a real engine, before the large download.

`python3 -m paceline_engine.preflight.tiny FOLDER` is the child process; it prints one line of JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline_engine.preflight import weights
from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import Check, failed, passed, skipped

NAME = "tiny-model"
LAYERS = 8
"""Enough for a head that reads an early, a middle and a late layer."""
EXPERTS = 16
SECONDS = 420.0
TOKENS = 24
CUT = ("layer_types", "layers_block_type", "mlp_layer_types", "compress_ratios")
"""Fields with an entry for each layer."""
MARK = "paceline-tiny:"


def shrunk(config: Mapping[str, Any], layers: int = LAYERS) -> dict[str, Any]:
    """config.json of the same kind of model with few layers and experts. Pure."""
    made = dict(config)
    if isinstance(config.get("text_config"), Mapping):
        made["text_config"] = shrunk(config["text_config"], layers)
    before = config.get("num_hidden_layers")
    if type(before) is not int or before <= layers:
        return made
    made["num_hidden_layers"] = layers
    for name in CUT:
        if isinstance(config.get(name), list):
            made[name] = config[name][:layers]
    for name in ("n_routed_experts", "num_experts", "num_local_experts"):
        if type(config.get(name)) is int and config[name] > EXPERTS:
            made[name] = EXPERTS
    for name in ("n_group", "topk_group"):
        if type(config.get(name)) is int:
            made[name] = 1
    for name in ("num_experts_per_tok", "experts_per_token"):
        if type(config.get(name)) is int:
            made[name] = min(config[name], 4)
    return made


def arguments(asked: Asked, target: Path, draft: Path | None) -> dict[str, Any]:
    """Of vllm.LLM. Pure."""
    seqs = min(asked.max_num_seqs, 8)
    widest = (max(asked.ladder, default=0) + 1) * seqs
    found: dict[str, Any] = {
        "model": str(target),
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "max_model_len": min(asked.max_model_len or 1024, 1024),
        "max_num_seqs": seqs,
        "max_num_batched_tokens": max(1024, widest),
        "enforce_eager": not asked.capture_sizes,
        "kv_cache_memory_bytes": 2**28,
    }
    if asked.gpu:
        found |= {"gpu_memory_utilization": 0.3}
    if asked.capture_sizes:
        sizes = [size for size in asked.capture_sizes if size <= widest] or asked.capture_sizes[:1]
        found["compilation_config"] = {"cudagraph_capture_sizes": sizes}
    given = {"dtype": asked.dtype, "quantization": asked.target.quantization, "kv_cache_dtype": asked.kv_cache_dtype}
    found |= {name: value for name, value in given.items() if value}
    if asked.method:
        spec: dict[str, Any] = {"method": asked.method, "num_speculative_tokens": asked.max_tokens}
        if asked.method in ("ngram", "ngram_gpu"):
            spec |= {"prompt_lookup_min": 2, "prompt_lookup_max": 4}
        found["speculative_config"] = spec | ({"model": str(draft)} if draft else {})
    return found


def check(asked: Asked, target: Mapping[str, Any] | None, draft: Mapping[str, Any] | None) -> Check:
    """Boot it and let it write a few tokens. `target`, `draft`: their config.json."""
    if not isinstance(target, Mapping) or (draft is not None and not isinstance(draft, Mapping)):
        return skipped(NAME, "a config.json was not read")
    with tempfile.TemporaryDirectory(prefix="paceline-tiny-") as name:
        work = Path(name)
        folders = [_written(work / "target", shrunk(target))]
        if draft is not None and asked.method not in ("mtp", ""):
            few = draft if asked.method in weights.HEADS else shrunk(draft, 2)
            folders.append(_written(work / "draft", _fitted(few, shrunk(target))))
        options = arguments(asked, folders[0], folders[1] if len(folders) > 1 else None)
        (work / "arguments.json").write_text(json.dumps(options))
        return _outcome(work)


def _fitted(draft: Mapping[str, Any], target: Mapping[str, Any]) -> dict[str, Any]:
    """A head that names layers of its target reads other ones of the small target."""
    made, said = dict(draft), target.get("num_hidden_layers")
    layers = said if type(said) is int and said > 0 else LAYERS
    for holder in ("eagle_config", "dflash_config"):
        if isinstance(draft.get(holder), Mapping):
            made[holder] = {key: _within(value, layers) for key, value in draft[holder].items()}
    for key in ("eagle_aux_hidden_state_layer_ids", "target_layer_ids", "dspark_target_layer_ids"):
        if key in draft:
            made[key] = _within(draft[key], layers)
    return made | ({"num_target_layers": layers} if "num_target_layers" in draft else {})


def _within(value: Any, layers: int) -> Any:
    """A list of layers, spread over the small target."""
    if not (isinstance(value, list) and value and all(type(one) is int for one in value)):
        return value
    step = max(1, (layers - 1) // len(value))
    return [min(layers - 1, 1 + index * step) for index in range(len(value))]


def _written(folder: Path, config: Mapping[str, Any]) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _outcome(work: Path) -> Check:
    command = [sys.executable, "-m", __name__, str(work)]
    remedy = "look at what vLLM says; the same would happen with the whole model, after its download"
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return failed(NAME, f"it wrote no token within {SECONDS:.0f} s", remedy)
    line = next((one for one in reversed(done.stdout.splitlines()) if one.startswith(MARK)), "")
    if done.returncode or not line:
        said = [one for one in done.stderr.splitlines() if "Error" in one] or done.stderr.splitlines() or ["nothing"]
        return failed(NAME, f"exit status {done.returncode}: {said[-1].strip()[:800]}", remedy)
    found = json.loads(line.removeprefix(MARK))
    return passed(NAME, f"{found['layers']} layers with dummy weights wrote {found['tokens']} tokens")


def main(folder: Path) -> int:
    """The child process."""
    from vllm import LLM, SamplingParams

    engine = LLM(**json.loads((folder / "arguments.json").read_text()))
    limit = SamplingParams(max_tokens=TOKENS, ignore_eos=True, detokenize=False, temperature=0.0)
    prompts: Any = [{"prompt_token_ids": [5, 6, 7, 8] * 4}, {"prompt_token_ids": [9] * 12}]
    written = sum(len(one.outputs[0].token_ids) for one in engine.generate(prompts, limit, use_tqdm=False))
    layers = engine.llm_engine.vllm_config.model_config.hf_text_config.num_hidden_layers
    print(MARK + json.dumps({"tokens": written, "layers": layers}), flush=True)
    return 0 if written == 2 * TOKENS else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
