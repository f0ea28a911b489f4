"""What this engine can do live, probed from the objects it built; each absence in words a person can act on."""

from __future__ import annotations

from typing import Any

from paceline_engine import verification
from paceline_engine.exporter import feasible
from paceline_engine.identity import identity
from paceline_engine.protocol import Capabilities, Feature, Identity, Verification, VerificationFeature
from paceline_engine.worker import Findings

SEAM = (
    "schedule", "_update_after_schedule", "update_from_output", "requests", "running", "finished_req_ids",
    "dynamic_sd_lookup",
)  # fmt: skip
"""What the hooks need of a scheduler. All of it is in every scheduler that vLLM ships since 0.26."""
FIXED_K_METHODS = frozenset({"suffix", "ngram_gpu", "medusa", "extract_hidden_states"})
"""V1 runner: their proposers assert k == num_speculative_tokens (vLLM 0.32: v1/spec_decode/, suffix_decoding.py,
ngram_proposer_gpu.py, medusa.py, extract_hidden_states.py): another k ends the engine."""
FULL_DRAFT_METHODS_V2 = frozenset({"draft_model", "ngram", "ngram_gpu"})
"""V2 runner: drafts num_speculative_tokens whatever is asked and truncates (v1/worker/gpu/spec_decode)."""
BLOCK_METHODS_V2 = frozenset({"dflash", "dspark"})
"""V2 runner: the same, but from FIRST_SKIPPED_BLOCK on for k = 0, at which they only keep their context
(v1/worker/gpu/spec_decode/dflash)."""
FIRST_SKIPPED_BLOCK = (0, 33)
FIRST_LIVE_V2 = (0, 32)
"""The V2 worker of older releases ignores the k that the scheduler chose."""
_LIVE_MODES = (Verification.ADAPTIVE, Verification.ALL, Verification.CAPPED)


def probe(scheduler: Any, engine_version: str, executor: Any = None) -> Capabilities:
    """Capabilities of the engine that owns `scheduler` and runs its model through `executor`, None if not known.

    Asks the workers. Raises whatever a configuration of another shape makes it raise.
    """
    config = scheduler.vllm_config
    speculative = config.speculative_config
    max_num_seqs = int(config.scheduler_config.max_num_seqs)
    max_k = int(scheduler.num_spec_tokens) if speculative is not None else 0
    lookup = getattr(scheduler, "dynamic_sd_lookup", None)
    boot = lookup[1 : max_num_seqs + 1] if lookup is not None else [max_k]
    ladder = tuple(sorted({int(k) for k in boot}, reverse=True))
    runner = "V2" if config.use_v2_model_runner else "V1"
    found, unseen = _look(executor, ladder, max_num_seqs)
    api_servers = int(getattr(config.parallel_config, "_api_process_count", 1))
    return Capabilities(
        live_k=_live_k(scheduler, config, runner, engine_version),
        adaptive_verification=_adaptive_verification(config, runner, found, unseen),
        max_k=max_k,
        ladder=ladder,
        max_num_seqs=max_num_seqs,
        method=str(speculative.method) if speculative is not None else "",
        runner=runner,
        attention_backend=found.attention_backend,
        api_servers=api_servers,
        graph_requests=found.graph_requests,
        metrics=feasible(api_servers),
        identity=_identity(config, found),
    )


def boot_table(scheduler: Any, capabilities: Capabilities) -> tuple[int, ...]:
    """Dense table (max_num_seqs + 1 entries) that the engine booted with: its schedule, else its one k."""
    lookup = getattr(scheduler, "dynamic_sd_lookup", None)
    if lookup is not None:
        return tuple(int(k) for k in lookup)
    return (capabilities.max_k,) * (capabilities.max_num_seqs + 1)


def missing_seam(scheduler: Any) -> list[str]:
    """What the hooks need and this scheduler has not."""
    return [name for name in SEAM if not hasattr(scheduler, name)]


def _look(executor: Any, ladder: tuple[int, ...], max_num_seqs: int) -> tuple[Findings, str]:
    """What the workers have, and why that is not known where it is not."""
    if executor is None:
        return Findings(), "the engine's executor is not known"
    if not verification.ordered(executor):
        return Findings(), f"calls through {type(executor).__name__} are not known to keep their place among the steps"
    try:
        return verification.inspect(executor, ladder, max_num_seqs), ""
    except Exception as error:
        return Findings(), f"the workers did not answer: {type(error).__name__}: {error}"[:300]


def _identity(config: Any, found: Findings) -> Identity:
    try:
        return identity(config, found)
    except Exception:  # a configuration of another shape: what it is good for does not wait for its name
        return Identity()


def _live_k(scheduler: Any, config: Any, runner: str, engine_version: str) -> Feature:
    speculative, parallel = config.speculative_config, config.parallel_config
    if speculative is None:
        return _absent("the engine was started without --speculative-config")
    if missing := missing_seam(scheduler):
        return _absent(f"the scheduler {type(scheduler).__mro__[1].__qualname__} has no {', '.join(missing)}")
    if reason := _several_schedulers(parallel):
        return _absent(f"{reason}: ranks that choose different ks hang each other")
    method = str(speculative.method)
    drafts_all = runner == "V2" and (method in FULL_DRAFT_METHODS_V2 or _multi_module(speculative))
    if method in FIXED_K_METHODS and not drafts_all:
        return _absent(f"method {method} asserts that k is num_speculative_tokens: another k would end the engine")
    if method == "custom_class":
        return _absent("method custom_class is never told k")
    if scheduler.dynamic_sd_lookup is None:
        return _absent(
            "nothing in the engine reads k step by step: it was started without num_speculative_tokens_per_batch_size, "
            "or vLLM dropped it and its log says why"
        )
    if runner == "V2" and _release(engine_version) < FIRST_LIVE_V2:
        return _absent(
            f"the V2 model runner of vLLM {engine_version} drafts num_speculative_tokens whatever is scheduled"
        )
    if drafts_all or (runner == "V2" and method in BLOCK_METHODS_V2):
        skips = not drafts_all and _release(engine_version) >= FIRST_SKIPPED_BLOCK
        return Feature(
            supported=True,
            reason=f"method {method} drafts num_speculative_tokens on the V2 model runner and truncates: "
            f"a smaller k saves verification only{', 0 the draft too' if skips else ''}",
        )
    return Feature(supported=True)


def _several_schedulers(parallel: Any) -> str:
    """Why another scheduler decides for the same model, of which this one knows nothing; empty where it is alone."""
    if (ranks := int(parallel.data_parallel_size)) > 1:
        return f"data_parallel_size is {ranks}"
    if getattr(parallel, "distributed_executor_backend", None) == "external_launcher":
        return "the external launcher gives every rank a scheduler of its own"
    return ""


def _adaptive_verification(config: Any, runner: str, found: Findings, unseen: str) -> VerificationFeature:
    speculative = config.speculative_config
    if speculative is None:
        return VerificationFeature(supported=False, reason="the engine was started without --speculative-config")
    if runner == "V1":
        return VerificationFeature(supported=False, reason="the V1 model runner has no adaptive verification")
    if not getattr(speculative, "enable_adaptive_verification", False):
        return VerificationFeature(
            supported=False,
            reason="the engine was started without enable_adaptive_verification: switching it on needs a restart",
        )
    ranks = int(getattr(config.parallel_config, "world_size", 1))
    if not (unseen or found.adaptive or found.absent):
        return VerificationFeature(
            supported=False,
            ranks=ranks,
            reason=f"enable_adaptive_verification is set, but vLLM has none for method {speculative.method} or this "
            "draft: every draft is verified",
        )
    if reason := unseen or found.absent or _several_schedulers(config.parallel_config):
        return VerificationFeature(
            supported=False, reason=reason, present=True, modes=(Verification.ADAPTIVE,), ranks=ranks
        )
    return VerificationFeature(supported=True, present=True, modes=_LIVE_MODES, repriceable=True, ranks=ranks)


def _multi_module(speculative: Any) -> bool:
    """Whether the draft is a chain of MTP modules, which always runs whole."""
    asked = getattr(speculative, "use_multi_module_mtp", None)
    return bool(asked and asked())


def _absent(reason: str) -> Feature:
    return Feature(supported=False, reason=reason)


def _release(version: str) -> tuple[int, ...]:
    """(major, minor) of a version text; (0, 0) where it does not begin with numbers."""
    parts = version.split(".")[:2]
    return tuple(int(part) for part in parts) if all(part.isdecimal() for part in parts) else (0, 0)
