"""The file of `paceline local`: a SpeculativeServing and, optionally, a LocalLoad, checked as an API server would.

There is no API server here to fill in defaults and refuse nonsense: the same types do the first, the same legality
rules the second, and a field that no type knows is a mistake of the user, not one to ignore.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar

import yaml
from pydantic import Field, ValidationError

from paceline_operator import naming
from paceline_operator.api.base import ApiModel
from paceline_operator.api.profiles import SpeculationProfile
from paceline_operator.api.serving import SpeculativeServing
from paceline_operator.api.written import misnamed, refusals, unread
from paceline_operator.local.loader import Loader
from paceline_operator.local.mistake import UserError
from paceline_operator.preflight import evidence, legality

KIND_LOAD = "LocalLoad"
MAX_FILE_BYTES = 1024 * 1024
M = TypeVar("M", bound=ApiModel)


class Text(StrEnum):
    """Kinds of text that the load asks for; texts.py makes them."""

    COPY = "copy"
    NUMBERS = "numbers"


class Phase(ApiModel):
    """A stretch of the load."""

    duration_seconds: int = Field(ge=1, le=86_400, description="How long it lasts.")
    concurrency: int = Field(ge=0, le=1024, description="Requests in flight; a finished one is followed by the next.")
    text: Text = Field(description="What the requests ask for.")


class LoadSpec(ApiModel):
    """A closed loop in phases."""

    phases: Annotated[list[Phase], Field(min_length=1, max_length=100)]
    max_tokens: int = Field(default=128, ge=1, le=4096, description="Tokens of an answer at most.")


class LocalLoad(ApiModel):
    """Load that `paceline local` drives. A file format, not a kind of the cluster."""

    api_version: str
    kind: str
    metadata: dict[str, Any] = Field(default_factory=dict)
    spec: LoadSpec


def read(path: Path) -> tuple[SpeculativeServing, LocalLoad | None]:
    """The documents of `path`. Raises UserError that names file, field and remedy."""
    found: dict[str, dict[str, Any]] = {}
    for document in documents(path):
        kind = document.get("kind")
        if kind not in (naming.KIND_SERVING, KIND_LOAD):
            raise UserError(f"{path}: kind {kind!r} is none of {naming.KIND_SERVING} and {KIND_LOAD}")
        if document.get("apiVersion") != naming.API_VERSION:
            raise UserError(f"{path}: {kind}: apiVersion is {document.get('apiVersion')!r}, not {naming.API_VERSION}")
        if kind in found:
            raise UserError(f"{path}: two documents of kind {kind}: keep one")
        found[kind] = document
    if naming.KIND_SERVING not in found:
        raise UserError(f"{path}: no document of kind {naming.KIND_SERVING}")
    serving = serving_of(found[naming.KIND_SERVING], path)
    return serving, parse(LocalLoad, found[KIND_LOAD], path) if KIND_LOAD in found else None


def serving_of(document: dict[str, Any], path: Path) -> SpeculativeServing:
    """The serving as engines of this machine take it. Raises UserError."""
    serving = parse(SpeculativeServing, document, path)
    for mistake in misnamed(serving):
        raise UserError(f"{path}: {mistake}")
    findings = legality.check(serving.spec)
    if findings:
        raise UserError(f"{path}: " + "\n".join(finding.message for finding in findings))
    if not serving.metadata.uid:
        metadata = serving.metadata.model_copy(update={"uid": str(uuid.uuid4())})
        serving = serving.model_copy(update={"metadata": metadata})
    # There is no claim here: vLLM downloads into the engines' home, which all of them share and which stays.
    model = serving.spec.model.model_copy(update={"cache": None})
    return serving.model_copy(update={"spec": serving.spec.model_copy(update={"model": model})})


def profile(path: Path) -> tuple[dict[str, Any], SpeculationProfile]:
    """The one SpeculationProfile of `path`, as written and parsed. Raises UserError naming file, field and remedy."""
    found = documents(path)
    if len(found) != 1 or found[0].get("kind") != naming.KIND_PROFILE:
        raise UserError(f"{path}: one document of kind {naming.KIND_PROFILE} is needed, and no other")
    if found[0].get("apiVersion") != naming.API_VERSION:
        raise UserError(f"{path}: apiVersion is {found[0].get('apiVersion')!r}, not {naming.API_VERSION}")
    given = parse(SpeculationProfile, found[0], path)
    for mistake in (*misnamed(given), *evidence.of_profile(given.spec)):
        raise UserError(f"{path}: {mistake}")
    body = {**found[0], "metadata": {"name": given.metadata.name}}
    body.pop("status", None)
    return body, given


def documents(path: Path) -> list[dict[str, Any]]:
    """The documents of a YAML file, each a map. Raises UserError that names file and remedy."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if len(text) > MAX_FILE_BYTES:
        raise UserError(f"{path}: larger than {MAX_FILE_BYTES} bytes: this is no manifest")
    try:
        documents = [document for document in yaml.load_all(text.decode(), Loader) if document is not None]
        endless = _is_endless(documents, set(), set())
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: not YAML: {_in_one_line(error)}") from None
    except (LookupError, AttributeError, TypeError):  # what PyYAML raises where a value is not of its tag
        raise UserError(f"{path}: not YAML: a value does not fit its tag (`!!...`)") from None
    if endless:
        raise UserError(f"{path}: a value contains itself (`&` and `*`)")
    if not all(isinstance(document, dict) for document in documents):
        raise UserError(f"{path}: a document is no mapping: it must have apiVersion, kind, metadata and spec")
    return documents


def written(body: Mapping[str, Any]) -> str:
    """An object as YAML, its fields in their order."""
    return yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True)


def _in_one_line(error: Exception) -> str:
    """Line, column and problem; PyYAML's own words show the text around it, in several lines."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        at = error.problem_mark
        return f"line {at.line + 1}, column {at.column + 1}: {error.problem or error.context}"
    return " ".join(str(error).split())


def _is_endless(value: Any, around: set[int], passed: set[int]) -> bool:
    """Whether it contains itself: one of the values `around` it (ids). Those in `passed` are known not to."""
    if not isinstance(value, dict | list) or id(value) in passed:
        return False
    if id(value) in around:
        return True
    around.add(id(value))
    inner = value.values() if isinstance(value, dict) else value
    if any(_is_endless(one, around, passed) for one in inner):
        return True
    around.discard(id(value))
    passed.add(id(value))
    return False


def parse(model: type[M], document: dict[str, Any], path: Path) -> M:
    """A document as what its kind says it is, no field of it unread. Raises UserError."""
    try:
        parsed = model.model_validate(document)
    except ValidationError:
        raise UserError(f"{path}: {document['kind']}: " + "\n".join(refusals(document, model))) from None
    if mistakes := unread(document, parsed):
        raise UserError(f"{path}: {document['kind']}: " + "\n".join(mistakes))
    return parsed
