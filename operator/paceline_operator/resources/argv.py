"""The vLLM command line: a list, never a string for a shell. Each text of the user is exactly one element of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from paceline_engine.protocol import compress
from paceline_operator import naming
from paceline_operator.api.engine import CudagraphMode, Device, Engine, Lora, PluginInjection
from paceline_operator.api.runner import within_reach, without_schedule
from paceline_operator.api.serving import ServingSpec, SpeculativeServing
from paceline_operator.api.speculation import AdaptiveVerification, Method, Ngram, Speculation
from paceline_operator.resources.capture import capture_sizes, close_sizes
from paceline_operator.resources.source import resolve


def build(serving: SpeculativeServing, boot_table: Sequence[int], *, drafter: bool = True) -> list[str]:
    """argv of one engine. `boot_table[n]` is the k for n requests, n in 0..max_num_seqs (entry 0 is not looked at).

    Without a drafter: the same engine with no speculation at all, and graphs for its one token per request.
    """
    spec = serving.spec
    weights = resolve(spec.model.source, "model", spec.model.revision, cached=spec.model.cache is not None)
    return [
        "vllm",
        "serve",
        weights.argument,
        *_option("--served-model-name", spec.model.served_name or serving.metadata.name),
        *_option("--revision", weights.revision),
        *_option("--host", "0.0.0.0"),  # noqa: S104 the pod's own network namespace
        *_option("--port", naming.SERVING_PORT),
        *_engine(spec.engine),
        *_option("--shutdown-timeout", spec.engine.shutdown_timeout_seconds),
        *_json_option("--speculative-config", speculative_config(serving, boot_table) if drafter else None),
        *_json_option("--compilation-config", _compilation_config(serving, boot_table, drafter=drafter)),
        *spec.engine.extra_args,
    ]


def speculative_config(serving: SpeculativeServing, boot_table: Sequence[int]) -> dict[str, Any]:
    """vLLM's SpeculativeConfig. Its schedule is the seed: what runs before the first push and without a plugin."""
    speculation = serving.spec.speculation
    config: dict[str, Any] = {
        "method": speculation.method.value,
        "num_speculative_tokens": speculation.max_tokens,
    }
    if not (without_schedule(serving.spec) or _says_nothing(serving.spec, boot_table)):
        config["num_speculative_tokens_per_batch_size"] = schedule_rows(boot_table)
    config |= _draft(serving.spec) | _window(speculation) | _suffix(speculation)
    if speculation.draft_sample_method:
        config["draft_sample_method"] = speculation.draft_sample_method.value
    if speculation.adaptive_verification is AdaptiveVerification.ENABLED:
        config["enable_adaptive_verification"] = True
    return config | (speculation.extra_config or {})


def _says_nothing(spec: ServingSpec, boot_table: Sequence[int]) -> bool:
    """A schedule of maxTokens at every load, which no plugin will ever change: vLLM pads its steps only without one."""
    unplugged = spec.engine.plugin.injection is PluginInjection.NONE
    return unplugged and set(boot_table[1:]) == {spec.speculation.max_tokens}


def _draft(spec: ServingSpec) -> dict[str, Any]:
    draft = spec.speculation.draft
    if draft is None:
        return {}
    weights = resolve(draft.source, "draft", draft.revision, cached=spec.model.cache is not None)
    given = {
        "model": weights.argument,
        "revision": weights.revision,
        "draft_tensor_parallel_size": draft.tensor_parallel_size,
        "quantization": draft.quantization,
    }
    return {key: value for key, value in given.items() if value is not None}


def _window(speculation: Speculation) -> dict[str, Any]:
    if speculation.method not in (Method.NGRAM, Method.NGRAM_GPU):
        return {}
    window = speculation.ngram or Ngram()
    return {"prompt_lookup_min": window.prompt_lookup_min, "prompt_lookup_max": window.prompt_lookup_max}


def _suffix(speculation: Speculation) -> dict[str, Any]:
    options = speculation.suffix
    if options is None:
        return {}
    return {
        "suffix_decoding_max_tree_depth": options.max_tree_depth,
        "suffix_decoding_max_cached_requests": options.max_cached_requests,
        "suffix_decoding_max_spec_factor": options.max_spec_factor_percent / 100,
        "suffix_decoding_min_token_prob": options.min_token_probability_percent / 100,
    }


def schedule_rows(boot_table: Sequence[int]) -> list[list[int]]:
    """vLLM's rows [first, last, k], inclusive and without gaps over 1..max_num_seqs, of a dense table."""
    rows = compress(boot_table)
    ends = [start - 1 for start, _ in rows[1:]] + [len(boot_table) - 1]
    return [[start, end, k] for (start, k), end in zip(rows, ends, strict=True)]


def _engine(engine: Engine) -> list[str]:
    gpu = engine.device is Device.GPU
    # On CPUs compiled code gave wrong text and bfloat16 is emulated, 2-3 times slower than float32 (vLLM 0.32).
    eager = engine.enforce_eager or not gpu
    dtype = engine.dtype or (None if gpu else "float32")
    prefix_caching = {None: [], True: ["--enable-prefix-caching"], False: ["--no-enable-prefix-caching"]}
    return [
        *_option("--max-num-seqs", engine.max_num_seqs),
        *_option("--max-num-batched-tokens", engine.max_num_batched_tokens),
        *_option("--max-model-len", engine.max_model_len),
        *_option("--dtype", dtype),
        *_option("--quantization", engine.quantization),
        *_option("--kv-cache-dtype", engine.kv_cache_dtype),
        *(_option("--tensor-parallel-size", engine.tensor_parallel_size) if gpu else []),
        *(_option("--pipeline-parallel-size", engine.pipeline_parallel_size) if gpu else []),
        *(_option("--gpu-memory-utilization", f"{engine.gpu_memory_utilization_percent / 100:.2f}") if gpu else []),
        *(["--enforce-eager"] if eager else []),
        *prefix_caching[engine.enable_prefix_caching],
        *_lora(engine.lora),
    ]


def _lora(lora: Lora | None) -> list[str]:
    if lora is None:
        return []
    return [
        "--enable-lora",
        *_option("--max-loras", lora.max_loras),
        *_option("--max-lora-rank", lora.max_lora_rank),
        *_option("--max-cpu-loras", lora.max_cpu_loras),
    ]


def _compilation_config(
    serving: SpeculativeServing, boot_table: Sequence[int], *, drafter: bool
) -> dict[str, Any] | None:
    spec, mode = serving.spec, serving.spec.engine.cudagraph_mode
    if spec.engine.device is not Device.GPU or spec.engine.enforce_eager:
        return None
    config: dict[str, Any] = {} if mode is None else {"cudagraph_mode": mode.value}
    if mode is CudagraphMode.NONE:
        return config
    ladder = {0} if not drafter else {spec.speculation.max_tokens} if without_schedule(spec) else set(boot_table[1:])
    sizes = close_sizes if within_reach(spec) else capture_sizes
    return config | {"cudagraph_capture_sizes": list(sizes(ladder, spec.engine.max_num_seqs))}


def _option(name: str, value: str | int | None) -> list[str]:
    return [] if value is None else [name, str(value)]


def _json_option(name: str, value: dict[str, Any] | None) -> list[str]:
    return [] if value is None else [name, json.dumps(value, separators=(",", ":"))]
