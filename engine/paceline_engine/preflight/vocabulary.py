"""What token ids mean: the vocabulary of a tokenizer, and whether two of them say the same.

Draft and target speak in token ids. Where an id means another text in the draft, most drafts are refused, or, where the
engine does not check the size, the text is silently wrong (vllm#7252, sglang#24051).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_engine.preflight.headers import MalformedError

FILES = ("tokenizer.json", "vocab.json", "tokenizer.model", "tekken.json")
"""The first that is there is read: each is whole."""
MAX_BYTES = 64 * 2**20
"""Those of the largest vocabularies have about 30 MB."""
MAX_ID = 2**31


@dataclass(frozen=True)
class Vocabulary:
    """Of one model."""

    file: str
    """Where it was read from."""
    digest: str
    """Of all ids and texts; of a file that only its own library can read, of its bytes."""
    ids: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Text -> id, the trained part; empty where the file cannot be taken apart."""
    added: Mapping[str, int] = field(default_factory=dict, repr=False)
    """Control tokens: text -> id."""

    @property
    def size(self) -> int:
        """Ids up to the largest one; 0: not known."""
        return max((*self.ids.values(), *self.added.values()), default=-1) + 1


def parse(file: str, text: bytes) -> Vocabulary:
    """Of one of FILES. Raises MalformedError."""
    if file == "tokenizer.model":
        return Vocabulary(file, _digest(text))
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MalformedError(f"{file} is no JSON: {error}"[:200]) from None
    if file == "tekken.json":
        return Vocabulary(file, _digest(text))
    if not isinstance(found, dict):
        raise MalformedError(f"{file} is no map")
    if file == "vocab.json":
        return _made(file, _ids(file, found), {})
    model = found.get("model")
    given = model.get("vocab") if isinstance(model, dict) else None
    listed = found.get("added_tokens")
    added = {
        str(one["content"]): one["id"]
        for one in (listed if isinstance(listed, list) else ())
        if isinstance(one, dict) and isinstance(one.get("content"), str) and _is_id(one.get("id"))
    }
    # A unigram model has a list of pairs, and a token's id is its place.
    pairs = {one[0]: at for at, one in enumerate(given) if _is_pair(one)} if isinstance(given, list) else given
    return _made(file, _ids(file, pairs), added)


def _made(file: str, ids: dict[str, int], added: dict[str, int]) -> Vocabulary:
    whole = json.dumps([sorted(ids.items()), sorted(added.items())], ensure_ascii=True)
    return Vocabulary(file, _digest(whole.encode()), ids, added)


def _ids(file: str, given: Any) -> dict[str, int]:
    if not isinstance(given, dict) or not given or not all(_is_id(number) for number in given.values()):
        raise MalformedError(f"{file} has no vocabulary")
    return given


def _is_id(value: Any) -> bool:
    return type(value) is int and 0 <= value < MAX_ID


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()


def differing(target: Mapping[str, int], draft: Mapping[str, int]) -> tuple[int, str]:
    """How many ids mean another text in the draft's vocabulary (missing ones included), and the lowest one, as text."""
    mine, theirs = ({number: text for text, number in ids.items()} for ids in (target, draft))
    apart = sorted(number for number in mine.keys() | theirs.keys() if mine.get(number) != theirs.get(number))
    if not apart:
        return 0, ""
    lowest = apart[0]
    there, here = _shown(mine.get(lowest)), _shown(theirs.get(lowest))
    return len(apart), f"{lowest} is {there} in the target and {here} in the draft"


def _shown(text: str | None) -> str:
    return "missing" if text is None else repr(text[:40])
