"""Runs in the engine's environment: what the probe says of vLLM's own configurations, and of its own graph tables.

Each method on each runner: without Triton vLLM makes V1 configurations, and says so of V2. The scheduler is played by
the lookup that vLLM's own would build from it. JSON on stdout, last line. In: the model's folder and an empty one.
"""

from __future__ import annotations

import json
import os
import sys
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

from vllm.config import CUDAGraphMode, VllmConfig, speculative
from vllm.engine.arg_utils import EngineArgs
from vllm.plugins import load_plugins_by_group
from vllm.v1.cudagraph_dispatcher import CudagraphDispatcher
from vllm.v1.spec_decode.dynamic.utils import build_dynamic_sd_schedule_lookup
from vllm.v1.spec_decode.extract_hidden_states import ExtractHiddenStatesProposer
from vllm.v1.spec_decode.ngram_proposer import NgramProposer
from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.version import __version__

from paceline_engine import worker
from paceline_engine.capabilities import probe

K, MAX_NUM_SEQS = 5, 16
LADDER = (5, 3, 1, 0)
SEED = [[1, 1, 5], [2, 4, 3], [5, 8, 1], [9, 16, 0]]
SIZES = sorted({n * (k + 1) for k in LADDER for n in (1, 2, 4, 8, 16)})
speculative.has_arctic_inference = lambda: True
DRAFT = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128}
DRAFT |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 49152}
METHODS: dict[str, dict[str, Any]] = {
    "ngram": {"prompt_lookup_max": 4},
    "ngram_gpu": {"prompt_lookup_max": 4},
    "suffix": {},
    "draft_model": {"model": "model"},
    "eagle": {"model": "draft"},
    "eagle3": {"model": "draft"},
    "extract_hidden_states": {
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": [1]}},
    },
}


def config(model: str, draft: str, method: str, *, seed: bool = True, **engine: Any) -> Any:
    given = dict(METHODS[method])
    if "model" in given:
        given["model"] = {"model": model, "draft": draft}[given["model"]]
    return EngineArgs(
        model=model,
        dtype="float32",
        max_model_len=256,
        max_num_seqs=MAX_NUM_SEQS,
        speculative_config={
            "method": method,
            "num_speculative_tokens": K,
            **({"num_speculative_tokens_per_batch_size": SEED} if seed else {}),
            **given,
        },
        **engine,
    ).create_engine_config()


class Scheduler:
    """What the probe looks at, over a real configuration."""

    def __init__(self, vllm_config: Any) -> None:
        self.vllm_config = vllm_config
        self.num_spec_tokens = vllm_config.speculative_config.num_speculative_tokens
        rows = vllm_config.speculative_config.num_speculative_tokens_per_batch_size
        self.dynamic_sd_lookup = (
            build_dynamic_sd_schedule_lookup(rows, MAX_NUM_SEQS, self.num_spec_tokens) if rows else None
        )
        self.requests: dict[str, Any] = {}
        self.running: list[Any] = []
        self.finished_req_ids: set[str] = set()

    def schedule(self) -> None: ...

    def _update_after_schedule(self) -> None: ...

    def update_from_output(self) -> None: ...


def said(make: Any, v2: bool) -> dict[str, Any]:
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = str(int(v2))
    try:
        found = probe(Scheduler(make()), __version__)
    except Exception as error:
        return {"impossible": f"{type(error).__name__}: {error}"[:200]}
    return {
        "runner": found.runner,
        "live": found.live_k.supported,
        "reason": found.live_k.reason,
        "ladder": found.ladder,
        "verification": found.adaptive_verification.reason,
    }


def asserts_k() -> dict[str, bool]:
    """Whether a proposer ends the engine when it is asked for another k than it was built for."""
    told = {}
    for name, made, call in (
        ("suffix", SuffixDecodingProposer, lambda one: one.propose(1, None, [])),
        ("extract_hidden_states", ExtractHiddenStatesProposer, lambda one: one.propose(0, [], [], None)),
        ("ngram", NgramProposer, lambda one: one.propose(1, [], [], [])),
    ):
        one = SimpleNamespace(k=K, num_speculative_tokens=K)
        try:
            call(_Bound(made, one))
        except AssertionError:
            told[name] = True
        except Exception:
            told[name] = False
        else:
            told[name] = False
    return told


class _Bound:
    """The methods of a class on an object that was never built."""

    def __init__(self, cls: Any, one: Any) -> None:
        self._cls, self._one = cls, one

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cls, name).__get__(self._one)


def graphs() -> dict[str, Any]:
    """Graph coverage by vLLM's own tables: the V2 runner's with and without AV, and the V1 runner's dispatcher."""
    seed = SimpleNamespace(num_speculative_tokens_per_batch_size=SEED, uses_dynamic_speculative_decoding=lambda: True)
    told: dict[str, Any] = {}
    for name, speculative_config, varlen in (
        ("seeded", seed, False),
        ("one k", SimpleNamespace(uses_dynamic_speculative_decoding=lambda: False), False),
        ("adaptive", seed, True),
    ):
        manager = CudaGraphManager.__new__(CudaGraphManager)
        manager.__dict__ |= {
            "vllm_config": SimpleNamespace(
                speculative_config=speculative_config,
                num_speculative_tokens=K,
                cache_config=SimpleNamespace(use_kda_recoverssm=False),
            ),
            "compilation_config": SimpleNamespace(cudagraph_capture_sizes=SIZES, max_cudagraph_capture_size=SIZES[-1]),
            "cudagraph_mode": CUDAGraphMode.FULL_AND_PIECEWISE,
            "decode_query_len": K + 1,
            "max_num_reqs": MAX_NUM_SEQS,
            "varlen_decode": varlen,
            "ubatch_runner": None,
            "lora_capture_cases": [0],
            "_lora_dispatch_map": {},
            "_max_lora_case": 0,
            "_candidates": {},
            "_capture_descs": {},
            "_graphs_captured": True,
        }
        manager._init_candidates()
        told[name] = worker._graphs(SimpleNamespace(cudagraph_manager=manager), (5, 4, 3, 2, 1, 0), MAX_NUM_SEQS)
    for name, mode in (("V1", CUDAGraphMode.FULL_DECODE_ONLY), ("V1 with a schedule", CUDAGraphMode.PIECEWISE)):
        sizes = [n * (K + 1) for n in (1, 2, 4, 8, 16)]
        dispatcher = CudagraphDispatcher.__new__(CudagraphDispatcher)
        dispatcher.__dict__ |= {
            "vllm_config": SimpleNamespace(
                lora_config=None, scheduler_config=SimpleNamespace(max_num_seqs=MAX_NUM_SEQS)
            ),
            "compilation_config": SimpleNamespace(
                cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=sizes[-1], compile_sizes=[]
            ),
            "uniform_decode_query_len": K + 1,
            "cudagraph_keys": {CUDAGraphMode.PIECEWISE: set(), CUDAGraphMode.FULL: set()},
            "specialize_lora_count": False,
            "keys_initialized": False,
        }
        dispatcher.initialize_cudagraph_keys(mode, K + 1)
        told[name] = worker._graphs(SimpleNamespace(cudagraph_dispatcher=dispatcher), (5, 3, 0), MAX_NUM_SEQS)
    return told


def plugins() -> dict[str, list[str]]:
    """General plugins that vLLM loads, by VLLM_PLUGINS."""
    told = {}
    for value in (None, "lora_filesystem_resolver,paceline", "lora_filesystem_resolver"):
        os.environ.pop("VLLM_PLUGINS", None)
        if value is not None:
            os.environ["VLLM_PLUGINS"] = value
        told[value or "unset"] = sorted(load_plugins_by_group("vllm.general_plugins"))
    return told


def refusals() -> dict[str, list[dict[str, Any]]]:
    """What vLLM's own checks say of adaptive verification, and of methods on each runner."""
    verification = []
    for mode, lora, stages in product(CUDAGraphMode.__members__, (False, True), (1, 2)):
        one = SimpleNamespace(
            speculative_config=SimpleNamespace(enable_adaptive_verification=True),
            lora_config=object() if lora else None,
            compilation_config=SimpleNamespace(cudagraph_mode=CUDAGraphMode[mode]),
            parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        )
        refused = _says(lambda one=one: VllmConfig._validate_adaptive_verification(one))
        verification.append({"graphs": mode, "lora": lora, "stages": stages, "refused": refused})
    runners = []
    for method in get_args(speculative.SpeculativeMethod):
        for name in get_args(method) or (method,):
            spec = SimpleNamespace(
                method=name,
                parallel_drafting=name in ("dflash", "dspark"),
                use_heterogeneous_vocab=False,
                enable_adaptive_verification=False,
                draft_model_config=None,
            )
            one = VllmConfig.__new__(VllmConfig)
            one.__dict__ |= {
                "speculative_config": spec,
                "parallel_config": SimpleNamespace(
                    distributed_executor_backend="mp",
                    pipeline_parallel_size=1,
                    prefill_context_parallel_size=1,
                    use_ubatching=False,
                    enable_batch_sharded_sampling=False,
                ),
                "scheduler_config": SimpleNamespace(async_scheduling=False),
                "model_config": None,
            }
            for runner in ("V1", "V2"):
                refused = getattr(one, f"_get_{runner.lower()}_model_runner_unsupported_features")()
                runners.append({"method": name, "runner": runner, "refused": "; ".join(refused)})
    return {"verification": verification, "runners": runners}


def _says(check: Any) -> str:
    try:
        check()
    except ValueError as error:
        return str(error)
    return ""


def main() -> None:
    model, folder = sys.argv[1:]
    Path(folder, "config.json").write_text(json.dumps(DRAFT))
    matrix = {
        method: {
            runner: said(lambda method=method: config(model, folder, method), runner == "V2") for runner in ("V1", "V2")
        }
        for method in METHODS
    }
    others = {
        "no schedule": said(lambda: config(model, folder, "ngram", seed=False), False),
        "data parallel": said(lambda: config(model, folder, "ngram", data_parallel_size=2), False),
    }
    answer = {
        "version": __version__,
        "matrix": matrix,
        "others": others,
        "declared": {
            "method": "ngram",
            "num_speculative_tokens": K,
            "num_speculative_tokens_per_batch_size": SEED,
            **METHODS["ngram"],
        },
        "asserts_k": asserts_k(),
        "graphs": graphs(),
        "plugins": plugins(),
        "refusals": refusals(),
    }
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
