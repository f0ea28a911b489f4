"""What this engine can do live, probed from the scheduler it built; each absence in words a person can act on."""

from __future__ import annotations

from typing import Any

from paceline_engine.protocol import Capabilities, Feature, VerificationFeature

SEAM = ("schedule", "_update_after_schedule", "update_from_output", "requests", "running")
"""What the hooks need of a scheduler. All of it is in every scheduler that vLLM ships since 0.26."""
FIXED_K_METHODS = frozenset({"suffix", "ngram_gpu", "medusa", "extract_hidden_states"})
"""Their proposers assert k == num_speculative_tokens (vLLM 0.32: v1/spec_decode/, suffix_decoding.py,
ngram_proposer_gpu.py, medusa.py, extract_hidden_states.py): another k ends the engine."""
FULL_DRAFT_METHODS_V2 = frozenset({"draft_model", "ngram"})
"""V2 runner: drafts num_speculative_tokens whatever is asked and truncates (v1/worker/gpu/spec_decode)."""
FIRST_LIVE_V2 = (0, 32)
"""The V2 worker of older releases ignores the k that the scheduler chose."""


def probe(scheduler: Any, engine_version: str) -> Capabilities:
    """Capabilities of the engine that owns `scheduler`. Raises whatever a scheduler of another shape makes it raise."""
    config = scheduler.vllm_config
    speculative = config.speculative_config
    max_num_seqs = int(config.scheduler_config.max_num_seqs)
    max_k = int(scheduler.num_spec_tokens) if speculative is not None else 0
    lookup = scheduler.dynamic_sd_lookup
    boot = lookup[1 : max_num_seqs + 1] if lookup is not None else [max_k]
    runner = "V2" if config.use_v2_model_runner else "V1"
    return Capabilities(
        live_k=_live_k(scheduler, config, runner, engine_version),
        adaptive_verification=_adaptive_verification(speculative, runner),
        max_k=max_k,
        ladder=tuple(sorted({int(k) for k in boot}, reverse=True)),
        max_num_seqs=max_num_seqs,
        method=str(speculative.method) if speculative is not None else "",
        runner=runner,
    )


def boot_table(scheduler: Any, capabilities: Capabilities) -> tuple[int, ...]:
    """Dense table (max_num_seqs + 1 entries) that the engine booted with: its schedule, else its one k."""
    lookup = scheduler.dynamic_sd_lookup
    if lookup is not None:
        return tuple(int(k) for k in lookup)
    return (capabilities.max_k,) * (capabilities.max_num_seqs + 1)


def _live_k(scheduler: Any, config: Any, runner: str, engine_version: str) -> Feature:
    speculative = config.speculative_config
    if speculative is None:
        return _absent("the engine was started without --speculative-config")
    if missing := [name for name in SEAM if not hasattr(scheduler, name)]:
        return _absent(f"the scheduler {type(scheduler).__mro__[1].__qualname__} has no {', '.join(missing)}")
    ranks = int(config.parallel_config.data_parallel_size)
    if ranks > 1:
        return _absent(
            f"data_parallel_size is {ranks}: ranks that choose different ks hang each other; vLLM drops the schedule"
        )
    method = str(speculative.method)
    if method in FIXED_K_METHODS:
        return _absent(f"method {method} asserts that k is num_speculative_tokens: another k would end the engine")
    if method == "custom_class":
        return _absent("method custom_class is never told k")
    if scheduler.dynamic_sd_lookup is None:
        return _absent(
            "the engine was started without num_speculative_tokens_per_batch_size: nothing in it reads k step by step"
        )
    if runner == "V2" and _release(engine_version) < FIRST_LIVE_V2:
        return _absent(
            f"the V2 model runner of vLLM {engine_version} drafts num_speculative_tokens whatever is scheduled"
        )
    if runner == "V2" and (method in FULL_DRAFT_METHODS_V2 or _multi_module(speculative)):
        return Feature(
            supported=True,
            reason=f"method {method} drafts num_speculative_tokens on the V2 model runner and truncates: "
            "a smaller k saves verification only",
        )
    return Feature(supported=True)


def _adaptive_verification(speculative: Any, runner: str) -> VerificationFeature:
    if speculative is None:
        return _fixed("the engine was started without --speculative-config")
    if runner == "V1":
        return _fixed("the V1 model runner has no adaptive verification")
    if not getattr(speculative, "enable_adaptive_verification", False):
        return VerificationFeature(
            supported=False,
            reason="the engine was started without enable_adaptive_verification: switching it on needs a restart",
        )
    return VerificationFeature(
        supported=False, reason="this version of the plugin leaves adaptive verification as the engine booted it"
    )


def _multi_module(speculative: Any) -> bool:
    """Whether the draft is a chain of MTP modules, which always runs whole."""
    asked = getattr(speculative, "use_multi_module_mtp", None)
    return bool(asked and asked())


def _fixed(reason: str) -> VerificationFeature:
    return VerificationFeature(supported=False, reason=reason)


def _absent(reason: str) -> Feature:
    return Feature(supported=False, reason=reason)


def _release(version: str) -> tuple[int, ...]:
    """(major, minor) of a version text; (0, 0) where it does not begin with numbers."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else (0, 0)
