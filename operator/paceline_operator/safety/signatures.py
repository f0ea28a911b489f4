"""Crashes by name: a library of patterns, and a fingerprint for those without a name. Pure but for reading its data.

CUDA reports errors asynchronously, so a stack is never taken as where an error arose (PyTorch, "Asynchronous
execution").
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

UNKNOWN = "unknown"
LOG_CHARACTERS = 64 * 1024
LINE_CHARACTERS = 2000
"""The end of a log that is searched, and the beginning of each of its lines: bounds on the time that patterns take."""
_NOISE = re.compile(r"0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b|[0-9]+|'[^']*'|\"[^\"]*\"|/\S+")
"""What differs between two crashes of one kind: addresses, ids, numbers, quoted values, paths."""
_EXCEPTION = re.compile(r"(?<![\w.])\.*((?:\w[\w.]*)?(?:Error|Exception|Timeout|Interrupt)(?::.*)?)$", re.MULTILINE)
"""From the beginning of a dotted name alone: whatever an engine logs, in time that grows with its length."""
_QUIET = re.compile(r"\b(DEBUG|INFO|WARNING) \d\d-\d\d \d\d:\d\d:\d\d ")
"""Lines of vLLM's logger that tell of no end: its warnings name exceptions that might come."""
_FOLLOWS = re.compile("EngineDeadError|Engine core initialization failed|WorkerProc initialization failed")
"""What vLLM raises once its engine or a worker is gone, or did not come: why, is said before (`v1/engine/utils.py`,
`v1/executor/multiproc_executor.py` of vLLM 0.32)."""
_FRAME = re.compile(r'File "(?:[^"\n]*/)?([^/"\n]+)", line \d+, in (\w+)')


class Remedy(StrEnum):
    """Rungs of the ladder: boot configurations."""

    AS_IT_WAS = "AsItWas"
    WITHOUT_ADAPTIVE_VERIFICATION = "WithoutAdaptiveVerification"
    FEWER_TOKENS = "FewerTokens"
    DECODE_ONLY_GRAPHS = "DecodeOnlyGraphs"
    WITHOUT_SPECULATION = "WithoutSpeculation"


class When(BaseModel):
    """What the engine booted with, for a signature to fit."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)
    adaptive_verification: bool | None = None
    speculation: bool | None = None


class Fix(BaseModel):
    """A change of vLLM that mends what was reported. Whether that is this model's path, no data can say."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    after: str = Field(pattern=r"^\d+(\.\d+){1,2}$")
    """The last version without it."""
    of: str
    """What it mends."""
    source: str


class Signature(BaseModel):
    """One kind of crash."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)
    id: str
    title: str
    any: tuple[re.Pattern[str], ...] = ()
    reasons: tuple[str, ...] = ()
    when: When = Field(default_factory=When)
    known: str
    versions: str = ""
    """Of vLLM, for which it was reported; empty: not only for some."""
    fix: Fix | None = None
    source: str
    remedies: tuple[Remedy, ...]


@dataclass(frozen=True)
class Death:
    """How an engine ended, as far as it can be seen from outside."""

    log: str = ""
    """The last lines of the ended container."""
    message: str = ""
    """Its termination message."""
    reason: str = ""
    """Kubernetes' word: Error, Completed, OOMKilled, ..."""
    exit_code: int | None = None
    """A crashed `vllm serve` of one API server exits 0: the code alone says nothing."""
    adaptive_verification: bool = False
    speculation: bool = True


@dataclass(frozen=True)
class Named:
    """What a death is called."""

    id: str
    """A signature's, or `unknown`."""
    fingerprint: str
    """The same for two deaths of one kind."""
    title: str
    known: str
    source: str
    remedies: tuple[Remedy, ...]


UNKNOWN_REMEDIES = (
    Remedy.WITHOUT_ADAPTIVE_VERIFICATION,
    Remedy.FEWER_TOKENS,
    Remedy.DECODE_ONLY_GRAPHS,
    Remedy.WITHOUT_SPECULATION,
)
"""Of a crash without a name: each rung, mildest first."""


@cache
def library() -> tuple[Signature, ...]:
    """The signatures in their order. Raises ValueError where the data is not what it should be: a test reads it."""
    text = files("paceline_operator.safety").joinpath("signatures.yaml").read_text(encoding="utf-8")
    return tuple(Signature.model_validate(entry) for entry in yaml.safe_load(text))


def name(death: Death, signatures: Sequence[Signature] | None = None) -> Named:
    """The first signature that fits, or a fingerprint of what was logged."""
    for signature in library() if signatures is None else signatures:
        if _fits(signature, death):
            known = signature.known + (f" Reported of vLLM {signature.versions}." if signature.versions else "")
            return Named(signature.id, signature.id, signature.title, known, signature.source, signature.remedies)
    title = last_exception(death.log + "\n" + death.message) or _ending(death)
    return Named(UNKNOWN, fingerprint(death), title, "", "", UNKNOWN_REMEDIES)


def remedies_of(fingerprint: str) -> tuple[Remedy, ...]:
    """The rungs for a death that was named before, by its fingerprint."""
    known = next((one for one in library() if one.id == fingerprint), None)
    return known.remedies if known else UNKNOWN_REMEDIES


def upgrade(fingerprint: str, version: str) -> str:
    """The last rung, which is a person's: what is known of a vLLM that mends it; empty where nothing is. `version`:
    `major.minor` of the engine that ended."""
    known = next((one for one in library() if one.id == fingerprint), None)
    if known is None or known.fix is None:
        return ""
    fix = known.fix
    if _numbers(version) <= _numbers(fix.after)[:2]:
        path = "whether that is this model's path shows the canary that spec.engine.image starts"
        return f"an upgrade is proposed: vLLM after {fix.after} mends {fix.of} ({fix.source}); {path}"
    other = "it does not cover this model's path, or this is another fault"
    return f"vLLM {version} mends {fix.of} already ({fix.source}): {other}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdigit())


def fingerprint(death: Death) -> str:
    """12 hex digits of the exception and its last frames, without what differs between two deaths of one kind."""
    text = _spoken(f"{death.log}\n{death.message}")
    last = _last(text)
    frames = [f"{file}:{function}" for file, function in _FRAME.findall(text[: last.end()] if last else text)[-3:]]
    kind = _NOISE.sub("#", last_exception(text)) if frames or last else _ending(death)
    return hashlib.sha256("|".join([kind, *frames]).encode()).hexdigest()[:12]


def last_exception(text: str) -> str:
    """The last line of `text` that names an exception, without what vLLM writes before it; empty where none does."""
    found = _last(_spoken(text))
    return found[1][:300] if found else ""


def _spoken(text: str) -> str:
    lines = (line[:LINE_CHARACTERS] for line in text[-LOG_CHARACTERS:].splitlines())
    return "\n".join(line for line in lines if not _QUIET.search(line))


def _last(text: str) -> re.Match[str] | None:
    """The last exception that another did not merely follow."""
    found = list(_EXCEPTION.finditer(text))
    causes = [one for one in found if not _FOLLOWS.search(one[1])]
    return (causes or found)[-1] if found else None


def _fits(signature: Signature, death: Death) -> bool:
    when = signature.when
    if when.adaptive_verification not in (None, death.adaptive_verification):
        return False
    if when.speculation not in (None, death.speculation):
        return False
    text = _spoken(f"{death.log}\n{death.message}")
    return death.reason in signature.reasons or any(pattern.search(text) for pattern in signature.any)


def _ending(death: Death) -> str:
    code = "?" if death.exit_code is None else str(death.exit_code)
    return f"ended with {death.reason or 'no reason'}, exit code {code}, and logged no exception"
