"""Checks of whether a draft fits its target by method: architecture, hidden size, modules, block, size. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from paceline_engine.preflight import known, layout, weights
from paceline_engine.preflight.asked import Asked
from paceline_engine.preflight.check import Check, failed, passed, skipped, warned
from paceline_engine.preflight.config import Config
from paceline_engine.preflight.model import Model

SMALLEST, LARGEST = 10, 50
"""How many times smaller than its target a draft model should be: smaller ones guess worse, larger ones cost more than
they bring. A rule of practice, not of any engine; status shows what holds here."""
TOLERANCE = 0.2
HEAD_LAYERS = 8
"""An EAGLE head has one layer, public block drafters have five: more than this are a model's."""
FOR_THIS = "use a draft made for this target, or another method"


def checks(asked: Asked, target: Model, draft: Model | None) -> Iterator[Check]:
    """What applies to the method."""
    config = target.config
    if config is None:
        return
    if asked.method == "mtp":
        yield _mtp(asked, target, config)
        return
    if draft is None or draft.config is None:
        return
    if asked.method in weights.HEADS:
        yield _architecture(asked, config, draft, draft.config)
        yield _hidden_size(asked, config, draft.config)
        yield from _layers(config, draft.config)
        if asked.method in ("dflash", "dspark"):
            yield _block(asked, draft.config)
    if asked.method == "draft_model":
        yield _independent(config, draft.config)
        yield _ratio(target, draft)
    if draft.config.verifier:
        yield _verifier(asked, draft.config)


def _architecture(asked: Asked, target: Config, model: Model, draft: Config) -> Check:
    name, method = "family", asked.method
    wanted = known.head_of(method, draft.architecture)
    if method in known.NEEDS_HIDDEN_STATES and target.architecture in known.WITHOUT_EAGLE3:
        reason = f"{target.architecture} hands out no hidden states of its layers, which {method} reads"
        return _listed(asked, name, reason, "use eagle, mtp, ngram or a draft model")
    if method == "dspark" and target.type.startswith("deepseek_v4"):
        return passed(name, "dspark weights are in the target's checkpoint")
    if wanted in known.HEADS[method]:
        if method in ("eagle", "eagle3") and (doubt := _no_head(model, draft)):
            return warned(name, f"{draft.architecture} can be a head for {method}, but {doubt}", FOR_THIS)
        return passed(name, f"{draft.architecture} is a head for {method}")
    other = next((one for one in known.HEADS if known.head_of(one, draft.architecture) in known.HEADS[one]), None)
    reason = (
        f"the draft is {draft.architecture or 'of no architecture'}: vLLM has no {wanted or 'such head'} for {method}"
    )
    if draft.draft_vocabulary and other is None and method == "eagle":
        other = "eagle3"
    if other and draft.architecture not in known.HEADS[other] and _whole(target, draft):
        other = "draft_model"
    remedy = f"set spec.speculation.method to {other}" if other and other != method else FOR_THIS
    return _listed(asked, name, reason, remedy)


def _no_head(model: Model, draft: Config) -> str:
    """What speaks against an EAGLE head; empty: nothing. A doubt and no more: heads without `fc` can be configured."""
    if draft.layers > HEAD_LAYERS:
        return f"it has {draft.layers} layers, a head has one or a few: is it a whole model?"
    joined = any(part in one.name for one in model.tensors for part in ("fc", "eagle_linear"))
    if model.tensors and not joined:
        return "no tensor `fc` joins hidden states: is it a model of its own?"
    return ""


def _whole(target: Config, draft: Config) -> bool:
    """A model of its own and no head, as far as config.json tells: many heads are named as whole models are."""
    apart = 0 < draft.hidden != target.hidden and not draft.target_hidden
    return not draft.draft_vocabulary and (apart or draft.layers > HEAD_LAYERS)


def _listed(asked: Asked, name: str, reason: str, remedy: str) -> Check:
    """A failure in the versions that the lists are of."""
    if asked.vllm in known.VERSIONS:
        return failed(name, f"{reason} (vLLM {asked.vllm})", remedy, known.REGISTRY)
    return warned(name, f"{reason} in vLLM {known.VERSIONS[-1]}", remedy, known.REGISTRY)


def _hidden_size(asked: Asked, target: Config, draft: Config) -> Check:
    name = "hidden-size"
    reads = draft.target_hidden or (0 if asked.method == "dspark" and not draft.hidden else draft.hidden)
    if not reads or not target.hidden:
        return skipped(name, "hidden_size is not said")
    if reads != target.hidden:
        reason = f"the head reads hidden states of {reads} elements, the target's have {target.hidden}"
        return failed(name, reason, "the head was made for another target: use one made for this")
    return passed(name, f"the head reads the target's {reads} elements")


def _layers(target: Config, draft: Config) -> Iterator[Check]:
    """Which of the target's layers the head reads."""
    name = "target-layers"
    if draft.target_layers and target.layers and draft.target_layers != target.layers:
        reason = f"the head was made for a target of {draft.target_layers} layers, this one has {target.layers}"
        yield failed(name, reason, "the head was made for another target: use one made for this")
    elif beyond := [layer for layer in draft.auxiliary_layers if not 0 <= layer <= target.layers]:
        reason = f"the head reads layer {beyond[0]}, the target has {target.layers}"
        yield failed(name, reason, "the head was made for another target: use one made for this")


def _block(asked: Asked, draft: Config) -> Check:
    name = "block-size"
    if not draft.block:
        return skipped(name, "block_size is not said")
    if asked.max_tokens > draft.block:
        reason = f"spec.speculation.maxTokens is {asked.max_tokens}, the drafter was made for blocks of {draft.block}"
        remedy = f"set maxTokens to {draft.block} at most: later positions are hardly accepted"
        return warned(name, reason, remedy, "https://github.com/vllm-project/vllm/issues/41834")
    return passed(name, f"{asked.max_tokens} tokens within a block of {draft.block}")


def _mtp(asked: Asked, target: Model, config: Config) -> Check:
    name = "mtp-modules"
    if config.type not in known.MTP_TYPES and config.architecture not in known.MTP_ARCHITECTURES:
        reason = f"vLLM drafts with no modules of {config.architecture or config.type}"
        return _listed(asked, name, reason, "use another method")
    modules = config.mtp_layers
    if not modules and config.type not in known.MTP_UNCOUNTED:
        return failed(name, "config.json says that there are no modules for prediction", "use another method")
    if target.tensors and not any(weights.is_mtp(one.name, config.layers) for one in target.tensors):
        reason = (
            f"config.json has {modules} modules, the checkpoint has weights of none: who quantized it left them out"
        )
        return failed(name, reason, "use a checkpoint that has them, or another method")
    k = asked.max_tokens
    if modules and k > modules and k % modules:
        reason = f"spec.speculation.maxTokens {k} is no multiple of the {modules} modules: vLLM refuses it"
        return failed(name, reason, f"set it to {k // modules * modules}", known.SPECULATIVE)
    again = f"; {k} tokens run them {k // modules} times, later ones guess worse" if modules and k > modules else ""
    return passed(name, f"{modules or 'its'} modules{again}")


def _independent(target: Config, draft: Config) -> Check:
    name = "family"
    heads = [method for method in known.HEADS if draft.architecture in known.HEADS[method]]
    if draft.draft_vocabulary or heads or "Eagle" in draft.architecture:
        method = heads[0] if heads else "eagle3"
        reason = f"the draft is {draft.architecture}, a head on its target and no model of its own"
        return failed(name, reason, f"set spec.speculation.method to {method}")
    alike = target.type.partition("_")[0] == draft.type.partition("_")[0]
    if not alike:
        reason = f"target {target.type}, draft {draft.type}: another family guesses worse"
        return warned(name, reason, "use a small model of the target's family, trained on the same text")
    return passed(name, f"both are {draft.type.partition('_')[0]}")


def _ratio(target: Model, draft: Model) -> Check:
    name = "size-ratio"
    mine, theirs = _elements(target), _elements(draft)
    if not mine or not theirs:
        return skipped(name, "the number of parameters is not known")
    ratio = mine / theirs
    sizes = f"{mine / 1e6:,.1f} and {theirs / 1e6:,.1f} million parameters"
    if ratio <= 1:
        reason = f"{sizes}: the draft is not smaller than its target, a step of it costs as much as the target's"
        return failed(name, reason, "use a draft 10 to 50 times smaller")
    sizes = f"{sizes}: {ratio:.1f} times smaller"
    if ratio < SMALLEST * (1 - TOLERANCE):
        return warned(
            name, f"{sizes}: its steps may cost more than they bring", f"try one {SMALLEST} to {LARGEST} times smaller"
        )
    if ratio > LARGEST * (1 + TOLERANCE):
        return warned(name, f"{sizes}: it may guess too badly", f"try one {SMALLEST} to {LARGEST} times smaller")
    return passed(name, sizes)


def _elements(model: Model) -> int:
    """Parameters; packed checkpoints have fewer elements, so the configuration goes first."""
    assert model.config is not None
    return sum(one.elements for one in layout.tensors(model.config) or model.tensors if not one.name.endswith("_scale"))


def _verifier(asked: Asked, draft: Config) -> Check:
    """Drafts in the format of vllm-project/speculators name their target."""
    name, wanted = "made-for", draft.verifier.strip("/").rpartition("/")[2].lower()
    have = asked.target.source.strip("/").rpartition("/")[2].lower()
    if wanted == have:
        return passed(name, f"the draft was made for {draft.verifier}")
    reason = f"the draft was made for {draft.verifier}, the target is {asked.target.source}"
    return warned(name, reason, "use the draft of this target, or measure its acceptance")
