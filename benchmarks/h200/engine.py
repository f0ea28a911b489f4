"""A real vLLM, its step loop driven by hand under a closed loop of requests; with the plugin in it, or without.

The model has the shape of an 8B Llama with a one-layer EAGLE draft and dummy weights (step time does not depend on the
weights); acceptance is vLLM's synthetic rejection sampling. On a CPU: a toy with ngram drafts.
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from control import Control
from scale import SCALE
from stalls import Watch

from paceline_operator.resources.capture import capture_sizes, close_sizes

NO_MULTICAST = {
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_USE_NCCL_SYMM_MEM": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "0",
}  # fmt: skip
"""NVLink multicast stays unused: not every shared host bears it."""


QUIET_SECONDS = 150.0
MIXED_STEPS = (384, 512, 768, 1024, 1536, 2048)
"""Tokens of steps with prompts that also have a graph in engines of one k, whose own sizes end early: one that
drafts must have no advantage there. Where ks are many their sizes reach as far, and others would hide some."""


@dataclass(frozen=True)
class Options:
    """Which engine."""

    name: str
    devices: str
    """CUDA_VISIBLE_DEVICES."""
    port: int
    token: str
    kv_gib: float = 14.0
    drafter: bool = True
    schedule: bool = True
    """k by load, all ks of the ladder; without it SCALE.static_k for good."""
    plugin: bool = True
    verification: bool = False
    """Boot adaptive verification, with its estimator started where a trained draft would put it."""
    quiet: str = ""
    """A file whose being there says that no other engine boots on this GPU: verification waits for it before it
    measures its step costs."""
    model: str = ""
    """A folder with real weights and a tokenizer: ngram drafts, real rejection."""
    batch_invariant: bool = False

    @property
    def seqs(self) -> int:
        """max_num_seqs."""
        return min(SCALE.seqs, 64) if self.model or "," in self.devices else SCALE.seqs


def shape(folder: Path, layers: int) -> str:
    """Write the configuration of a Llama of SCALE's width."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": SCALE.hidden,
        "intermediate_size": SCALE.inner, "num_hidden_layers": layers, "num_attention_heads": SCALE.heads,
        "num_key_value_heads": SCALE.kv_heads, "head_dim": SCALE.hidden // SCALE.heads,
        "vocab_size": SCALE.vocabulary, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 8192,
        "hidden_act": "silu", "torch_dtype": "bfloat16", "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


class Engine:
    """The engine in this process. Boots in the constructor: 100-200 s on a GPU."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.control = Control(options.port, options.token)
        work = Path(tempfile.mkdtemp(prefix=f"{options.name}-"))
        self._environment(work)
        from vllm import LLM

        if options.verification and not SCALE.cpu:
            self._help_estimator()
            self._profile_in_quiet(Path(options.quiet))
        start = time.time()
        self.llm = LLM(**self._arguments(work))
        self.boot_seconds = time.time() - start
        self.engine: Any = self.llm.llm_engine
        self.core = self.engine.engine_core.engine_core
        self.scheduler = self.core.scheduler
        self.installation: Any = getattr(self.scheduler, "_paceline", None)
        if options.plugin and self.installation is None:
            raise RuntimeError("the plugin is not in this engine: look for 'Paceline' in its log")
        capabilities = self.control("GET", "/state")["capabilities"] if self.installation else None
        self.adaptive = bool(capabilities and capabilities["adaptiveVerification"]["supported"])
        """Whether adaptive verification can be changed live: never on a CPU."""
        self.generation = 0
        self.serial = 0
        self.completed = 0
        """Steps that gave a result, counted outside the plugin."""
        self.length: dict[str, int] = {}
        self.wanted: dict[str, int] = {}
        self.finished = self.failed = 0
        self.modes: dict[str, int] = {}
        self._watch_steps()
        Watch(lambda: self.completed if self.length else None).start()
        gc.collect()
        gc.freeze()

    def _environment(self, work: Path) -> None:
        (work / "token").mkdir()
        (work / "token" / "current").write_text(self.options.token)
        os.environ |= NO_MULTICAST | {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_WORKER_MULTIPROC_METHOD": "spawn", "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1", "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CACHE_ROOT": str(work / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "5",
            "VLLM_BATCH_INVARIANT": str(int(self.options.batch_invariant)),
            "PACELINE_CONTROL_PORT": str(self.options.port), "PACELINE_CONTROL_HOST": "127.0.0.1",
        }  # fmt: skip
        if self.options.plugin:
            os.environ["PACELINE_TOKEN_DIR"] = str(work / "token")
        else:
            os.environ.pop("PACELINE_TOKEN_DIR", None)

    @staticmethod
    def _help_estimator() -> None:
        """Dummy weights give flat draft distributions, which starve the estimator: start it at the first rate."""
        import vllm.v1.worker.gpu.spec_decode.acceptance_estimator as estimator

        estimator._INIT_SLOPE = 0.0
        estimator._INIT_BIAS = math.log(SCALE.rates[0] / (1 - SCALE.rates[0]))

    @staticmethod
    def _profile_in_quiet(sign: Path) -> None:
        from vllm.v1.worker.gpu.spec_decode.adaptive_verification import AdaptiveVerificationManager as Manager

        inner = Manager.batches_to_profile

        def batches_to_profile(self: Any, capture_sizes: list[int]) -> Any:
            until = time.monotonic() + QUIET_SECONDS
            while not sign.exists() and time.monotonic() < until:
                time.sleep(0.1)
            print(f"profiling step costs, quiet: {sign.exists()}", flush=True)
            yield from inner(self, capture_sizes)

        Manager.batches_to_profile = batches_to_profile

    def _arguments(self, work: Path) -> dict[str, Any]:
        options = self.options
        ladder = (0,) if not options.drafter else SCALE.ladder if options.schedule else (SCALE.static_k,)
        mixed = {n for n in MIXED_STEPS if n <= 8 * options.seqs} if len(ladder) == 1 else set()
        sizes = close_sizes if options.plugin and len(ladder) > 1 else capture_sizes
        capture = sorted({*sizes(ladder, options.seqs), *mixed})
        found: dict[str, Any] = {
            "max_model_len": 2048, "max_num_seqs": options.seqs, "enable_prefix_caching": False,
            "max_num_batched_tokens": 8192, "disable_log_stats": False,
        }  # fmt: skip
        if options.model:
            found |= {"model": options.model}
        else:
            found |= {
                "model": shape(work / "target", SCALE.layers),
                "load_format": "dummy",
                "skip_tokenizer_init": True,
            }
        if SCALE.cpu:
            found |= {"enforce_eager": True, "dtype": "float32"}
        else:
            found |= {
                "kv_cache_memory_bytes": int(options.kv_gib * 2**30), "gpu_memory_utilization": 0.1,
                "cudagraph_metrics": True, "tensor_parallel_size": options.devices.count(",") + 1,
                "disable_custom_all_reduce": True,
                "compilation_config": {"cudagraph_capture_sizes": capture, "max_cudagraph_capture_size": capture[-1]},
            }  # fmt: skip
        if options.drafter:
            found["speculative_config"] = self._speculation(work, ladder)
        return found

    def _speculation(self, work: Path, ladder: tuple[int, ...]) -> dict[str, Any]:
        spec: dict[str, Any] = {"num_speculative_tokens": ladder[0]}
        if self.options.model or SCALE.cpu:
            spec |= {"method": "ngram", "prompt_lookup_max": 4, "prompt_lookup_min": 2}
        else:
            spec |= {
                "method": "eagle", "model": shape(work / "draft", 1), "rejection_sample_method": "synthetic",
                "synthetic_acceptance_rates": list(SCALE.rates[: ladder[0]]),
            }  # fmt: skip
        if self.options.schedule:
            rows = [[i + 1, i + 1, k] for i, k in enumerate(ladder[:-1])]
            spec["num_speculative_tokens_per_batch_size"] = [*rows, [len(ladder), self.options.seqs, ladder[-1]]]
        if self.options.verification and not SCALE.cpu:
            spec["enable_adaptive_verification"] = True
        return spec

    def facts(self) -> dict[str, Any]:
        """What was booted, for the results."""
        import torch
        import vllm

        config = self.engine.vllm_config
        found = {
            "vllm": vllm.__version__, "torch": torch.__version__, "boot_seconds": round(self.boot_seconds, 1),
            "scheduler": type(self.scheduler).__mro__[1 if self.installation else 0].__name__,
            "runner": "V2" if config.use_v2_model_runner else "V1", "max_num_seqs": self.options.seqs,
            "cudagraph_mode": str(config.compilation_config.cudagraph_mode),
            "kv_gib": self.options.kv_gib, "tensor_parallel": config.parallel_config.tensor_parallel_size,
        }  # fmt: skip
        if not SCALE.cpu:
            free, total = torch.cuda.mem_get_info()
            found |= {"gpu": torch.cuda.get_device_name(), "gpu_free_gib": round(free / 2**30, 1)}
            found |= {"gpu_total_gib": round(total / 2**30, 1)}
        if self.installation is not None:
            found["capabilities"] = self.control("GET", "/state")["capabilities"]
        return found

    def _watch_steps(self) -> None:
        inner = self.scheduler.update_from_output

        def update(output: Any, result: Any, *args: Any, **kwargs: Any) -> Any:
            if output.total_num_scheduled_tokens:
                self.completed += 1
            graphs = getattr(result, "cudagraph_stats", None)
            if graphs is not None:
                self.modes[graphs.runtime_mode] = self.modes.get(graphs.runtime_mode, 0) + 1
            return inner(output, result, *args, **kwargs)

        self.scheduler.update_from_output = update

    def body(self, k: int, verification: dict[str, Any] | None = None) -> dict[str, Any]:
        """The next policy: k at every load."""
        self.generation += 1
        found = {"generation": self.generation, "table": [k] * (self.options.seqs + 1), "dwellSteps": 1}
        if verification and not self.adaptive and not SCALE.cpu:
            raise RuntimeError("adaptive verification cannot be changed live here: see the capabilities")
        return found | ({"adaptiveVerification": verification} if verification and self.adaptive else {})

    def push(self, k: int, verification: dict[str, Any] | None = None) -> None:
        """The same k at every load from now on."""
        self.control("PUT", "/policy", self.body(k, verification))

    def add(self, tokens: int, prompt_tokens: int) -> None:
        """One more request that ends after exactly `tokens`. Prompts repeat themselves, so that ngram finds drafts."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        self.serial += 1
        name = f"r{self.serial}"
        piece = [random.randrange(10, SCALE.vocabulary - 10) for _ in range(16 if SCALE.cpu else prompt_tokens)]
        ids = (piece * (prompt_tokens // len(piece) + 1))[:prompt_tokens]
        self.length[name], self.wanted[name] = 0, tokens
        self.engine.add_request(
            name,
            {"prompt_token_ids": ids},
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

    def serve(self) -> int:
        """A turn that must have something to do: a window whose requests ran out measures nothing."""
        if not self.length:
            raise RuntimeError("no request is left: the window is longer than its requests")
        return self.step()

    def drain(self) -> None:
        """Abort all, and let what is in flight complete: the next step is the first of an idle engine."""
        self.engine.abort_request(list(self.length))
        self.length.clear()
        self.wanted.clear()
        while self.engine.has_unfinished_requests():
            self.engine.step()
        for _ in range(3):
            self.engine.step()

    def fill(
        self, load: int, tokens: int = 1900, *, prompt_tokens: int = 64, ages: bool = False, warm: int = 8
    ) -> None:
        """`load` fresh requests past their prompts; `ages`: some nearer to their end than others, as in life."""
        self.drain()
        for _ in range(load):
            self.add(random.randrange(tokens // 8, tokens) if ages else tokens, prompt_tokens)
        while self.length and min(self.length.values()) == 0:
            self.step()
        for _ in range(warm):
            self.step()

    def window(self, seconds: float = 0.0, steps: int = 20) -> tuple[float, int, int]:
        """(wall seconds, steps, tokens) from one completion to another, at least so long and so many."""
        before = self.completed
        while self.completed == before:
            self.serve()
        first = last = self.completed
        start = time.perf_counter()
        tokens = 0
        while True:
            tokens += self.serve()
            if self.completed == last:
                continue
            last = self.completed
            now = time.perf_counter()
            if now - start >= seconds and last - first >= steps:
                return now - start, last - first, tokens
