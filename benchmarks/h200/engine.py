"""A real vLLM on a GPU with the plugin in it, its step loop driven by hand under a closed loop of requests.

The model has the shape of an 8B Llama with a one-layer EAGLE draft and dummy weights (step time does not depend on the
weights); acceptance is vLLM's synthetic rejection sampling at RATES.
"""

from __future__ import annotations

import gc
import json
import os
import random
import secrets
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

LADDER = [7, 5, 4, 3, 2, 1, 0]
RATES = [0.78, 0.60, 0.46, 0.36, 0.28, 0.22, 0.17]
"""Share of drafts accepted up to each position."""
SEQS = int(os.environ.get("SEQS", "256"))
PORT = 8765
TOKEN = secrets.token_hex(32)


def shape(folder: Path, layers: int) -> str:
    """Write the configuration of a Llama of 8B's width."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": layers, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
        "vocab_size": 128256, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


def call(method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """One request to the control port; raises on any status but 200."""
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}{path}",
        json.dumps(body).encode() if body else None,
        method=method,
        headers={"Authorization": f"Bearer {TOKEN}"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


class Engine:
    """The engine in this process, its step loop driven by hand, and the plugin inside it."""

    def __init__(self) -> None:
        work = Path(tempfile.mkdtemp())
        (work / "token").mkdir()
        (work / "token" / "current").write_text(TOKEN)
        os.environ.update(
            VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1",
            PACELINE_TOKEN_DIR=str(work / "token"), PACELINE_CONTROL_PORT=str(PORT), PACELINE_CONTROL_HOST="127.0.0.1",
        )  # fmt: skip
        from vllm import LLM

        sizes = [1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224, 256]
        capture = sorted({n * (k + 1) for k in LADDER for n in sizes if n <= SEQS})
        schedule = [[i + 1, i + 1, k] for i, k in enumerate(LADDER[:-1])] + [[len(LADDER), SEQS, LADDER[-1]]]
        start = time.time()
        self.llm = LLM(
            model=shape(work / "target", 32), load_format="dummy", skip_tokenizer_init=True, max_model_len=2048,
            max_num_seqs=SEQS, gpu_memory_utilization=0.85, enable_prefix_caching=False, max_num_batched_tokens=8192,
            disable_log_stats=False, cudagraph_metrics=True,
            compilation_config={"cudagraph_capture_sizes": capture, "max_cudagraph_capture_size": capture[-1]},
            speculative_config={
                "method": "eagle", "model": shape(work / "draft", 1), "num_speculative_tokens": LADDER[0],
                "num_speculative_tokens_per_batch_size": schedule, "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": RATES,
            },
        )  # fmt: skip
        self.boot_seconds = time.time() - start
        self.engine: Any = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.generation = 0
        self.serial = 0
        self.length: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.finished = self.failed = 0
        self.modes: dict[str, int] = {}
        self._watch_graphs()
        gc.collect()
        gc.freeze()

    def _watch_graphs(self) -> None:
        inner = self.scheduler.update_from_output

        def update(output: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
            graphs = getattr(result, "cudagraph_stats", None)
            if graphs is not None:
                self.modes[graphs.runtime_mode] = self.modes.get(graphs.runtime_mode, 0) + 1
            return inner(output, result, *args, **kwargs)

        self.scheduler.update_from_output = update

    def push(self, k: int) -> None:
        self.generation += 1
        body = {"generation": self.generation, "table": [k] * (SEQS + 1), "dwellSteps": 1}
        call("PUT", "/policy", body)

    def add(self, tokens: int) -> None:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.serial += 1
        name = f"r{self.serial}"
        prompt = {"prompt_token_ids": [random.randrange(10, 120000) for _ in range(96 + random.randrange(64))]}
        self.length[name], self.wanted[name] = 0, tokens
        self.engine.add_request(
            name,
            prompt,
            SamplingParams(
                temperature=0.0,
                max_tokens=tokens,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            ),
        )

    def step(self) -> int:
        """One turn of the loop; tokens that came out. Finished requests are checked."""
        tokens = 0
        for output in self.engine.step():
            name = output.request_id
            if name not in self.length:
                continue
            new = len(output.outputs[0].token_ids)
            tokens += new
            self.length[name] += new
            if output.finished:
                self.finished += 1
                self.failed += self.length[name] != self.wanted[name] or output.outputs[0].finish_reason != "length"
                del self.length[name], self.wanted[name]
        return tokens

    def drain(self) -> None:
        self.engine.abort_request(list(self.length))
        self.length.clear()
        self.wanted.clear()
        while self.engine.has_unfinished_requests():
            self.engine.step()

    def fill(self, load: int, tokens: int = 1500) -> None:
        self.drain()
        for _ in range(load):
            self.add(tokens)
        for _ in range(12):
            self.step()

    def window(self, seconds: float) -> tuple[float, int, int]:
        """(wall seconds, steps, tokens) of a stretch of the loop."""
        self.step()  # a batch may have waited while this program did something else: its step would look too short
        start = time.perf_counter()
        steps = tokens = 0
        while time.perf_counter() - start < seconds or steps < 20:
            tokens += self.step()
            steps += 1
        return time.perf_counter() - start, steps, tokens
