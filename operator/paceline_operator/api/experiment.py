"""SpeculationExperiment: is speculation worth it here? Variants of one serving under a fixed closed-loop load.

One change at a time: each variant differs from its parent in one named thing, so that a difference has one cause. The
baseline without speculation always runs and is not listed.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from paceline_operator.api.base import NAME_RULE, ApiModel, Image, ObjectMeta, ObjectName, cel
from paceline_operator.api.engine import CudagraphMode
from paceline_operator.api.speculation import AdaptiveVerification, Ngram, Speculation
from paceline_operator.api.status_experiment import ExperimentStatus

BASELINE = "baseline"
"""Name of the variant without speculation."""
SERVING = "serving"
"""Name of the variant that is the serving as it stands."""

VariantName = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
_PART = r"\.?[^./\s][^/\s]*"
Path = Annotated[str, Field(min_length=1, max_length=512, pattern=rf"^{_PART}(/{_PART})*$")]
"""Relative, and no part of it `..`: what a subPath takes."""
Key = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^\.?[-_a-zA-Z0-9][-._a-zA-Z0-9]*$")]
"""Of a ConfigMap: https://kubernetes.io/docs/concepts/configuration/configmap/; `..` does not begin it."""


def one_of(*names: str) -> str:
    """CEL: exactly one of these fields is set."""
    return f"[{', '.join(f'has(self.{name})' for name in names)}].filter(x, x).size() == 1"


class NgramChange(Ngram):
    """Window and k of the ngram methods: one group, because a longer window drafts more."""

    max_tokens: int | None = Field(default=None, ge=1, le=32, description="k at boot; the parent's if absent.")


class Change(ApiModel):
    """The one thing in which a variant differs from its parent."""

    speculation: Speculation | None = Field(
        default=None, description="Method, with its draft, window and k: one group."
    )
    ngram: NgramChange | None = Field(default=None, description="Window of the ngram method, with its k: one group.")
    max_tokens: int | None = Field(default=None, ge=1, le=32, description="speculation.maxTokens.")
    adaptive_verification: AdaptiveVerification | None = Field(
        default=None, description="speculation.adaptiveVerification."
    )
    cudagraph_mode: CudagraphMode | None = Field(default=None, description="engine.cudagraphMode.")
    enforce_eager: bool | None = Field(default=None, description="engine.enforceEager.")
    enable_prefix_caching: bool | None = Field(default=None, description="engine.enablePrefixCaching.")
    image: Image | None = Field(default=None, description="engine.image: another engine version.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                one_of(
                    "speculation",
                    "ngram",
                    "maxTokens",
                    "adaptiveVerification",
                    "cudagraphMode",
                    "enforceEager",
                    "enablePrefixCaching",
                    "image",
                ),
                "a variant changes exactly one thing: make a second variant with this one as its parent",
            )
        )
    )


class Variant(ApiModel):
    """One configuration under test."""

    name: VariantName = Field(description="Name in results; `baseline` and `serving` are taken.")
    parent: VariantName = Field(default=SERVING, description="The variant that this one changes: serving by default.")
    change: Change = Field(description="The one thing in which it differs.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!(self.name in ['{BASELINE}', '{SERVING}'])",
                f"the names {BASELINE} and {SERVING} are taken: both always run",
                "name",
            ),
            ("self.name != self.parent", "a variant cannot be its own parent", "parent"),
        )
    )


class RandomPrompts(ApiModel):
    """Prompts of random tokens: they show cost honestly and acceptance badly."""

    input_tokens: int = Field(default=512, ge=1, le=1_048_576, description="Mean length of a prompt.")
    range_percent: int = Field(default=0, ge=0, le=100, description="Lengths vary by so much around the mean.")


class ConfigMapFile(ApiModel):
    """A dataset file in a ConfigMap of the same namespace."""

    name: ObjectName = Field(description="ConfigMap.")
    key: Key = Field(description="Key that holds the file.")


class ClaimFile(ApiModel):
    """A dataset file on a PersistentVolumeClaim of the same namespace."""

    claim_name: ObjectName = Field(description="PersistentVolumeClaim.")
    path: Path = Field(description="File, relative to the volume's root.")


class Prompts(ApiModel):
    """Where prompts come from. Their text never reaches results: lengths and hashes do."""

    random: RandomPrompts | None = Field(default=None, description="Random tokens of a given length.")
    lengths: ConfigMapFile | None = Field(
        default=None,
        description="Random tokens of recorded lengths: CSV in a ConfigMap, `input_tokens,output_tokens,count`.",
    )
    config_map: ConfigMapFile | None = Field(default=None, description="A dataset in a ConfigMap.")
    persistent_volume_claim: ClaimFile | None = Field(default=None, description="A dataset on a claim.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                one_of("random", "lengths", "configMap", "persistentVolumeClaim"),
                "name exactly one source of prompts: random, lengths, configMap or persistentVolumeClaim",
            )
        )
    )

    @property
    def kept(self) -> ConfigMapFile | None:
        """The ConfigMap that holds prompts or their lengths."""
        return self.config_map or self.lengths


class Load(ApiModel):
    """A closed loop: as many requests in flight as `concurrency` says, the next one as soon as one ends."""

    concurrency: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(min_length=1, max_length=16)] = Field(
        description="Requests in flight, one measurement each.", json_schema_extra={"x-kubernetes-list-type": "set"}
    )
    prompts: Prompts = Field(description="Where prompts come from.")
    output_tokens: int = Field(
        default=256, ge=1, le=65_536, description="Tokens of each answer; recorded lengths have their own."
    )
    temperature_milli: int = Field(default=0, ge=0, le=2000, description="Sampling temperature, x1000.")
    multi_turn_percent: int = Field(
        default=0,
        ge=0,
        le=100,
        description="Share of requests whose prompt is an earlier one's with more behind it.",
    )
    seed: int = Field(default=0, ge=0, le=2_147_483_647, description="Of prompts and sampling.")


class Duration(ApiModel):
    """How long each load of each variant is measured, warm-up not counted."""

    seconds: int | None = Field(default=None, ge=10, le=86_400, description="A fixed time.")
    times_to_fault: int | None = Field(default=None, ge=2, le=100, description="A multiple of secondsToFault.")
    seconds_to_fault: int | None = Field(
        default=None, ge=1, le=86_400, description="After how long the fault under investigation has shown itself."
    )

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.seconds) ? (!has(self.timesToFault) && !has(self.secondsToFault)) : "
                "(has(self.timesToFault) && has(self.secondsToFault))",
                "set seconds, or timesToFault together with secondsToFault",
            )
        )
    )


class Reference(ApiModel):
    """An object of the same namespace."""

    name: ObjectName = Field(description="Its name.")


class ExperimentSpec(ApiModel):
    """What is compared, under which load, at what price."""

    serving_ref: Reference = Field(description="The SpeculativeServing whose variants are compared; it is not touched.")
    variants: Annotated[list[Variant], Field(max_length=16)] = Field(
        default_factory=list,
        description="Variants beside the baseline (no speculation) and the serving as it stands, which always run.",
        json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]},
    )
    load: Load = Field(description="The load, the same for every variant.")
    duration: Duration = Field(default_factory=lambda: Duration(seconds=120), description="Of each measurement.")
    repetitions: int = Field(
        default=2, ge=2, le=20, description="Measurements of each load and variant, in interleaved order (A B B A)."
    )
    budget_gpu_minutes: int = Field(
        default=240, ge=1, le=100_000, description="It ends when this is spent; what is missing is named in the report."
    )
    suspend: bool = Field(default=False, description="Start no further engine; the one that runs goes on.")
    cancel: bool = Field(default=False, description="End it now; what was measured is judged.")

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"!has(self.variants) || self.variants.all(v, v.parent in ['{BASELINE}', '{SERVING}'] || "
                "self.variants.exists(p, p.name == v.parent))",
                f"a variant's parent must be {BASELINE}, {SERVING} or the name of another variant",
                "variants",
            )
        )
    )


class SpeculationExperiment(ApiModel):
    """A comparison of speculation settings of one serving, one change at a time, the baseline always included."""

    api_version: str
    kind: str
    metadata: ObjectMeta
    spec: ExperimentSpec
    status: ExperimentStatus = Field(default_factory=ExperimentStatus)

    model_config = ConfigDict(json_schema_extra=cel(NAME_RULE))
