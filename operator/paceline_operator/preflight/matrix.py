"""The compatibility matrix: which combinations vLLM can run, how far k follows the load there, and each fact's source.

The data is matrix.yaml beside this file. Queries are pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from enum import StrEnum
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from paceline_operator.api.engine import CudagraphMode, Device, Engine
from paceline_operator.api.runner import Runner, graphs_of, runner_of
from paceline_operator.api.serving import ServingSpec
from paceline_operator.api.speculation import AdaptiveVerification, Method
from paceline_operator.preflight.arguments import name_of

REPOSITORY = "https://github.com/{repository}"
VLLM = "vllm-project/vllm"
_TAG = re.compile(r"^v?(\d+)\.(\d+)(?:[.+-]|$)")


class Effect(StrEnum):
    """What follows where a rule holds."""

    REFUSED = "refused"
    FIXED_K = "fixed-k"
    NO_FULL_GRAPHS = "no-full-graphs"
    VERIFICATION_ONLY = "verification-only"
    RUNNER_V1 = "runner-v1"
    NOTE = "note"


class DraftParallel(StrEnum):
    """GPUs of the draft: one, the target's, or another number."""

    ONE = "one"
    TARGET = "target"
    OTHER = "other"


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Source(_Data):
    """A function of vLLM, or a thread of a repository (`owner/name#number`)."""

    file: str = ""
    function: str = ""
    issue: str = Field(default="", pattern=r"^$|^[\w.-]+/[\w.-]+#\d+$")

    @model_validator(mode="after")
    def _one(self) -> Source:
        if bool(self.issue) == bool(self.file and self.function):
            raise ValueError("a source is a file with its function, or an issue")
        return self

    def link(self, version: str) -> str:
        """Where to read it, of that version (`0.33`)."""
        if self.issue:
            repository, number = self.issue.split("#")
            return f"{REPOSITORY.format(repository=repository)}/issues/{number}"
        return f"{REPOSITORY.format(repository=VLLM)}/blob/v{version}.0/vllm/{self.file}"


class When(_Data):
    """For each key the values of which one must be there; an empty key says nothing."""

    method: tuple[Method, ...] = ()
    runner: tuple[Runner, ...] = ()
    device: tuple[Device, ...] = ()
    graphs: tuple[CudagraphMode, ...] = ()
    adaptive_verification: tuple[bool, ...] = ()
    lora: tuple[bool, ...] = ()
    pipeline_parallel: tuple[bool, ...] = ()
    data_parallel: tuple[bool, ...] = ()
    draft_tensor_parallel: tuple[DraftParallel, ...] = ()
    config: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()


class Rule(_Data):
    """One fact: where it holds, what follows, why, what to do about it, and where it is written."""

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9.-]*$")
    effect: Effect
    versions: tuple[str, ...] = ()
    when: When
    field: str = ""
    cel: bool = False
    reason: str
    remedy: str = ""
    source: Source

    @model_validator(mode="after")
    def _refusals_are_complete(self) -> Rule:
        if self.effect is Effect.REFUSED and not (self.field and self.remedy):
            raise ValueError(f"rule {self.id}: a refusal names the field and what to do")
        return self


class Option(_Data):
    """Values of an option: those that all versions know, and those since a version."""

    all: tuple[str, ...]
    since: dict[str, tuple[str, ...]] = {}
    source: Source

    def known(self, version: str) -> frozenset[str]:
        """The values that a version knows."""
        later = (values for since, values in self.since.items() if _key(since) <= _key(version))
        return frozenset(self.all).union(*later)


class Matrix(_Data):
    """All of matrix.yaml."""

    versions: tuple[str, ...]
    default: str
    rules: tuple[Rule, ...]
    options: dict[str, Option]

    @model_validator(mode="after")
    def _consistent(self) -> Matrix:
        named = {self.default, *(version for rule in self.rules for version in rule.versions)}
        named |= {version for option in self.options.values() for version in option.since}
        if unknown := named - set(self.versions):
            raise ValueError(f"versions {sorted(unknown)} are not among {self.versions}")
        if len({rule.id for rule in self.rules}) != len(self.rules):
            raise ValueError("two rules have the same id")
        return self


class Combination(NamedTuple):
    """What the rules look at. The defaults are those of a GPU engine of which nothing is said."""

    version: str
    method: Method
    runner: Runner = Runner.V2
    device: Device = Device.GPU
    graphs: CudagraphMode = CudagraphMode.FULL_AND_PIECEWISE
    adaptive_verification: bool = False
    lora: bool = False
    pipeline_parallel: bool = False
    data_parallel: bool = False
    draft_tensor_parallel: DraftParallel = DraftParallel.TARGET
    config: frozenset[str] = frozenset()
    """Keys of speculation.extraConfig that are not false, and `key=value` where the value is no list or map."""
    arguments: frozenset[str] = frozenset()
    """Names of engine.extraArgs, as `--name`."""


class Abilities(NamedTuple):
    """What a combination can do; each False has its rule."""

    live_k: Rule | None
    """None: k can change while the engine runs, at no price. No full graphs is a price: it can be paid."""
    adaptive_verification: Rule | None
    """None: it can be switched on at boot."""


@cache
def load() -> Matrix:
    """The matrix as shipped. Raises ValidationError where the file is not what this module says."""
    text = resources.files(__package__).joinpath("matrix.yaml").read_text(encoding="utf-8")
    return Matrix.model_validate(yaml.safe_load(text))


def version_of(engine: Engine, image: str = "") -> str:
    """`major.minor` of the matrix by which an engine is judged: vllmVersion, else its image's tag, else the default.

    `image` is what the operator takes where the spec names none. A version that the matrix does not have is judged by
    the nearest one that it has, the older where two are as near.
    """
    if said := said_version(engine, image):
        return min(load().versions, key=lambda known: _distance(_key(said), _key(known)))
    return load().default


def said_version(engine: Engine, image: str = "") -> str:
    """`major.minor` that vllmVersion or the image's tag says, whether or not the matrix has it; empty: neither does."""
    tag = (engine.image or image).partition("@")[0].rpartition("/")[2].partition(":")[2]
    matches = (_TAG.match(text) for text in (engine.vllm_version or "", tag))
    return next((f"{int(match[1])}.{int(match[2])}" for match in matches if match), "")


def combination(spec: ServingSpec, version: str) -> Combination:
    """What the rules look at, of a spec."""
    engine, speculation = spec.engine, spec.speculation
    draft = speculation.draft.tensor_parallel_size if speculation.draft else None
    names = {name_of(element) for element in engine.extra_args}
    return Combination(
        version=version,
        method=speculation.method,
        runner=runner_of(spec),
        device=engine.device,
        graphs=graphs_of(spec),
        adaptive_verification=speculation.adaptive_verification is AdaptiveVerification.ENABLED,
        lora=engine.lora is not None,
        pipeline_parallel=engine.pipeline_parallel_size > 1,
        draft_tensor_parallel=_draft_parallel(draft, engine.tensor_parallel_size),
        config=_keys(speculation.extra_config or {}),
        arguments=frozenset(name for name in names if name),
    )


def holding(found: Combination) -> tuple[Rule, ...]:
    """The rules that hold for a combination, in the order of the file."""
    return tuple(rule for rule in load().rules if _holds(rule, found))


def abilities(found: Combination) -> Abilities:
    """How far k and adaptive verification can follow the load, whether or not they are asked for."""
    rules = holding(found)
    asked = found._replace(adaptive_verification=True)
    refused = (rule for rule in holding(asked) if rule.effect is Effect.REFUSED and rule.when.adaptive_verification)
    fixed = _first(rules, Effect.FIXED_K) or _first(rules, Effect.NO_FULL_GRAPHS)
    return Abilities(live_k=fixed, adaptive_verification=next(refused, None))


def unknown_options(engine: Engine, version: str) -> dict[str, str]:
    """Field → value, for values that another version of vLLM knows and this one does not."""
    given = {"engine.quantization": engine.quantization, "engine.kvCacheDtype": engine.kv_cache_dtype}
    return {
        field: value
        for field, value in given.items()
        if value is not None
        and value not in load().options[field].known(version)
        and any(value in load().options[field].known(other) for other in load().versions)
    }


def _holds(rule: Rule, found: Combination) -> bool:
    if rule.versions and found.version not in rule.versions:
        return False
    for key, wanted in rule.when:
        value = getattr(found, key)
        if wanted and not (set(wanted) & value if isinstance(value, frozenset) else value in wanted):
            return False
    return True


def _first(rules: tuple[Rule, ...], effect: Effect) -> Rule | None:
    return next((rule for rule in rules if rule.effect is effect), None)


def _keys(config: Mapping[str, Any]) -> frozenset[str]:
    on = {key: value for key, value in config.items() if value not in (None, False)}
    texts = {f"{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in on.items()}
    return frozenset(on) | frozenset(texts)


def _draft_parallel(draft: int | None, target: int) -> DraftParallel:
    if draft in (None, target):
        return DraftParallel.TARGET
    return DraftParallel.ONE if draft == 1 else DraftParallel.OTHER


def _key(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _distance(asked: tuple[int, int], known: tuple[int, int]) -> tuple[int, int, tuple[int, int]]:
    return abs(asked[0] - known[0]), abs(asked[1] - known[1]), known
