"""Experiments of the operator on an H200: a sweep of k, adaptive verification x graph mode; the same code as anywhere.

Usage: experiment.py OUT_FOLDER {k-sweep,verification} [--seconds 530] [--rounds 8]

Runs `paceline experiment run --local --keep` over the 8B shape of these scripts, for at most `--seconds`, and leaves
its results in OUT_FOLDER/NAME. With that folder in place it goes on with what is missing: eight rounds take several
runs. `paceline experiment report OUT_FOLDER/NAME` judges them, on any machine. Acceptance is synthetic.
`PACELINE_BENCH=cpu` rehearses k-sweep with a toy.

All engines boot at once; those with adaptive verification measure their step costs one after the other, when the others
have booted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import yaml
from scale import SCALE

from engine import NO_MULTICAST, shape
from paceline_operator.clock import SystemClock
from paceline_operator.local.mistake import UserError
from paceline_operator.local.trial import files
from paceline_operator.local.trial.run import Options, Run

HERE = Path(__file__).resolve().parent
API = "paceline.dev/v1alpha1"
KV_GIB = 6
"""Of each of five engines: 128 requests of 352 tokens take 5.8."""
PROMPT_TOKENS, REPLY_TOKENS = 96, 256
SEQS = 128
QUIET = "BENCH_QUIET"
READY = "Application startup complete"
LOADS = {"k-sweep": [8, 64], "verification": [32, 128]}
POLL_SECONDS = 1.0


def speculation(k: int, verification: bool) -> dict[str, Any]:
    """Drafts of an EAGLE with synthetic acceptance; of ngram on a CPU."""
    if SCALE.cpu:
        return {"method": "ngram", "maxTokens": k, "ngram": {"promptLookupMin": 2, "promptLookupMax": 4}}
    return {
        "method": "eagle",
        "maxTokens": k,
        "draft": {"source": "/models/draft"},
        "adaptiveVerification": "Enabled" if verification else "Disabled",
        "extraConfig": {
            "rejection_sample_method": "synthetic",
            "synthetic_acceptance_rates": list(SCALE.rates[:k]),
        },
    }


def documents(name: str, rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Serving and experiment."""
    sweep = name == "k-sweep"
    engine: dict[str, Any] = {
        "device": "CPU" if SCALE.cpu else "GPU",
        "maxModelLen": 1024,
        "maxNumSeqs": min(SEQS, SCALE.seqs),
        "maxNumBatchedTokens": 512 if SCALE.cpu else 8192,
        "enablePrefixCaching": False,
        "extraArgs": ["--load-format", "dummy"],
        "startupTimeoutSeconds": 400,
    }
    if not SCALE.cpu:
        engine |= {"dtype": "bfloat16", "gpuMemoryUtilizationPercent": 10}
        engine["extraArgs"] += ["--kv-cache-memory-bytes", str(KV_GIB * 2**30)]
    ks = [k for k in SCALE.ladder if k in ((1, 5, 7) if not SCALE.cpu else (1,))]
    variants: list[dict[str, Any]] = [{"name": f"k{k}", "change": {"speculation": speculation(k, False)}} for k in ks]
    if not sweep:
        off = {"change": {"adaptiveVerification": "Disabled"}}
        variants = [
            {"name": "unverified", **off},
            {"name": "decode-graphs", "change": {"cudagraphMode": "FULL_DECODE_ONLY"}},
            {"name": "decode-graphs-unverified", "parent": "decode-graphs", **off},
        ]
    serving = {
        "apiVersion": API,
        "kind": "SpeculativeServing",
        "metadata": {"name": "shape"},
        "spec": {
            "model": {"source": "/models/target"},
            "engine": engine,
            "speculation": speculation(SCALE.static_k if sweep else SCALE.ladder[0], verification=not sweep),
        },
    }
    experiment = {
        "apiVersion": API,
        "kind": "SpeculationExperiment",
        "metadata": {"name": name},
        "spec": {
            "servingRef": {"name": "shape"},
            "variants": variants,
            "load": {
                "concurrency": list(SCALE.loads) if SCALE.cpu else LOADS[name],
                "prompts": {"random": {"inputTokens": PROMPT_TOKENS}},
                "outputTokens": 32 if SCALE.cpu else REPLY_TOKENS,
            },
            "duration": {"seconds": 10},
            "repetitions": rounds,
            "budgetGpuMinutes": 1000,
        },
    }
    return serving, experiment


def tokenizer(folder: Path) -> None:
    """A word for each token, so that lengths come out exactly: the shapes have no tokenizer of their own."""
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"w{at}": at for at in range(3, SCALE.vocabulary)}
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json_of(whole))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<s>", "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json_of(named | {"unk_token": "<unk>", "model_max_length": 8192}))


def json_of(value: Any) -> str:
    """Without spaces."""
    return json.dumps(value, separators=(",", ":"))


def program(work: Path) -> Path:
    """`vllm` as a Python program, for a machine that has the package on a path and no command.

    A general plugin beside it starts the estimator of adaptive verification where a trained draft would put it, and
    lets step costs be measured in quiet (quiet.py).
    """
    if SCALE.cpu:
        return Path(os.environ.get("PACELINE_ENGINE") or HERE.parents[1] / ".venv" / "engine" / "bin" / "vllm")
    plugin = work / "plugin"
    info = plugin / "quiet-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (plugin / "paceline_bench_quiet.py").write_text((HERE / "quiet.py").read_text())
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: quiet\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[vllm.general_plugins]\nquiet = paceline_bench_quiet:register\n")
    paths = [str(plugin), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    text = (
        f"#!{sys.executable}\nimport os, sys\npaths = {paths!r}\n"
        "os.environ['PYTHONPATH'] = os.pathsep.join(paths)\nsys.path[:0] = paths\n"
        "if __name__ == '__main__':\n    from vllm.entrypoints.cli.main import main\n    sys.exit(main())\n"
    )
    file = work / "vllm"
    file.write_text(text)
    file.chmod(0o755)
    return file


class Lines:
    """A view for logs."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = ("", 0.0)

    def say(self, text: str) -> None:
        """With the seconds since the start."""
        print(f"[{time.monotonic() - self._start:6.1f}] {text}", flush=True)

    def starting(self, engine: str, seconds: float, line: str) -> None:
        """A line every ten seconds is enough for five engines."""
        if time.monotonic() - self._last[1] > 10 and line != self._last[0]:
            self._last = line, time.monotonic()
            self.say(f"{engine}: {line}")

    def update(self, record: Any) -> None:
        """Nothing here is updated."""

    def close(self) -> None:
        """Nothing to leave."""


def watch(sign: Path, logs: list[Path]) -> None:
    """Give the sign once all these engines have booted."""
    while not sign.exists():
        if all(log.exists() and READY in log.read_text(errors="replace") for log in logs):
            sign.touch()
        time.sleep(POLL_SECONDS)


def main() -> int:
    """One experiment, for as long as there is time."""
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("name", choices=["k-sweep", "verification"])
    parser.add_argument("--seconds", type=float, default=530.0)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--work", type=Path, default=Path("/tmp/paceline-experiment"), help="models and compiled code")
    options = parser.parse_args()
    work, out = options.work, (options.out / options.name).resolve()
    models = work / "cache" / "models"
    for name, layers in (("target", SCALE.layers), ("draft", 1)):
        shape(models / name, layers)
        tokenizer(models / name)
    sign = work / "quiet"
    sign.unlink(missing_ok=True)
    os.environ |= NO_MULTICAST | {
        "PACELINE_ENGINE": str(program(work)), "PACELINE_CACHE": str(work / "cache"), QUIET: str(sign),
        "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0",
        "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CACHE_ROOT": str(work / "compiled"), "TORCHINDUCTOR_COMPILE_THREADS": "4",
    }  # fmt: skip
    file = work / f"{options.name}.yaml"
    file.write_text(yaml.safe_dump_all(documents(options.name, options.rounds), sort_keys=False))
    view = Lines()
    try:
        run = Run(Options(out, keep=True), files.read([file]), view, SystemClock())
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    loud = [one.variant for one in run.results if options.name == "k-sweep" or "unverified" in one.variant]
    logs = [out / files.LOGS / f"{name}-1.log" for name in {*loud, "baseline"}]
    for log in logs:
        log.unlink(missing_ok=True)
    threading.Thread(target=watch, args=(sign, logs), daemon=True).start()
    threading.Timer(options.seconds, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    whole = asyncio.run(run.run())
    for result in run.results:
        for text in result.missing:
            print(f"missing of {result.variant}: {text}", flush=True)
    os._exit(0 if whole else 1)  # the timer is not waited for


if __name__ == "__main__":
    sys.exit(main())
