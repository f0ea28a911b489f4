"""How drafts are made, and how many at most."""

from __future__ import annotations

from enum import StrEnum

from pydantic import ConfigDict, Field

from paceline_operator.api.base import ApiModel, cel
from paceline_operator.api.model import REVISION_RULE, Revision, Source

DRAFT_METHODS = ("draft_model", "eagle", "eagle3", "dflash", "dspark")
DRAFTLESS_METHODS = ("ngram", "ngram_gpu", "suffix")
FIXED_K_METHODS = ("ngram_gpu", "suffix")
"""Their proposers assert k == num_speculative_tokens (vLLM 0.32, 0.33): no schedule at boot, and no live k."""


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


class AdaptiveVerification(StrEnum):
    """vLLM's adaptive verification at boot. Auto: off, until a measurement says otherwise."""

    AUTO = "Auto"
    ENABLED = "Enabled"
    DISABLED = "Disabled"


class Speculation(ApiModel):
    """How drafts are made, and how many at most."""

    method: Method = Field(description="Drafting method, by vLLM's name.")
    draft: Draft | None = Field(default=None, description="Draft model, for the methods that have one.")
    max_tokens: int = Field(
        default=5,
        ge=1,
        le=32,
        description="Largest k the engine boots with (num_speculative_tokens). A change restarts the pods.",
    )
    ngram: Ngram | None = Field(default=None, description="Window of the ngram methods.")
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
                "!(self.method in ['ngram', 'ngram_gpu']) || self.adaptiveVerification != 'Enabled'",
                "adaptive verification needs draft probabilities, which the ngram methods do not have",
                "adaptiveVerification",
            ),
        )
    )
