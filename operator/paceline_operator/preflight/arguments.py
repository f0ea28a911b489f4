"""Which arguments of `vllm serve` the operator owns, and how to recognise them however they are spelled.

vLLM's parser takes `--max-num-seqs 8`, `--max-num-seqs=8`, `--max_num_seqs 8`, `--no-enforce-eager`, dotted keys of
JSON arguments (`--speculative-config.method ngram`), short forms (`-tp 8`, `-sc.method ngram`) and any unambiguous
abbreviation (`--max-num-seq 8`).
"""

from __future__ import annotations

_LAYOUT = "the operator lays out the processes of a pod; use spec.replicas or spec.engine.multiNode"
_DATA_PARALLEL = "vLLM drops the schedule of k with data parallelism; use spec.replicas"

OWNED: dict[str, str] = {
    "--model": "set spec.model.source",
    "--served-model-name": "set spec.model.servedName",
    "--revision": "set spec.model.revision",
    "--hf-token": "set spec.model.tokenSecretName",
    "--host": "the operator's Service and probes need it",
    "--port": "the operator's Service and probes need it",
    "--uds": "the operator's Service and probes need the port",
    "--grpc": "the operator's probes speak HTTP",
    "--headless": "the operator's probes need the API server",
    "--ssl-keyfile": "the operator's probes speak plain HTTP; end TLS before the Service",
    "--ssl-certfile": "the operator's probes speak plain HTTP; end TLS before the Service",
    "--config": "a file could set what the operator owns; write the arguments out",
    "--help": "the engine would print it and exit",
    "--disable-log-stats": "the operator reads the engine's metrics",
    "--max-num-seqs": "set spec.engine.maxNumSeqs",
    "--max-num-batched-tokens": "set spec.engine.maxNumBatchedTokens",
    "--max-model-len": "set spec.engine.maxModelLen",
    "--dtype": "set spec.engine.dtype",
    "--quantization": "set spec.engine.quantization",
    "--kv-cache-dtype": "set spec.engine.kvCacheDtype",
    "--enable-lora": "set spec.engine.lora",
    "--max-loras": "set spec.engine.lora.maxLoras",
    "--max-lora-rank": "set spec.engine.lora.maxLoraRank",
    "--max-cpu-loras": "set spec.engine.lora.maxCpuLoras",
    "--tensor-parallel-size": "set spec.engine.tensorParallelSize",
    "--pipeline-parallel-size": "set spec.engine.pipelineParallelSize",
    "--gpu-memory-utilization": "set spec.engine.gpuMemoryUtilizationPercent",
    "--device-memory-utilization": "set spec.engine.gpuMemoryUtilizationPercent",
    "--enforce-eager": "set spec.engine.enforceEager",
    "--enable-prefix-caching": "set spec.engine.enablePrefixCaching",
    "--shutdown-timeout": "set spec.engine.shutdownTimeoutSeconds",
    "--speculative-config": "set spec.speculation",
    "--spec-method": "set spec.speculation.method",
    "--spec-model": "set spec.speculation.draft.source",
    "--spec-tokens": "set spec.speculation.maxTokens",
    "--compilation-config": "the operator chooses the graph sizes of the ladder",
    "--cudagraph-capture-sizes": "the operator chooses the graph sizes of the ladder",
    "--max-cudagraph-capture-size": "the operator chooses the graph sizes of the ladder",
    "--nnodes": _LAYOUT,
    "--node-rank": _LAYOUT,
    "--master-addr": _LAYOUT,
    "--master-port": _LAYOUT,
    "--data-parallel-size": _DATA_PARALLEL,
    "--data-parallel-size-local": _DATA_PARALLEL,
    "--data-parallel-rank": _DATA_PARALLEL,
    "--data-parallel-start-rank": _DATA_PARALLEL,
    "--data-parallel-address": _DATA_PARALLEL,
    "--data-parallel-rpc-port": _DATA_PARALLEL,
    "--data-parallel-backend": _DATA_PARALLEL,
    "--data-parallel-hybrid-lb": _DATA_PARALLEL,
    "--data-parallel-external-lb": _DATA_PARALLEL,
    "--data-parallel-multi-port-external-lb": _DATA_PARALLEL,
    "--data-parallel-supervisor-port": _DATA_PARALLEL,
}
"""Argument -> what to do instead."""

SHORT: dict[str, str] = {
    "-h": "--help",
    "-q": "--quantization",
    "-tp": "--tensor-parallel-size",
    "-pp": "--pipeline-parallel-size",
    "-sc": "--speculative-config",
    "-cc": "--compilation-config",
    "-n": "--nnodes",
    "-r": "--node-rank",
    "-dp": "--data-parallel-size",
    "-dpl": "--data-parallel-size-local",
    "-dpn": "--data-parallel-rank",
    "-dpr": "--data-parallel-start-rank",
    "-dpa": "--data-parallel-address",
    "-dpp": "--data-parallel-rpc-port",
    "-dpb": "--data-parallel-backend",
    "-dph": "--data-parallel-hybrid-lb",
    "-dpe": "--data-parallel-external-lb",
    "-dpm": "--data-parallel-multi-port-external-lb",
}
"""vLLM's short form -> long form."""

OWNED_CONFIG: dict[str, str] = {
    "method": "set spec.speculation.method",
    "model": "set spec.speculation.draft.source",
    "revision": "set spec.speculation.draft.revision",
    "quantization": "set spec.speculation.draft.quantization",
    "draft_tensor_parallel_size": "set spec.speculation.draft.tensorParallelSize",
    "tensor_parallel_size": "set spec.speculation.draft.tensorParallelSize",
    "draft_sample_method": "set spec.speculation.draftSampleMethod",
    "num_speculative_tokens": "set spec.speculation.maxTokens",
    "num_speculative_tokens_per_batch_size": "set spec.tuning.ladder; the operator writes the schedule",
    "enable_adaptive_verification": "set spec.speculation.adaptiveVerification",
    "prompt_lookup_min": "set spec.speculation.ngram.promptLookupMin",
    "prompt_lookup_max": "set spec.speculation.ngram.promptLookupMax",
    "suffix_decoding_max_tree_depth": "set spec.speculation.suffix.maxTreeDepth",
    "suffix_decoding_max_cached_requests": "set spec.speculation.suffix.maxCachedRequests",
    "suffix_decoding_max_spec_factor": "set spec.speculation.suffix.maxSpecFactorPercent",
    "suffix_decoding_min_token_prob": "set spec.speculation.suffix.minTokenProbabilityPercent",
}
"""Key of vLLM's speculative config -> what to do instead of setting it in speculation.extraConfig."""

OWNED_ARGUMENTS = frozenset(OWNED) | frozenset(SHORT)


def name_of(element: str) -> str | None:
    """Canonical option name of an argv element, as vLLM's parser reads it; None for a value."""
    if len(element) < 2 or not element.startswith("-"):
        return None
    name = element.split("=", 1)[0].split(".", 1)[0]
    return "--" + name[2:].replace("_", "-") if name.startswith("--") else name


def owner_of(element: str) -> str | None:
    """The owned argument (long form) that an argv element sets, spelled out or abbreviated; None if it is free."""
    name = name_of(element)
    if name is None:
        return None
    if not name.startswith("--"):
        return _owner_of_short(name)
    positive = "--" + name.removeprefix("--no-") if name.startswith("--no-") else name
    for spelling in (name, positive):
        if spelling in OWNED:
            return spelling
    return next((owned for owned in OWNED if len(positive) > 2 and owned.startswith(positive)), None)


def _owner_of_short(name: str) -> str | None:
    if name in SHORT:
        return SHORT[name]
    # argparse takes `-n2` for `-n 2`, and `-t` for `-tp`.
    attached = next((short for short in SHORT if len(short) == 2 and name.startswith(short)), None)
    abbreviated = next((short for short in SHORT if short.startswith(name)), None)
    found = attached or abbreviated
    return SHORT[found] if found else None
