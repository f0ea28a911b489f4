"""Preflight on an H200: driver and kernel, then the memory budget against what engines of vLLM then take.

Usage: preflight.py OUT_FOLDER [--seconds 540]

Engines boot one after another, alone on GPU 0: without a drafter, and with all ks of the ladder, of the share of memory
that vLLM takes by default. Writes OUT_FOLDER/preflight.json as soon as each is known, and the engines' logs beside it.
`PACELINE_BENCH=cpu` rehearses it with toys.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from scale import SCALE

from engine import NO_MULTICAST, shape
from paceline_engine.preflight import gather, machine, memory, models, tiny
from paceline_engine.preflight.asked import Asked, Source
from paceline_engine.preflight.check import Check, timed
from paceline_operator.resources.capture import close_sizes

LINES = {
    "weights_gib": r"Model loading took ([\d.]+) GiB",
    "kv_tokens": r"KV cache size: ([\d,]+) tokens",
    "kv_gib": r"(?:Available KV cache memory: |Explicitly set \()([\d.]+)",
    "graphs_gib": r"Graph capturing finished in .* took ([\d.]+) GiB",
    "share_before_graphs": r"current --gpu-memory-utilization=([\d.]+) is equivalent",
    "share_after_graphs": r"is equivalent to --gpu-memory-utilization=([\d.]+)",
    "graphs_estimated_by_vllm_gib": r"CUDA graph pool memory: .*?, ([\d.]+) GiB \(estimated\)",
    "full_graphs": r"Capturing CUDA graphs \(FULL\).*?(\d+)/\1 ",
    "piecewise_graphs": r"Capturing CUDA graphs \(PIECEWISE\).*?(\d+)/\1 ",
}
"""What vLLM's log says of an engine."""


def asked(work: Path, *, drafter: bool) -> Asked:
    """Of one engine, with the operator's graph sizes."""
    ladder = list(SCALE.ladder) if drafter else [0]
    return Asked(
        target=Source(source=shape(work / "target", SCALE.layers)),
        draft=Source(source=shape(work / "draft", 1)) if drafter and not SCALE.cpu else None,
        method=("ngram" if SCALE.cpu else "eagle") if drafter else "",
        max_tokens=max(ladder),
        ladder=ladder,
        capture_sizes=[] if SCALE.cpu else list(close_sizes(ladder, SCALE.seqs)),
        gpu=not SCALE.cpu,
        dtype="float32" if SCALE.cpu else "",
        max_model_len=2048,
        max_num_seqs=SCALE.seqs,
        max_num_batched_tokens=8192,
    )


def boot(engine: Asked, log: Path, seconds: float) -> str:
    """Boot an engine of it in a process of its own and end it; its log."""
    arguments = tiny.arguments(engine, Path(engine.target.source), Path(engine.draft.source) if engine.draft else None)
    arguments |= {"max_model_len": 2048, "max_num_seqs": SCALE.seqs, "max_num_batched_tokens": 8192}
    arguments |= {"enable_prefix_caching": False}
    arguments.pop("kv_cache_memory_bytes")
    if engine.gpu:
        arguments |= {"gpu_memory_utilization": engine.memory_utilization_percent / 100}
        arguments["compilation_config"] = {
            "cudagraph_capture_sizes": engine.capture_sizes,
            "max_cudagraph_capture_size": engine.capture_sizes[-1],
        }
    if engine.method:
        # One batch size for each k, the rest for the last: every k of the ladder has graphs.
        rows = [[n + 1, n + 1, k] for n, k in enumerate(engine.ladder[:-1])]
        last = [len(engine.ladder), SCALE.seqs, engine.ladder[-1]]
        arguments["speculative_config"]["num_speculative_tokens_per_batch_size"] = [*rows, last]
    work = Path(tempfile.mkdtemp(prefix="preflight-"))
    (work / "arguments.json").write_text(json.dumps(arguments))
    quiet = NO_MULTICAST | {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0"}
    quiet |= {"VLLM_CACHE_ROOT": str(work / "cache"), "VLLM_CPU_KVCACHE_SPACE": "1"}
    with log.open("wb") as out:
        command = [sys.executable, "-m", "paceline_engine.preflight.tiny", str(work)]
        subprocess.run(
            command, env=os.environ | quiet, stdout=out, stderr=subprocess.STDOUT, timeout=seconds, check=True
        )
    return log.read_text(errors="replace").replace("\r", "\n")


def measured(log: str) -> dict[str, float]:
    """Figures of a log; those that it lacks are left out."""
    found = {name: re.findall(pattern, log) for name, pattern in LINES.items()}
    # Graphs are captured twice: a few of them first, to see what they take.
    last = {name: float(values[-1].replace(",", "")) for name, values in found.items() if values}
    return last | {name: max(map(float, found[name])) for name in ("full_graphs", "piecewise_graphs") if found[name]}


def compared(engine: Asked, work: Path, log: str, gpu_bytes: int) -> dict[str, Any]:
    """Budget and engine side by side; ratios are computed / measured. Tokens are those of the memory that it had."""
    target = gather.read("target", engine.target.source, gather.Folder(work / "target"))
    draft = gather.read("draft", engine.draft.source, gather.Folder(work / "draft")) if engine.draft else None
    budget = memory.budget(engine, target, draft)
    assert budget is not None
    took = measured(log)
    left = gpu_bytes * engine.memory_utilization_percent / 100 - budget.fixed
    said = {"kv_gib": left / memory.GIB} if engine.gpu else {}
    said |= {
        "weights_gib": ((budget.weights or 0) + (budget.draft_weights or 0)) / memory.GIB,
        "kv_tokens": budget.blocks(int(took.get("kv_gib", 0.0) * memory.GIB)) * budget.block_size,
        "graphs_gib": budget.graphs / memory.GIB,
        "full_graphs": memory.full_graphs(engine),
        "piecewise_graphs": len(engine.capture_sizes),
        "activations_gib": budget.activations / memory.GIB,
    }
    ratios = {name: round(said[name] / took[name], 4) for name in said if took.get(name)}
    return {"computed": said, "measured": took, "ratio": ratios, "arithmetic": budget.steps}


def main() -> None:
    """All of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=540.0)
    options = parser.parse_args()
    out, until = options.out, time.monotonic() + options.seconds
    out.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix="preflight-models-"))
    engines = {"off": asked(work, drafter=False), "main": asked(work, drafter=True)}
    result: dict[str, Any] = {"engines": {}, "limits": {"weights and KV": "within 5 %", "graphs": "stated"}}

    def save() -> None:
        (out / "preflight.json").write_text(json.dumps(result, indent=1))

    found = machine.look(engines["main"])
    result["machine"] = dataclasses.asdict(found)
    checks: list[Check] = list(machine.checks(engines["main"], found))
    target, draft = (
        gather.model(name, source, os.environ) if source else None
        for name, source in (("target", engines["main"].target), ("draft", engines["main"].draft))
    )
    assert target is not None
    gpu = min((one.bytes for one in found.gpus), default=None)
    assert gpu is not None, "engines boot on a GPU"
    checks += timed(models.checks(engines["main"], target, draft, gpu), time.monotonic)
    result["checks"] = [check.model_dump(mode="json") for check in checks]
    save()
    for name, engine in engines.items():
        left = until - time.monotonic()
        print(f"engine {name} boots, {left:.0f} s left", flush=True)
        try:
            result["engines"][name] = compared(
                engine, work, boot(engine, out / f"preflight_{name}.log", max(1.0, left)), gpu
            )
        except (subprocess.SubprocessError, OSError) as error:
            result["engines"][name] = {"failure": f"{type(error).__name__}: {error}"[-600:]}
        print(json.dumps(result["engines"][name].get("ratio", result["engines"][name])), flush=True)
        save()
    if until - time.monotonic() > 60:
        configurations = [
            json.loads((work / one / "config.json").read_text()) for one in ("target", "draft") if (work / one).is_dir()
        ]
        pair = configurations if len(configurations) == 2 else [*configurations, None]
        checks += timed(iter([tiny.check(engines["main"], *pair)]), time.monotonic)
        result["checks"] = [check.model_dump(mode="json") for check in checks]
        save()
    print(json.dumps([(one["name"], one["level"]) for one in result["checks"]]), flush=True)


if __name__ == "__main__":
    main()
