"""Checks of lengths, division among GPUs, quantization, adapters, and of requests that speculation refuses. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_engine.preflight import known, weights
from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import Check, failed, passed, warned
from paceline_engine.preflight.config import Config
from paceline_engine.preflight.model import Model

CACHE_ONLY_ROPE = ("default", "linear", "llama3", "ntk", "proportional")
"""Kinds of rope whose table vLLM lengthens for a draft (config/speculative.py: _CACHE_ONLY_ROPE_TYPES)."""
SAME_QUANTIZATION = (
    {"gptq", "auto_gptq", "gptq_marlin", "moe_wna16"},
    {"awq", "auto_awq", "awq_marlin", "moe_wna16"},
    {"fp8", "deepseek_v4_fp8"},
    {"mxfp4", "gpt_oss_mxfp4"},
)
"""Names that vLLM takes for one another (config/model.py: ModelConfig._verify_quantization)."""
SAMPLING = known.SOURCE.format(file="sampling_params.py")
CONFIG = known.SOURCE.format(file="config/model.py")


def checks(asked: Asked, target: Model, draft: Model | None) -> Iterator[Check]:
    """All of them that apply."""
    models = [one for one in (target, draft) if one is not None]
    for model in models:
        if model.config is not None:
            yield _positions(asked, target, model, model.config)
            yield _parallel(asked, model, model.config)
            yield _quantized(asked, model, model.config)
    if target.config and draft and draft.config and asked.method in weights.HEADS:
        yield _requantized(target.config, draft.config)
    if asked.method:
        yield from _requests(asked)


def _positions(asked: Asked, target: Model, model: Model, config: Config) -> Check:
    name, longest = f"{model.name}-positions", config.longest
    wanted = asked.max_model_len or (target.config.longest if target.config else 0)
    if not longest or not wanted or wanted <= longest:
        return passed(name, f"{wanted or 'no'} positions asked for, {longest or 'unsaid'} in the {model.name}")
    if model is target:
        reason = f"spec.engine.maxModelLen is {wanted}, the model has {longest} positions"
        if asked.long_positions:
            return warned(
                name,
                f"{reason}, which VLLM_ALLOW_LONG_MAX_MODEL_LEN lets pass",
                "text beyond is wrong or ends the engine",
            )
        return failed(name, f"{reason}: vLLM refuses it", f"set it to {longest} at most", CONFIG)
    if asked.method != "draft_model" and config.rope.type in CACHE_ONLY_ROPE:
        return passed(name, f"the head has {longest} positions, and vLLM lengthens them to {wanted}")
    reason = f"the draft has {longest} positions and the context {wanted}: vLLM lowers the context to {longest}"
    return warned(
        name, reason, f"set spec.engine.maxModelLen to {longest}, or use a draft with more positions", known.SPECULATIVE
    )


def _parallel(asked: Asked, model: Model, config: Config) -> Check:
    name = f"{model.name}-parallel"
    ranks = asked.tensor_parallel
    if model.name == "draft" and asked.draft_tensor_parallel:
        ranks = asked.draft_tensor_parallel
    if config.heads and config.heads % ranks:
        field = "spec.engine.tensorParallelSize"
        reason = f"{config.heads} attention heads of the {model.name} cannot be divided by {ranks} GPUs"
        options = [n for n in (1, 2, 4, 8, 16) if config.heads % n == 0]
        remedy = f"set {field} to one of {', '.join(map(str, options))}"
        if model.name == "draft" and asked.method == "draft_model" and asked.two_vocabularies:
            remedy = f"{remedy}: with use_heterogeneous_vocab a draft runs on as many GPUs as its target"
        elif model.name == "draft":
            remedy = "set spec.speculation.draft.tensorParallelSize to 1"
        return failed(name, reason, remedy, CONFIG)
    if model.name == "target" and config.layers and asked.pipeline_parallel > config.layers:
        reason = f"{asked.pipeline_parallel} stages and {config.layers} layers"
        return failed(name, reason, "lower spec.engine.pipelineParallelSize")
    return passed(name, f"{config.heads or '?'} heads over {ranks} GPU{'s' if ranks > 1 else ''}")


def _quantized(asked: Asked, model: Model, config: Config) -> Check:
    """What is asked for against what the checkpoint is."""
    name, have = f"{model.name}-quantization", config.quantization.method
    of = asked.target if model.name == "target" else asked.draft
    wanted = of.quantization if of else ""
    field = "spec.engine.quantization" if model.name == "target" else "spec.speculation.draft.quantization"
    if not wanted or not have or wanted in (have, "humming"):
        return passed(name, f"{wanted or have or 'none'}")
    if any({wanted, have} <= group for group in SAME_QUANTIZATION):
        return passed(name, f"{wanted}, as the checkpoint's {have}")
    reason = f"{field} is {wanted} and the checkpoint is {have}: vLLM refuses that"
    return failed(name, reason, f"remove {field}, or use a checkpoint that is not quantized", CONFIG)


def _requantized(target: Config, draft: Config) -> Check:
    """A head reads hidden states: those of weights that somebody else rounded to four bits are not what it learnt."""
    name, kind = "draft-revision", target.quantization
    native = target.type in ("gpt_oss", "kimi_k2", "kimi_k25", "kimi_k3", "deepseek_v4")
    if kind.bits and kind.bits <= 4 and not native and not draft.quantization.method:
        return warned(
            name,
            f"the target's weights are {kind.method} of {kind.bits} bits, and nothing says that the head was made for "
            "them: with one made for the original, accepted tokens a step fell from 4.0 to 1.3 without an error",
            "use a revision of the draft made for this checkpoint, or measure its acceptance",
        )
    return passed(name, f"target {kind.method or 'as trained'}, draft {draft.quantization.method or 'as trained'}")


def _requests(asked: Asked) -> Iterator[Check]:
    yield warned(
        "requests",
        "requests with min_p or logit_bias get HTTP 400 from an engine that speculates",
        "send those to an engine without speculation (spec.routing.plain), or leave the parameters out",
        SAMPLING,
    )
    yield warned(
        "logprobs",
        "logprobs of the same text differ a little from run to run: steps verify different numbers of tokens at once",
        "do not compare them bit by bit; evaluate on an engine without speculation",
    )
    if asked.lora_rank:
        yield warned(
            "lora",
            f"drafts are made for the base model: adapters of rank {asked.lora_rank} lower the acceptance",
            "watch the acceptance of each adapter; merge a busy one into the weights",
            "https://github.com/vllm-project/vllm/issues/21068",
        )
