"""How drafts are made, and how many at most."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, VllmName, cel
from paceline_operator.api.model import REVISION_RULE, Revision, Source

DRAFT_METHODS = ("draft_model", "eagle", "eagle3", "dflash", "dspark")
DRAFTLESS_METHODS = ("ngram", "ngram_gpu", "suffix")
V1_METHODS = ("suffix",)
"""What vLLM's V2 model runner does not have."""
V1_FIXED_K_METHODS = ("ngram_gpu", "suffix")
"""On the V1 runner their proposers assert k == num_speculative_tokens (vLLM 0.32, 0.33): no schedule, no live k."""


class Method(StrEnum):
    """Drafting methods, by vLLM's names."""

    NGRAM = "ngram"
    NGRAM_GPU = "ngram_gpu"
    SUFFIX = "suffix"
    DRAFT_MODEL = "draft_model"
    EAGLE = "eagle"
    EAGLE3 = "eagle3"
    MTP = "mtp"
    DFLASH = "dflash"
    DSPARK = "dspark"


class Draft(ApiModel):
    """The draft model of a method that has one."""

    source: Source = Field(description="Where the draft's weights are, as model.source.")
    revision: Revision | None = Field(default=None, description="Branch, tag or commit of a hf:// source.")
    tensor_parallel_size: int | None = Field(
        default=None, ge=1, le=64, description="GPUs that share each layer of the draft: 1 or the target's (default)."
    )
    quantization: VllmName | None = Field(
        default=None, description="Quantization of the draft's weights, by vLLM's name; what its checkpoint says else."
    )

    model_config = ConfigDict(json_schema_extra=cel(REVISION_RULE))


class Ngram(ApiModel):
    """Window of the ngram method (prompt lookup)."""

    prompt_lookup_min: int = Field(default=2, ge=1, le=64, description="Shortest suffix that is looked up.")
    prompt_lookup_max: int = Field(default=5, ge=1, le=64, description="Longest suffix that is looked up.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "self.promptLookupMin <= self.promptLookupMax",
                "promptLookupMin must not exceed promptLookupMax",
                "promptLookupMin",
            )
        )
    )


class Suffix(ApiModel):
    """Options of the suffix method: drafts from earlier texts that continued the same way."""

    max_tree_depth: int = Field(
        default=24, ge=1, le=1024, description="Match and draft together are at most this many tokens."
    )
    max_cached_requests: int = Field(
        default=10_000, ge=0, le=10_000_000, description="Earlier responses to draft from; 0: the own prompt alone."
    )
    max_spec_factor_percent: int = Field(
        default=100, ge=1, le=10_000, description="Longest draft, in percent of the match's length."
    )
    min_token_probability_percent: int = Field(
        default=10, ge=0, le=100, description="Tokens that followed less often are not drafted."
    )


class DraftSampleMethod(StrEnum):
    """How the draft model picks its tokens."""

    GREEDY = "greedy"
    PROBABILISTIC = "probabilistic"


class AdaptiveVerification(StrEnum):
    """vLLM's adaptive verification at boot. Auto: off, until a measurement says otherwise."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Speculation(ApiModel):
    """How drafts are made, and how many at most."""

    enabled: bool = Field(
        default=True,
        description="False: engines boot without a drafter (tier Off). That is not k=0, which keeps the drafter.",
    )
    method: Method = Field(description="Drafting method, by vLLM's name.")
    draft: Draft | None = Field(default=None, description="Draft model, for the methods that have one.")
    max_tokens: int = Field(
        default=5,
        ge=1,
        le=32,
        description="Largest k the engine boots with (num_speculative_tokens). A change restarts the pods.",
    )
    ngram: Ngram | None = Field(default=None, description="Window of the ngram methods.")
    suffix: Suffix | None = Field(default=None, description="Options of the suffix method.")
    draft_sample_method: DraftSampleMethod | None = Field(
        default=None,
        description="How the draft picks tokens; vLLM's default (greedy) if absent. probabilistic takes memory for "
        "maxTokens rows of the vocabulary per request.",
    )
    extra_config: dict[str, Any] | None = Field(
        default=None,
        description="More keys of vLLM's --speculative-config, as vLLM names them; a key that has a field of its own "
        "is refused.",
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
    )
    adaptive_verification: AdaptiveVerification = Field(
        default=AdaptiveVerification.AUTO, description="vLLM's adaptive verification at boot."
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!(self.method in {list(DRAFT_METHODS)}) || has(self.draft)",
                "this method needs a draft: set speculation.draft.source",
                "draft",
            ),
            (
                f"!(self.method in {list(DRAFTLESS_METHODS)}) || !has(self.draft)",
                "this method has no draft model: remove speculation.draft",
                "draft",
            ),
            (
                "!has(self.ngram) || self.method in ['ngram', 'ngram_gpu']",
                "speculation.ngram is for the methods ngram and ngram_gpu",
                "ngram",
            ),
            (
                "!has(self.suffix) || self.method == 'suffix'",
                "speculation.suffix is for the method suffix",
                "suffix",
            ),
            (
                f"!(self.method in {list(DRAFTLESS_METHODS)}) || !has(self.draftSampleMethod)",
                "this method has no draft model that samples: remove draftSampleMethod",
                "draftSampleMethod",
            ),
            (
                f"!(self.method in {list(DRAFTLESS_METHODS)}) || self.adaptiveVerification != 'Enabled'",
                "adaptive verification needs draft probabilities, which this method does not have",
                "adaptiveVerification",
            ),
        )
    )
